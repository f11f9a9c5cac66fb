package bootstrapsvc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/testkit"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/api"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
)

func TestListAPIServers(t *testing.T) {
	f := newFixture(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f.keys.put(apiserverscontroller.Entry{
		Address: netip.MustParseAddr("10.1.0.2"), Port: 6443, Ready: true, Detail: "ok", ProbeTime: at, ReplicaID: "other-2",
	})
	f.keys.put(apiserverscontroller.Entry{
		Address: netip.MustParseAddr("10.1.0.1"), Unreadable: "the value is not a JSON object of the known kind",
	})
	want := []*bootstrapv1.APIServer{{
		Name: "apiservers/10.1.0.1", Address: "10.1.0.1", Ttl: durationpb.New(5 * time.Second),
		Key: "/trivet/test/apiservers/10.1.0.1", Source: bootstrapv1.APIServer_SOURCE_SIDECAR,
		ProbeDetail: "key /trivet/test/apiservers/10.1.0.1: the value is not a JSON object of the known kind",
		Problems:    []string{"key /trivet/test/apiservers/10.1.0.1: the value is not a JSON object of the known kind"},
		Reason:      "it is not ready: key /trivet/test/apiservers/10.1.0.1: the value is not a JSON object of the known kind",
	}, {
		Name: "apiservers/10.1.0.2", Address: "10.1.0.2", Port: 6443, Ready: true, ProbeDetail: "ok",
		ProbeTime: timestamppb.New(at), ReplicaId: "other-2", Ttl: durationpb.New(5 * time.Second),
		Key: "/trivet/test/apiservers/10.1.0.2", Source: bootstrapv1.APIServer_SOURCE_SIDECAR, Reason: "it is ready",
	}}
	got, err := serve(t, f).ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.GetApiservers(), protocmp.Transform()); diff != "" {
		t.Errorf("apiservers (-want +got):\n%s", diff)
	}
}

// unknownReason is the reason of a server while Kubernetes does not answer.
const unknownReason = "it is not known whether it is an endpoint, because kube-apiserver did not answer"

// row is the part of a listed server that most tests compare.
type row struct {
	Name, Key, Source, Reason string
	Ready, Published          bool
	Problems                  int
}

func rowsOf(servers []*bootstrapv1.APIServer) []row {
	var rows []row
	for _, s := range servers {
		rows = append(rows, row{
			Name: s.GetName(), Key: s.GetKey(), Source: s.GetSource().String(), Reason: s.GetReason(),
			Ready: s.GetReady(), Published: s.GetPublished(), Problems: len(s.GetProblems()),
		})
	}
	return rows
}

func TestListAPIServers_HasSourceAndReasonOfEachServer(t *testing.T) {
	f := newFixtureWith(t, configured(func(c *EndpointsConfig) { c.AdoptMasterLeases = true }))
	unleased := masterLease("10.1.0.9")
	unleased.Leased, unleased.Alive = false, false
	f.masterLeases.set(masterLease("10.1.0.1"), masterLease("10.1.0.8"), unleased)
	f.start(t)
	t.Cleanup(func() { f.end(t) })
	client := serve(t, f)
	want := []row{{
		Name: "apiservers/10.1.0.1", Key: "/trivet/test/apiservers/10.1.0.1", Source: "SOURCE_SIDECAR",
		Reason: "it is ready", Ready: true, Published: true,
	}, {
		Name: "apiservers/10.1.0.8", Key: "/registry/masterleases/10.1.0.8", Source: "SOURCE_MASTER_LEASE",
		Reason: "it is ready", Ready: true, Published: true,
	}, {
		Name: "apiservers/10.1.0.9", Key: "/registry/masterleases/10.1.0.9", Source: "SOURCE_MASTER_LEASE", Problems: 1,
		Reason: "it is not ready: key /registry/masterleases/10.1.0.9 has no lease, so it would outlive its server; " +
			"delete it if the server is gone",
	}}
	testkit.Eventually(t, 10*time.Second, func() error {
		got, err := client.ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{})
		if err != nil {
			return err
		}
		if diff := cmp.Diff(want, rowsOf(got.GetApiservers())); diff != "" {
			return fmt.Errorf("apiservers (-want +got):\n%s", diff)
		}
		return nil
	})
}

