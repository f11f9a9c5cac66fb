package api

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
)

func TestAPIServersOf_ServersBehindOneAddressAreOne(t *testing.T) {
	address := netip.MustParseAddr("10.1.0.1")
	behind := func(replica string, ready bool) apiserverscontroller.KnownServer {
		return apiserverscontroller.KnownServer{
			Name: "10.1.0.1", Key: "/k/10.1.0.1/" + replica, ReplicaID: replica,
			Server: apiservers.Server{Address: address, Port: 6443, Ready: ready, Detail: "says " + replica},
		}
	}
	list := apiserverscontroller.ServerList{Servers: []apiserverscontroller.KnownServer{behind("a", false), behind("b", true), behind("c", false)}}
	want := []*bootstrapv1.APIServer{{
		Name: "apiservers/10.1.0.1", Address: "10.1.0.1", Port: 6443, Ready: true, ProbeDetail: "says b", EtcdKey: "/k/10.1.0.1/b",
		ReplicaId: "b, a, c", RegistrationSource: bootstrapv1.APIServer_REGISTRATION_SOURCE_SIDECAR,
		Conditions: []*metav1.Condition{{
			Type: "Published", Status: metav1.Condition_STATUS_UNKNOWN, Reason: "APISERVER_UNREACHABLE",
			Message: "it is not known whether it is an endpoint, because kube-apiserver did not answer",
		}, {
			Type: "Registered", Status: metav1.Condition_STATUS_FALSE, Reason: "SHARED_ADDRESS_NOT_READY",
			Message: "behind the same address, a is not ready: says a; behind the same address, c is not ready: says c",
		}},
	}}
	if diff := cmp.Diff(want, apiServersOf(list, nil), protocmp.Transform()); diff != "" {
		t.Errorf("apiservers (-want +got):\n%s", diff)
	}
	if servers := list.Candidates(apiservers.Live); len(servers) != 3 {
		t.Errorf("servers = %+v, want all three to choose from", servers)
	}
}
