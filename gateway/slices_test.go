package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/gateway/internal/api"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// sliceClient runs a gateway over the members and returns a client of its SliceService.
func sliceClient(t *testing.T, members *directory) slicev1.SliceServiceClient {
	t.Helper()
	service := startGateway(t, members, longTimeout)
	return slicev1.NewSliceServiceClient(testkit.Serve(t, service.Register))
}

// newSlicesvcWithServices returns a fake with Services shop/s00 to shop/s(count-1).
func newSlicesvcWithServices(count int, leaders ...string) *fakeSlicesvc {
	p := newSlicesvc(leaders...)
	for i := range count {
		p.put(serviceName("shop", fmt.Sprintf("s%02d", i)), int32(i))
	}
	return p
}

func TestGetServiceSlices_LeaderAnswersElseAnyReplica(t *testing.T) {
	t.Parallel()
	p := newSlicesvcWithServices(8, "r1", "r2", "r3", "r2")
	_, m1 := p.start(t, "r1")
	_, m2 := p.start(t, "r2")
	_, m3 := p.start(t, "r3")
	client := sliceClient(t, newDirectory(m1, m2, m3))
	for name := range p.services {
		answer, err := client.GetServiceSlices(t.Context(), &slicev1.GetServiceSlicesRequest{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		if leader := p.leaders[answer.ServiceSlices.Owner.GetShard()]; answer.Sources[0].ReplicaId != leader || len(answer.ServiceSlices.Syncs) == 0 {
			t.Errorf("%s comes from %s, want its leader %s", name, answer.Sources[0].ReplicaId, leader)
		}
	}

	p.moveAll("")
	answer, err := client.GetServiceSlices(t.Context(), &slicev1.GetServiceSlicesRequest{Name: serviceName("shop", "s01")})
	if err != nil || answer.ServiceSlices.EndpointCount != 1 || answer.Sources[0].Epoch != 0 {
		t.Errorf("without a leader the answer is %v (%v), want one all the same", answer, err)
	}
}

// A replica that was frozen answers as the leader that it was, and faster than its successor.
func TestSliceReads_AnAnswerOfAnEarlierTermDoesNotCount(t *testing.T) {
	t.Parallel()
	p := newSlicesvcWithServices(1, "r2")
	one, m1 := p.start(t, "r1")
	two, m2 := p.start(t, "r2")
	client := sliceClient(t, newDirectory(m1, m2))
	get := func() string {
		t.Helper()
		answer, err := client.GetServiceSlices(t.Context(), &slicev1.GetServiceSlicesRequest{Name: serviceName("shop", "s00")})
		if err != nil {
			t.Fatal(err)
		}
		return answer.Sources[0].ReplicaId
	}
	if from := get(); from != "r2" {
		t.Fatalf("the answer comes from %s, want r2", from)
	}
	one.former.Store(1)
	two.delay.Store(int64(200 * time.Millisecond))
	if from := get(); from != "r2" {
		t.Errorf("the answer comes from %s, which led an earlier term; want the leader r2", from)
	}
	two.hanging.Store(true)
	if from := get(); from != "r1" {
		t.Errorf("the answer comes from %s, want r1 if no other replica answers", from)
	}
}

func TestSliceReads_HangingLeaderDelaysNoOtherReplica(t *testing.T) {
	t.Parallel()
	p := newSlicesvcWithServices(1, "r1")
	one, m1 := p.start(t, "r1")
	_, m2 := p.start(t, "r2")
	one.hanging.Store(true)
	client := sliceClient(t, newDirectory(m1, m2))

	answer, err := client.GetServiceSlices(t.Context(), &slicev1.GetServiceSlicesRequest{Name: serviceName("shop", "s00")})
	if err != nil || answer.Sources[0].ReplicaId != "r2" {
		t.Errorf("GetServiceSlices() = %v, %v; want the answer of r2", answer, err)
	}
	list, err := client.ListServiceSlices(t.Context(), &slicev1.ListServiceSlicesRequest{})
	if err != nil || len(list.ServiceSlices) != 1 || len(list.Missing) != 1 || list.Missing[0].ReplicaId != "r1" {
		t.Errorf("ListServiceSlices() = %v, %v; want one Service, and r1 missing", list, err)
	}
}

func TestSliceReads_AnswersPassUnchanged(t *testing.T) {
	t.Parallel()
	p := newSlicesvcWithServices(1, "r1")
	_, m1 := p.start(t, "r1")
	_, m2 := p.start(t, "r2")
	client := sliceClient(t, newDirectory(m1, m2))
	name := serviceName("shop", "s00")

	plan, err := client.PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: name})
	if err != nil || len(plan.Plan.Changes) != 1 || plan.Sources[0].ReplicaId != "r1" {
		t.Errorf("PlanService() = %v, %v; want the leader's", plan, err)
	}
	chain, err := client.ExplainEndpoint(t.Context(), &slicev1.ExplainEndpointRequest{Name: name, Endpoint: &slicev1.ExplainEndpointRequest_Pod{Pod: "web-0"}})
	if err != nil || !chain.Included || chain.BrokenIndex != nil || chain.Evidence[0].ReplicaId != "r1" || chain.Evidence[0].Message != "web-0" {
		t.Errorf("ExplainEndpoint() = %v, %v; want the leader's", chain, err)
	}
	_, err = client.PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: serviceName("shop", "none")})
	checkReason(t, err, codes.NotFound, "SERVICE_NOT_FOUND")
	_, err = client.PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: "services/none"})
	checkReason(t, err, codes.InvalidArgument, rpcerror.ValidationFailedReason)
	_, err = client.ListServiceSlices(t.Context(), &slicev1.ListServiceSlicesRequest{PageToken: "pforged"})
	checkReason(t, err, codes.InvalidArgument, rpcerror.InvalidPageTokenReason)
}

