package bootstrapsvc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/api"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestListAPIServers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f.keys.put(apiserverscontroller.Entry{
		Address: netip.MustParseAddr("10.1.0.2"), Port: 6443, Ready: true, Detail: "ok", ProbeTime: at, ReplicaID: "other-2",
	})
	f.keys.put(apiserverscontroller.Entry{
		Address: netip.MustParseAddr("10.1.0.1"), Unreadable: "the value is not a JSON object of the known kind",
	})
	published := func(reason, message string) *metav1.Condition {
		return &metav1.Condition{Type: "Published", Status: metav1.Condition_STATUS_FALSE, Reason: reason, Message: message}
	}
	const problem = "key /trivet/test/apiservers/10.1.0.1: the value is not a JSON object of the known kind"
	want := []*bootstrapv1.APIServer{{
		Name: "apiservers/10.1.0.1", Address: "10.1.0.1", Ttl: durationpb.New(5 * time.Second),
		EtcdKey: "/trivet/test/apiservers/10.1.0.1", RegistrationSource: bootstrapv1.APIServer_REGISTRATION_SOURCE_SIDECAR,
		ProbeDetail: problem,
		Conditions: []*metav1.Condition{
			published("NOT_READY", "it is not ready: "+problem),
			{Type: "Registered", Status: metav1.Condition_STATUS_FALSE, Reason: "APISERVER_KEY_UNREADABLE", Message: problem},
		},
	}, {
		Name: "apiservers/10.1.0.2", Address: "10.1.0.2", Port: 6443, Ready: true, ProbeDetail: "ok",
		ProbeTime: timestamppb.New(at), ReplicaId: "other-2", Ttl: durationpb.New(5 * time.Second),
		EtcdKey: "/trivet/test/apiservers/10.1.0.2", RegistrationSource: bootstrapv1.APIServer_REGISTRATION_SOURCE_SIDECAR,
		Conditions: []*metav1.Condition{published("READY", "it is ready")},
	}}
	got, err := serve(t, f).ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.GetApiservers(), protocmp.Transform()); diff != "" {
		t.Errorf("apiservers (-want +got):\n%s", diff)
	}
}

// row is the part of a listed server that most tests compare.
type row struct {
	Name, Key, Source string
	Ready             bool
	Published, Reason string
	Problem           string
}

func rowOf(s *bootstrapv1.APIServer) row {
	r := row{
		Name: s.GetName(), Key: s.GetEtcdKey(), Ready: s.GetReady(),
		Source: strings.TrimPrefix(s.GetRegistrationSource().String(), "REGISTRATION_SOURCE_"),
	}
	for _, condition := range s.GetConditions() {
		switch condition.GetType() {
		case "Published":
			r.Published, r.Reason = strings.TrimPrefix(condition.GetStatus().String(), "STATUS_"), condition.GetReason()
		case "Registered":
			r.Problem = condition.GetReason()
		}
	}
	return r
}

func rowsOf(servers []*bootstrapv1.APIServer) []row {
	var rows []row
	for _, s := range servers {
		rows = append(rows, rowOf(s))
	}
	return rows
}

