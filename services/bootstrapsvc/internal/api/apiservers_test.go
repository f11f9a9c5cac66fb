package api

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/trivet-dev/trivet/internal/watchcache"
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

// listedServers are kube-apiservers that etcd has now. What is published cannot be read.
type listedServers struct {
	KubeAPIServers

	list apiserverscontroller.ServerList
}

func (l *listedServers) ListServers(context.Context) (apiserverscontroller.ServerList, error) {
	return l.list, nil
}

func (l *listedServers) WatchServers(ctx context.Context, _ func()) { <-ctx.Done() }

func (l *listedServers) PlanEndpoints(context.Context, apiserverscontroller.ServerList, []netip.Addr) (apiserverscontroller.EndpointsObservation, error) {
	return apiserverscontroller.EndpointsObservation{}, errors.New("no kube-apiserver answers")
}

// While nothing is watched, nothing fills the cache of watches.
func TestListAPIServers_AWatchFromItsTokenDeletesWhatWasListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known := &listedServers{list: apiserverscontroller.ServerList{Servers: []apiserverscontroller.KnownServer{{
			Name: "10.1.0.1", Key: "/k/10.1.0.1", Server: apiservers.Server{Address: netip.MustParseAddr("10.1.0.1"), Port: 6443},
		}}}}
		s := newAPIServerServer(replica{Config{Leadership: noTerm{}, APIServers: known}})
		listed, err := s.ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{})
		if err != nil || len(listed.GetApiservers()) != 1 {
			t.Fatalf("listed %v, %v", listed, err)
		}
		known.list = apiserverscontroller.ServerList{}
		has, done := map[string]bool{listed.GetApiservers()[0].GetName(): true}, errors.New("done")
		err = serveWatch(t.Context(), s.poller, s.cache, watchcache.Request[*bootstrapv1.APIServer]{
			Method: bootstrapv1.APIServerService_WatchAPIServers_FullMethodName, ResumeToken: listed.GetResumeToken(),
		}, func(e watchcache.Event[*bootstrapv1.APIServer]) error {
			switch e.Type {
			case metav1.EventType_EVENT_TYPE_BOOKMARK:
				return done
			case metav1.EventType_EVENT_TYPE_DELETED:
				delete(has, e.Item.GetName())
			default:
				has[e.Item.GetName()] = true
			}
			return nil
		})
		if !errors.Is(err, done) || len(has) != 0 {
			t.Errorf("the client has %v after the initial events, want nothing: %v", has, err)
		}
	})
}