// A cache that lags does not have a new object, and still has one that is gone.
func TestSliceReads_NotFoundNeedsTheLeaderOrAllReplicas(t *testing.T) {
	t.Parallel()
	there, absent := serviceName("shop", "s00"), serviceName("shop", "none")
	for name, c := range map[string]struct {
		prepare func(leader, lagging, newest *sliceReplica)
		service string
		reason  rpcerror.Reason // "" for an answer
	}{
		"the leader answers NOT_FOUND": {
			prepare: func(_, _, newest *sliceReplica) { newest.hanging.Store(true) }, service: absent, reason: "SERVICE_NOT_FOUND",
		},
		"a lagging replica answers NOT_FOUND, the others hang": {
			prepare: func(leader, lagging, newest *sliceReplica) {
				leader.hanging.Store(true)
				newest.hanging.Store(true)
				lagging.lagging.Store(true)
			}, service: there, reason: api.ReplicasUnreachableReason,
		},
		"a lagging replica answers NOT_FOUND, a newer one has it": {
			prepare: func(leader, lagging, _ *sliceReplica) {
				leader.hanging.Store(true)
				lagging.lagging.Store(true)
			}, service: there,
		},
		"no leader, all replicas answer NOT_FOUND": {
			prepare: func(leader, _, _ *sliceReplica) { leader.service.moveAll("") }, service: absent, reason: "SERVICE_NOT_FOUND",
		},
		"no leader, the newest cache answers NOT_FOUND": {
			prepare: func(leader, _, newest *sliceReplica) {
				leader.service.moveAll("")
				newest.lagging.Store(true)
			}, service: there, reason: "SERVICE_NOT_FOUND",
		},
		"the leader syncs, the others answer NOT_FOUND": {
			prepare: func(leader, _, _ *sliceReplica) { leader.syncing.Store(true) }, service: absent, reason: api.ReplicasUnreachableReason,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newSlicesvcWithServices(1, "r1")
			leader, m1 := p.start(t, "r1")
			lagging, m2 := p.start(t, "r2")
			newest, m3 := p.start(t, "r3-newest")
			c.prepare(leader, lagging, newest)
			_, err := sliceClient(t, newDirectory(m1, m2, m3)).PlanServiceSlices(t.Context(), &slicev1.PlanServiceSlicesRequest{Name: c.service})
			if got := rpcerror.ReasonOf(err); got != c.reason {
				t.Errorf("PlanService() = %v, want reason %q", err, c.reason)
			}
		})
	}
}