func TestListAPIServers_StaticAddressIsListedBesideServersThatReport(t *testing.T) {
	f := newFixtureWith(t, configured(func(c *EndpointsConfig) { c.Reconciler, c.StaticAddress = "static", "192.0.2.7" }))
	f.keys.put(readyPeer("10.1.0.2"))
	want := []row{{
		Name: "apiservers/10.1.0.2", Key: "/trivet/test/apiservers/10.1.0.2", Source: "SOURCE_SIDECAR", Ready: true, Reason: "endpoints are not chosen from servers that report: see --endpoint-reconciler-type",
	}, {
		Name: "apiservers/192.0.2.7", Source: "SOURCE_STATIC", Ready: true, Reason: "it is --static-apiserver-address, which is published without probes",
	}}
	got, err := serve(t, f).ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, rowsOf(got.GetApiservers())); diff != "" {
		t.Errorf("apiservers (-want +got):\n%s", diff)
	}
}

// The list is needed most when a kube-apiserver is down.
func TestListAPIServers_AnswersWithoutKubernetes(t *testing.T) {
	f := newFixture(t)
	f.keys.put(readyPeer("10.1.0.2"))
	f.objects.failReads(guarded.ErrUnavailable)
	got, err := serve(t, f).ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := []row{{
		Name: "apiservers/10.1.0.2", Key: "/trivet/test/apiservers/10.1.0.2", Source: "SOURCE_SIDECAR", Ready: true, Reason: unknownReason,
	}}
	if diff := cmp.Diff(want, rowsOf(got.GetApiservers())); diff != "" {
		t.Errorf("apiservers (-want +got):\n%s", diff)
	}
}

// next returns the next list of a watch.
func next(t *testing.T, watch interface {
	Recv() (*bootstrapv1.WatchAPIServersResponse, error)
}) []row {
	t.Helper()
	list, err := watch.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return rowsOf(list.GetApiservers())
}

func TestWatchAPIServers_SendsTheListAndThenChanges(t *testing.T) {
	f := newFixture(t)
	f.keys.put(readyPeer("10.1.0.2"))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	watch, err := serve(t, f).WatchAPIServers(ctx, &bootstrapv1.WatchAPIServersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	listed := func(address string) row {
		return row{
			Name: "apiservers/" + address, Key: "/trivet/test/apiservers/" + address, Source: "SOURCE_SIDECAR", Reason: "it is ready", Ready: true,
		}
	}
	if diff := cmp.Diff([]row{listed("10.1.0.2")}, next(t, watch)); diff != "" {
		t.Errorf("first list (-want +got):\n%s", diff)
	}
	again := readyPeer("10.1.0.2")
	again.ProbeTime = time.Now() // a refresh
	f.keys.put(again)
	time.AfterFunc(3*time.Second, func() { f.keys.put(readyPeer("10.1.0.3")) })
	if diff := cmp.Diff([]row{listed("10.1.0.2"), listed("10.1.0.3")}, next(t, watch)); diff != "" {
		t.Errorf("next list (-want +got):\n%s", diff)
	}
	// A change without a written key is found too, and the watch survives an outage of etcd.
	f.keys.fail(fmt.Errorf("%w: no leader", apiserverscontroller.ErrUnavailable), nil)
	time.AfterFunc(3*time.Second, func() {
		f.keys.fail(nil, nil)
		f.objects.failReads(errors.New("gone"))
	})
	lost := []row{listed("10.1.0.2"), listed("10.1.0.3")}
	lost[0].Reason, lost[1].Reason = unknownReason, unknownReason
	if diff := cmp.Diff(lost, next(t, watch)); diff != "" {
		t.Errorf("list without Kubernetes (-want +got):\n%s", diff)
	}
}

func TestWatchAPIServers_EndsWithTheServiceAndFailsWithoutEtcdAtTheStart(t *testing.T) {
	f := newFixture(t)
	client := serve(t, f)
	f.keys.fail(fmt.Errorf("%w: no leader", apiserverscontroller.ErrUnavailable), nil)
	watch, err := client.WatchAPIServers(t.Context(), &bootstrapv1.WatchAPIServersRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	wantError(t, err, codes.Unavailable, api.EtcdUnreachable)
	f.keys.fail(nil, nil)

	f.start(t)
	if watch, err = client.WatchAPIServers(t.Context(), &bootstrapv1.WatchAPIServersRequest{}); err != nil {
		t.Fatal(err)
	}
	next(t, watch)
	f.end(t)
	for err == nil {
		_, err = watch.Recv()
	}
	wantError(t, err, codes.Unavailable, rpcerror.ShuttingDownReason)
}