func TestListAPIServers_HasSourceAndReasonOfEachServer(t *testing.T) {
	t.Parallel()
	f := newFixtureWith(t, configured(func(c *EndpointsConfig) { c.AdoptMasterLeases = true }))
	unleased := masterLease("10.1.0.9")
	unleased.Leased, unleased.Alive = false, false
	f.masterLeases.set(masterLease("10.1.0.1"), masterLease("10.1.0.8"), unleased)
	f.start(t)
	t.Cleanup(func() { f.end(t) })
	client := serve(t, f)
	want := []row{{
		Name: "apiservers/10.1.0.1", Key: "/trivet/test/apiservers/10.1.0.1", Source: "SIDECAR",
		Reason: "READY", Ready: true, Published: "TRUE",
	}, {
		Name: "apiservers/10.1.0.8", Key: "/registry/masterleases/10.1.0.8", Source: "MASTER_LEASE",
		Reason: "READY", Ready: true, Published: "TRUE",
	}, {
		Name: "apiservers/10.1.0.9", Key: "/registry/masterleases/10.1.0.9", Source: "MASTER_LEASE", Problem: "APISERVER_KEY_UNLEASED",
		Reason: "NOT_READY", Published: "FALSE",
	}}
	testkit.Eventually(t, time.Minute, func() error {
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
	t.Parallel()
	f := newFixtureWith(t, configured(func(c *EndpointsConfig) { c.Reconciler, c.StaticAddress = "static", "192.0.2.7" }))
	f.keys.put(readyPeer("10.1.0.2"))
	want := []row{{
		Name: "apiservers/10.1.0.2", Key: "/trivet/test/apiservers/10.1.0.2", Source: "SIDECAR", Ready: true, Published: "FALSE", Reason: "NOT_SELECTED",
	}, {
		Name: "apiservers/192.0.2.7", Source: "STATIC", Ready: true, Published: "FALSE", Reason: "STATIC_ADDRESS",
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
	t.Parallel()
	f := newFixture(t)
	f.keys.put(readyPeer("10.1.0.2"))
	f.objects.failReads(guarded.ErrUnavailable)
	got, err := serve(t, f).ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := []row{{
		Name: "apiservers/10.1.0.2", Key: "/trivet/test/apiservers/10.1.0.2", Source: "SIDECAR", Ready: true, Published: "UNKNOWN", Reason: "APISERVER_UNREACHABLE",
	}}
	if diff := cmp.Diff(want, rowsOf(got.GetApiservers())); diff != "" {
		t.Errorf("apiservers (-want +got):\n%s", diff)
	}
}

func TestGetAPIServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keys.put(readyPeer("10.1.0.2"))
	client := serve(t, f)
	got, err := client.GetAPIServer(t.Context(), &bootstrapv1.GetAPIServerRequest{Name: "apiservers/10.1.0.2"})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetApiserver().GetAddress() != "10.1.0.2" || len(got.GetSources()) != 1 {
		t.Errorf("answer = %v, want the kube-apiserver and one source", got)
	}
	_, err = client.GetAPIServer(t.Context(), &bootstrapv1.GetAPIServerRequest{Name: "apiservers/10.1.0.3"})
	wantError(t, err, codes.NotFound, api.APIServerNotFound)
}

func TestListAPIServers_Pages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	want := []string{"10.1.0.2", "10.1.0.9", "10.1.0.10", "10.1.0.11", "fd00::1"}
	for _, address := range want {
		f.keys.put(readyPeer(address))
	}
	client := serve(t, f)
	var got []string
	request := &bootstrapv1.ListAPIServersRequest{PageSize: 2}
	for pages := 1; ; pages++ {
		page, err := client.ListAPIServers(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		if isFirst := pages == 1; isFirst != (page.GetResumeToken() != "") {
			t.Errorf("page %d has the resume token %q, want one on the first page only", pages, page.GetResumeToken())
		}
		for _, server := range page.GetApiservers() {
			got = append(got, server.GetAddress())
		}
		if request.PageToken = page.GetNextPageToken(); request.GetPageToken() == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("addresses of all pages (-want +got):\n%s", diff)
	}
	_, err := client.ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{PageToken: "of another list"})
	wantError(t, err, codes.InvalidArgument, rpcerror.InvalidPageTokenReason)
}

// next returns the next event of a watch of kube-apiservers: its type, and the address or what is
// missing.
func next(t *testing.T, watch grpc.ServerStreamingClient[bootstrapv1.WatchAPIServersResponse]) (string, *bootstrapv1.WatchAPIServersResponse) {
	t.Helper()
	event, err := watch.Recv()
	if err != nil {
		t.Fatal(err)
	}
	text := strings.TrimPrefix(event.GetType().String(), "EVENT_TYPE_") + " " + event.GetApiserver().GetAddress()
	for _, missing := range event.GetBookmark().GetMissing() {
		text += "without " + missing.GetReplicaId() + ": " + missing.GetCode().String()
	}
	return text, event
}

func wantEvent(t *testing.T, watch grpc.ServerStreamingClient[bootstrapv1.WatchAPIServersResponse], want string) *bootstrapv1.WatchAPIServersResponse {
	t.Helper()
	got, event := next(t, watch)
	if got != want {
		t.Fatalf("event %q, want %q", got, want)
	}
	return event
}

func TestWatchAPIServers_SendsServersAndChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keys.put(readyPeer("10.1.0.2"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := serve(t, f)
	watch, err := client.WatchAPIServers(ctx, &bootstrapv1.WatchAPIServersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	wantEvent(t, watch, "ADDED 10.1.0.2")
	initial := wantEvent(t, watch, "BOOKMARK ")
	if !initial.GetBookmark().GetInitialEventsEnd() || initial.GetBookmark().GetSources()[0].GetReplicaId() != "self-1" {
		t.Errorf("bookmark = %v, want the end of the initial events from replica self-1", initial)
	}
	again := readyPeer("10.1.0.2")
	again.ProbeTime = time.Now() // a refresh is no change
	f.keys.put(again)
	f.keys.put(readyPeer("10.1.0.3"))
	wantEvent(t, watch, "ADDED 10.1.0.3")

	// A change without a written key is found, too.
	f.objects.failReads(errors.New("gone"))
	for range 2 {
		if text, event := next(t, watch); event.GetType() != metav1.EventType_EVENT_TYPE_MODIFIED || rowOf(event.GetApiserver()).Published != "UNKNOWN" {
			t.Errorf("event %q with %v, want it MODIFIED to unknown", text, event)
		}
	}
	f.objects.failReads(nil)
	for range 2 {
		if _, event := next(t, watch); rowOf(event.GetApiserver()).Published != "FALSE" {
			t.Errorf("event %v, want it known again", event)
		}
	}

	// An outage of etcd is named in a bookmark, and so is its end.
	f.keys.fail(fmt.Errorf("%w: no leader", apiserverscontroller.ErrUnavailable), nil)
	wantEvent(t, watch, "BOOKMARK without self-1: UNAVAILABLE")
	f.keys.fail(nil, nil)
	last := wantEvent(t, watch, "BOOKMARK ")

	resumed, err := client.WatchAPIServers(ctx, &bootstrapv1.WatchAPIServersRequest{ResumeToken: last.GetResumeToken()})
	if err != nil {
		t.Fatal(err)
	}
	wantEvent(t, resumed, "BOOKMARK ")
}

func TestWatchAPIServers_GoesOnAfterAList(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keys.put(readyPeer("10.1.0.2"))
	client := serve(t, f)
	list, err := client.ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	f.keys.put(readyPeer("10.1.0.3"))
	watch, err := client.WatchAPIServers(t.Context(), &bootstrapv1.WatchAPIServersRequest{ResumeToken: list.GetResumeToken()})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for {
		_, event := next(t, watch)
		if event.GetType() == metav1.EventType_EVENT_TYPE_BOOKMARK {
			break
		}
		seen[event.GetApiserver().GetAddress()] = true
	}
	if !seen["10.1.0.3"] {
		t.Errorf("events of %v, want 10.1.0.3 that came after the list", seen)
	}
	other, err := client.WatchAPIServers(t.Context(), &bootstrapv1.WatchAPIServersRequest{ResumeToken: "of another process"})
	if err == nil {
		_, err = other.Recv()
	}
	wantError(t, err, codes.OutOfRange, rpcerror.ResumeTokenExpiredReason)
}

func TestWatchAPIServers_EndsWithTheServiceAndFailsWithoutEtcdAtTheStart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := serve(t, f)
	f.keys.fail(fmt.Errorf("%w: no leader", apiserverscontroller.ErrUnavailable), nil)
	watch, err := client.WatchAPIServers(t.Context(), &bootstrapv1.WatchAPIServersRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	wantError(t, err, codes.Unavailable, rpcerror.EtcdUnreachableReason)
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