func TestSliceReads_NoReplicaAnswers(t *testing.T) {
	t.Parallel()
	p := newSlicesvcWithServices(1, "r1")
	syncing, m1 := p.start(t, "r1")
	syncing.syncing.Store(true)
	gone := dead(t, "slicesvc", "r2")
	client := sliceClient(t, newDirectory(m1, gone))
	_, err := client.GetServiceSlices(t.Context(), &slicev1.GetServiceSlicesRequest{Name: serviceName("shop", "s00")})
	checkNoSource(t, err, "slicesvc r1", "pods are being listed", "slicesvc r2", "refused")
	_, err = client.ReconcileServiceSlices(t.Context(), &slicev1.ReconcileServiceSlicesRequest{Name: serviceName("shop", "s00")})
	if rpcerror.ReasonOf(err) == "" {
		t.Errorf("ReconcileService() = %v, want a reason", err)
	}
}

func TestReconcileService_GoesToTheLeader(t *testing.T) {
	t.Parallel()
	p := newSlicesvcWithServices(4, "r1", "r2")
	_, m1 := p.start(t, "r1")
	_, m2 := p.start(t, "r2")
	client := sliceClient(t, newDirectory(m1, m2))
	for _, leader := range []string{"r1", "r2", "r1"} {
		p.moveAll(leader)
		answer, err := client.ReconcileServiceSlices(t.Context(), &slicev1.ReconcileServiceSlicesRequest{Name: serviceName("shop", "s02")})
		if err != nil || answer.Plan.Changes[0].Outcome != metav1.Change_OUTCOME_APPLIED || answer.Sources[0].ReplicaId != leader {
			t.Errorf("ReconcileService() = %v, %v; want it done by %s", answer, err, leader)
		}
	}
	p.moveAll("")
	_, err := client.ReconcileServiceSlices(t.Context(), &slicev1.ReconcileServiceSlicesRequest{Name: serviceName("shop", "s02")})
	checkReason(t, err, codes.Unavailable, rpcerror.NoLeaderReason)
	answer, err := client.ReconcileServiceSlices(t.Context(), &slicev1.ReconcileServiceSlicesRequest{Name: serviceName("shop", "s02"), ValidateOnly: true})
	if err != nil || answer.Plan.Changes[0].Outcome != metav1.Change_OUTCOME_PLANNED {
		t.Errorf("validate_only gives %v (%v), want an answer of any replica", answer, err)
	}
}

func TestListServiceSlices_EachServiceOnceFromItsLeader(t *testing.T) {
	t.Parallel()
	p := newSlicesvcWithServices(25, "r1", "r2", "r3", "r1")
	p.put(serviceName("else", "far"), 1)
	_, m1 := p.start(t, "r1")
	_, m2 := p.start(t, "r2")
	_, m3 := p.start(t, "r3")
	client := sliceClient(t, newDirectory(m1, m2, m3))
	for _, size := range []int32{0, 1, 7, 25, 5000} {
		var got, want []string
		for i := range 25 {
			want = append(want, serviceName("shop", fmt.Sprintf("s%02d", i)))
		}
		request := &slicev1.ListServiceSlicesRequest{Parent: "namespaces/shop", PageSize: size}
		for pages := 0; ; pages++ {
			page, err := client.ListServiceSlices(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			if size > 0 && len(page.ServiceSlices) > int(size) || pages > 30 {
				t.Fatalf("page %d by %d has %d Services", pages, size, len(page.ServiceSlices))
			}
			for _, service := range page.ServiceSlices {
				got = append(got, service.Name)
				if len(service.Syncs) == 0 {
					t.Errorf("%s was not reported by its leader", service.Name)
				}
			}
			if request.PageToken = page.NextPageToken; request.PageToken == "" {
				break
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("by %d (-want +got):\n%s", size, diff)
		}
	}
}

// watchedSlices is a client of WatchServiceSlices that keeps the Services.
type watchedSlices struct {
	t      *testing.T
	stream grpc.ServerStreamingClient[slicev1.WatchServiceSlicesResponse]
	seen   map[string]*slicev1.ServiceSlices
}

func watchSlices(t *testing.T, client slicev1.SliceServiceClient, parent string) *watchedSlices {
	t.Helper()
	stream, err := client.WatchServiceSlices(t.Context(), &slicev1.WatchServiceSlicesRequest{Parent: parent})
	if err != nil {
		t.Fatal(err)
	}
	return &watchedSlices{t: t, stream: stream, seen: map[string]*slicev1.ServiceSlices{}}
}

// until receives events up to one that is accepted. A contradiction fails the test.
func (w *watchedSlices) until(accepts func(*slicev1.WatchServiceSlicesResponse) bool) {
	w.t.Helper()
	for {
		event, err := w.stream.Recv()
		if err != nil {
			w.t.Fatal(err)
		}
		name := event.ServiceSlices.GetName()
		known := w.seen[name] != nil
		switch event.Type {
		case added, modified:
			if known != (event.Type == modified) {
				w.t.Fatalf("%v, and the client has it: %v", event, known)
			}
			w.seen[name] = event.ServiceSlices
		case deleted:
			if !known {
				w.t.Fatalf("%v although it was never added", event)
			}
			delete(w.seen, name)
		}
		if accepts(event) {
			return
		}
	}
}

func isBookmark(event *slicev1.WatchServiceSlicesResponse) bool {
	return event.Type == bookmark && len(event.Bookmark.Missing) == 0
}

func TestWatchServiceSlices_MergesAllReplicas(t *testing.T) {
	t.Parallel()
	p := newSlicesvcWithServices(6, "r1", "r2")
	p.put(serviceName("else", "far"), 1)
	_, m1 := p.start(t, "r1")
	_, m2 := p.start(t, "r2")
	members := newDirectory(m1, m2)
	watcher := watchSlices(t, sliceClient(t, members), "namespaces/shop")
	watcher.until(isBookmark)
	if len(watcher.seen) != 6 {
		t.Errorf("%d Services until the bookmark, want 6: %v", len(watcher.seen), watcher.seen)
	}
	for name, service := range watcher.seen {
		if len(service.Syncs) == 0 || service.Owner.Epoch == 0 {
			t.Errorf("%s was not reported by its leader: %v", name, service)
		}
	}

	changed := serviceName("shop", "s03")
	p.put(changed, 50)
	watcher.until(func(event *slicev1.WatchServiceSlicesResponse) bool {
		return event.ServiceSlices.GetName() == changed && event.ServiceSlices.GetEndpointCount() == 50
	})
	started := time.Now()
	p.remove(changed)
	watcher.until(func(event *slicev1.WatchServiceSlicesResponse) bool {
		return event.Type == deleted
	})
	if took := time.Since(started); took > 5*time.Second {
		t.Errorf("the removal of a Service took %s", took)
	}

	// Services of a dead leader stay, and the next leader reports them.
	p.moveAll("r2")
	members.set(m2)
	watcher.until(func(*slicev1.WatchServiceSlicesResponse) bool {
		for _, service := range watcher.seen {
			if service.Owner.Epoch < 13 {
				return false
			}
		}
		return true
	})
	if len(watcher.seen) != 5 {
		t.Errorf("%d Services after the leader went, want 5", len(watcher.seen))
	}
}

// Without any leader no Service is lost when a replica is replaced.
func TestWatchServiceSlices_WithoutLeadersServicesStay(t *testing.T) {
	t.Parallel()
	p := newSlicesvcWithServices(3, "")
	_, m1 := p.start(t, "r1")
	_, m2 := p.start(t, "r2")
	members := newDirectory(m1, m2)
	watcher := watchSlices(t, sliceClient(t, members), "")
	watcher.until(func(event *slicev1.WatchServiceSlicesResponse) bool {
		return event.Type == bookmark && cmp.Equal(missingOf(event.Bookmark.Missing), []string{" UNAVAILABLE [0]"})
	})
	members.set(m1)
	p.put(serviceName("shop", "s00"), 7)
	watcher.until(func(event *slicev1.WatchServiceSlicesResponse) bool {
		return event.ServiceSlices.GetEndpointCount() == 7
	})
	if len(watcher.seen) != 3 {
		t.Errorf("%d Services are left, want 3", len(watcher.seen))
	}
}

func TestWatchServiceSlices_NoReplicaAnswers(t *testing.T) {
	t.Parallel()
	stream, err := sliceClient(t, newDirectory(dead(t, "slicesvc", "r1"))).WatchServiceSlices(t.Context(), &slicev1.WatchServiceSlicesRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	checkNoSource(t, err, "slicesvc r1", "refused")
}

func TestHTTP_RoutesOfSlices(t *testing.T) {
	t.Parallel()
	p := newSlicesvcWithServices(3, "r1")
	_, m1 := p.start(t, "r1")
	service := startGateway(t, newDirectory(m1), longTimeout)
	for path, want := range map[string]string{
		"/v1/serviceslices":                                       `"name":"namespaces/shop/serviceslices/s02"`,
		"/v1/serviceslices?pageSize=1":                            `"nextPageToken":"p`,
		"/v1/namespaces/shop/serviceslices":                       `"name":"namespaces/shop/serviceslices/s00"`,
		"/v1/namespaces/none/serviceslices":                       `"serviceSlices":[]`,
		"/v1/namespaces/shop/serviceslices/s01":                   `"endpointCount":1`,
		"/v1/namespaces/shop/serviceslices/s01:explain?pod=web-0": `"message":"web-0"`,
	} {
		response, body := send(t, service, http.MethodGet, path)
		if response.StatusCode != http.StatusOK || !strings.Contains(strings.ReplaceAll(string(body), `": `, `":`), want) {
			t.Errorf("%s: %s: %s, want 200 with %s", path, response.Status, body, want)
		}
	}
}

func TestHTTP_ReconcilesNothing(t *testing.T) {
	t.Parallel()
	p := newSlicesvcWithServices(1, "r1")
	one, m1 := p.start(t, "r1")
	service := startGateway(t, newDirectory(m1), longTimeout)
	const path = "/v1/namespaces/shop/serviceslices/s00:reconcile"
	for _, body := range []string{"", "{}", `{"validateOnly": false}`} {
		if response, answer := postJSON(t, service, path, body); response.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%q: %s: %s, want 405", body, response.Status, answer)
		}
	}
	if calls := one.calls.Load(); calls != 0 {
		t.Errorf("%d calls reached the replica", calls)
	}
	response, answer := postJSON(t, service, path, `{"validateOnly": true}`)
	if response.StatusCode != http.StatusOK || !strings.Contains(string(answer), "OUTCOME_PLANNED") {
		t.Errorf("with validateOnly: %s: %s, want the plan", response.Status, answer)
	}
	response, answer = postJSON(t, service, "/v1/namespaces/shop/serviceslices/s00:plan", "{}")
	if response.StatusCode != http.StatusOK || !strings.Contains(string(answer), "ENDPOINTS_CHANGED") {
		t.Errorf("a plan: %s: %s", response.Status, answer)
	}
}
