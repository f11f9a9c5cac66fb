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
	"github.com/trivet-dev/trivet/internal/testkit"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

// sliceClient runs a gateway over the members and returns a client of its SliceService.
func sliceClient(t *testing.T, members *directory) gatewayv1.SliceServiceClient {
	t.Helper()
	service := startGateway(t, members, time.Second)
	return gatewayv1.NewSliceServiceClient(testkit.Serve(t, service.Register))
}

// newSlicesvcWithServices returns a fake with Services shop/s00 to shop/s(count-1).
func newSlicesvcWithServices(count int, holders ...string) *fakeSlicesvc {
	p := newSlicesvc(holders...)
	for i := range count {
		p.put(serviceName("shop", fmt.Sprintf("s%02d", i)), int32(i))
	}
	return p
}

func TestGetServiceSlices_HolderAnswersElseAnyReplica(t *testing.T) {
	p := newSlicesvcWithServices(8, "r1", "r2", "r3", "r2")
	_, m1 := p.start(t, "r1")
	_, m2 := p.start(t, "r2")
	_, m3 := p.start(t, "r3")
	client := sliceClient(t, newDirectory(m1, m2, m3))
	for name := range p.services {
		answer, err := client.GetServiceSlices(t.Context(), &gatewayv1.GetServiceSlicesRequest{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		if holder := p.holders[answer.ServiceSlices.Shard]; answer.Freshness.ReplicaId != holder || answer.ServiceSlices.LastPlan == nil {
			t.Errorf("%s comes from %s, want its holder %s", name, answer.Freshness.ReplicaId, holder)
		}
	}

	p.moveAll("")
	answer, err := client.GetServiceSlices(t.Context(), &gatewayv1.GetServiceSlicesRequest{Name: serviceName("shop", "s01")})
	if err != nil || answer.ServiceSlices.Endpoints != 1 || answer.Freshness.Epoch != 0 {
		t.Errorf("without a holder the answer is %v (%v), want one all the same", answer, err)
	}
}

func TestSliceReads_HangingHolderDelaysNoOtherReplica(t *testing.T) {
	p := newSlicesvcWithServices(1, "r1")
	one, m1 := p.start(t, "r1")
	_, m2 := p.start(t, "r2")
	one.hanging.Store(true)
	client := sliceClient(t, newDirectory(m1, m2))

	answer, err := client.GetServiceSlices(t.Context(), &gatewayv1.GetServiceSlicesRequest{Name: serviceName("shop", "s00")})
	if err != nil || answer.Freshness.ReplicaId != "r2" {
		t.Errorf("GetServiceSlices() = %v, %v; want the answer of r2", answer, err)
	}
	list, err := client.ListServiceSlices(t.Context(), &gatewayv1.ListServiceSlicesRequest{})
	if err != nil || len(list.ServiceSlices) != 1 || len(list.Missing) != 1 || list.Missing[0].Replica.Id != "r1" {
		t.Errorf("ListServiceSlices() = %v, %v; want one Service, and r1 missing", list, err)
	}
}

func TestSliceReads_AnswersPassUnchanged(t *testing.T) {
	p := newSlicesvcWithServices(1, "r1")
	_, m1 := p.start(t, "r1")
	_, m2 := p.start(t, "r2")
	client := sliceClient(t, newDirectory(m1, m2))
	name := serviceName("shop", "s00")

	plan, err := client.PlanService(t.Context(), &gatewayv1.PlanServiceRequest{Name: name})
	if err != nil || len(plan.Changes) != 1 || plan.Freshness.ReplicaId != "r1" {
		t.Errorf("PlanService() = %v, %v; want the holder's", plan, err)
	}
	chain, err := client.ExplainEndpoint(t.Context(), &gatewayv1.ExplainEndpointRequest{Name: name, Pod: "web-0"})
	if err != nil || !chain.Included || chain.FirstBroken != -1 || chain.Evidence[0].ReplicaId != "r1" || chain.Evidence[0].Finding != "web-0" {
		t.Errorf("ExplainEndpoint() = %v, %v; want the holder's", chain, err)
	}
	_, err = client.PlanService(t.Context(), &gatewayv1.PlanServiceRequest{Name: serviceName("shop", "none")})
	checkReason(t, err, codes.NotFound, "SERVICE_NOT_FOUND")
	_, err = client.PlanService(t.Context(), &gatewayv1.PlanServiceRequest{Name: "services/none"})
	checkReason(t, err, codes.InvalidArgument, rpcerror.ValidationFailedReason)
	_, err = client.ListServiceSlices(t.Context(), &gatewayv1.ListServiceSlicesRequest{PageToken: "pforged"})
	checkReason(t, err, codes.InvalidArgument, rpcerror.InvalidPageTokenReason)
}

// A cache that lags does not have a new object, and still has one that is gone.
func TestSliceReads_NotFoundNeedsTheHolderOrAllReplicas(t *testing.T) {
	there, absent := serviceName("shop", "s00"), serviceName("shop", "none")
	for name, c := range map[string]struct {
		prepare func(holder, lagging, newest *sliceReplica)
		service string
		reason  rpcerror.Reason // "" for an answer
	}{
		"the holder answers NOT_FOUND": {
			prepare: func(_, _, newest *sliceReplica) { newest.hanging.Store(true) }, service: absent, reason: "SERVICE_NOT_FOUND",
		},
		"a lagging replica answers NOT_FOUND, the others hang": {
			prepare: func(holder, lagging, newest *sliceReplica) {
				holder.hanging.Store(true)
				newest.hanging.Store(true)
				lagging.lagging.Store(true)
			}, service: there, reason: api.NoSourceReason,
		},
		"a lagging replica answers NOT_FOUND, a newer one has it": {
			prepare: func(holder, lagging, _ *sliceReplica) {
				holder.hanging.Store(true)
				lagging.lagging.Store(true)
			}, service: there,
		},
		"no holder, all replicas answer NOT_FOUND": {
			prepare: func(holder, _, _ *sliceReplica) { holder.service.moveAll("") }, service: absent, reason: "SERVICE_NOT_FOUND",
		},
		"no holder, the newest cache answers NOT_FOUND": {
			prepare: func(holder, _, newest *sliceReplica) {
				holder.service.moveAll("")
				newest.lagging.Store(true)
			}, service: there, reason: "SERVICE_NOT_FOUND",
		},
		"the holder syncs, the others answer NOT_FOUND": {
			prepare: func(holder, _, _ *sliceReplica) { holder.syncing.Store(true) }, service: absent, reason: api.NoSourceReason,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newSlicesvcWithServices(1, "r1")
			holder, m1 := p.start(t, "r1")
			lagging, m2 := p.start(t, "r2")
			newest, m3 := p.start(t, "r3-newest")
			c.prepare(holder, lagging, newest)
			_, err := sliceClient(t, newDirectory(m1, m2, m3)).PlanService(t.Context(), &gatewayv1.PlanServiceRequest{Name: c.service})
			if got := rpcerror.ReasonOf(err); got != c.reason {
				t.Errorf("PlanService() = %v, want reason %q", err, c.reason)
			}
		})
	}
}

func TestSliceReads_NoReplicaAnswers(t *testing.T) {
	p := newSlicesvcWithServices(1, "r1")
	syncing, m1 := p.start(t, "r1")
	syncing.syncing.Store(true)
	gone := dead(t, "slicesvc", "r2")
	client := sliceClient(t, newDirectory(m1, gone))
	_, err := client.GetServiceSlices(t.Context(), &gatewayv1.GetServiceSlicesRequest{Name: serviceName("shop", "s00")})
	checkNoSource(t, err, "slicesvc r1", "pods are being listed", "slicesvc r2", "refused")
	_, err = client.ReconcileService(t.Context(), &gatewayv1.ReconcileServiceRequest{Name: serviceName("shop", "s00")})
	if rpcerror.ReasonOf(err) == "" {
		t.Errorf("ReconcileService() = %v, want a reason", err)
	}
}

func TestReconcileService_GoesToTheHolder(t *testing.T) {
	p := newSlicesvcWithServices(4, "r1", "r2")
	_, m1 := p.start(t, "r1")
	_, m2 := p.start(t, "r2")
	client := sliceClient(t, newDirectory(m1, m2))
	for _, holder := range []string{"r1", "r2", "r1"} {
		p.moveAll(holder)
		answer, err := client.ReconcileService(t.Context(), &gatewayv1.ReconcileServiceRequest{Name: serviceName("shop", "s02")})
		if err != nil || !answer.Applied || answer.Freshness.ReplicaId != holder {
			t.Errorf("ReconcileService() = %v, %v; want it done by %s", answer, err, holder)
		}
	}
	p.moveAll("")
	_, err := client.ReconcileService(t.Context(), &gatewayv1.ReconcileServiceRequest{Name: serviceName("shop", "s02")})
	checkReason(t, err, codes.Unavailable, rpcerror.NotLeaderReason)
	answer, err := client.ReconcileService(t.Context(), &gatewayv1.ReconcileServiceRequest{Name: serviceName("shop", "s02"), ValidateOnly: true})
	if err != nil || answer.Applied {
		t.Errorf("validate_only gives %v (%v), want an answer of any replica", answer, err)
	}
}

func TestListServiceSlices_EachServiceOnceFromItsHolder(t *testing.T) {
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
		request := &gatewayv1.ListServiceSlicesRequest{Parent: "namespaces/shop", PageSize: size}
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
				if service.LastPlan == nil {
					t.Errorf("%s was not reported by its holder", service.Name)
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
	stream grpc.ServerStreamingClient[gatewayv1.WatchServiceSlicesResponse]
	seen   map[string]*slicev1.ServiceSlices
}

func watchSlices(t *testing.T, client gatewayv1.SliceServiceClient, parent string) *watchedSlices {
	t.Helper()
	stream, err := client.WatchServiceSlices(t.Context(), &gatewayv1.WatchServiceSlicesRequest{Parent: parent})
	if err != nil {
		t.Fatal(err)
	}
	return &watchedSlices{t: t, stream: stream, seen: map[string]*slicev1.ServiceSlices{}}
}

// until receives events up to one that is accepted. A contradiction fails the test.
func (w *watchedSlices) until(accepts func(*gatewayv1.WatchServiceSlicesResponse) bool) {
	w.t.Helper()
	for {
		event, err := w.stream.Recv()
		if err != nil {
			w.t.Fatal(err)
		}
		name := event.ServiceSlices.GetName()
		known := w.seen[name] != nil
		switch event.Type {
		case slicev1.WatchServiceSlicesResponse_TYPE_ADDED, slicev1.WatchServiceSlicesResponse_TYPE_MODIFIED:
			if known != (event.Type == slicev1.WatchServiceSlicesResponse_TYPE_MODIFIED) {
				w.t.Fatalf("%v, and the client has it: %v", event, known)
			}
			w.seen[name] = event.ServiceSlices
		case slicev1.WatchServiceSlicesResponse_TYPE_DELETED:
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

func isBookmark(event *gatewayv1.WatchServiceSlicesResponse) bool {
	return event.Type == slicev1.WatchServiceSlicesResponse_TYPE_BOOKMARK && len(event.Missing) == 0
}

func TestWatchServiceSlices_MergesAllReplicas(t *testing.T) {
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
		if service.LastPlan == nil || service.Epoch == 0 {
			t.Errorf("%s was not reported by its holder: %v", name, service)
		}
	}

	changed := serviceName("shop", "s03")
	p.put(changed, 50)
	watcher.until(func(event *gatewayv1.WatchServiceSlicesResponse) bool {
		return event.ServiceSlices.GetName() == changed && event.ServiceSlices.GetEndpoints() == 50
	})
	started := time.Now()
	p.remove(changed)
	watcher.until(func(event *gatewayv1.WatchServiceSlicesResponse) bool {
		return event.Type == slicev1.WatchServiceSlicesResponse_TYPE_DELETED
	})
	if took := time.Since(started); took > 5*time.Second {
		t.Errorf("the removal of a Service took %s", took)
	}

	// Services of a dead holder stay, and the next holder reports them.
	p.moveAll("r2")
	members.set(m2)
	watcher.until(func(*gatewayv1.WatchServiceSlicesResponse) bool {
		for _, service := range watcher.seen {
			if service.Epoch < 13 {
				return false
			}
		}
		return true
	})
	if len(watcher.seen) != 5 {
		t.Errorf("%d Services after the holder went, want 5", len(watcher.seen))
	}
}

// Without any holder no Service is lost when a replica is replaced.
func TestWatchServiceSlices_WithoutHoldersServicesStay(t *testing.T) {
	p := newSlicesvcWithServices(3, "")
	_, m1 := p.start(t, "r1")
	_, m2 := p.start(t, "r2")
	members := newDirectory(m1, m2)
	watcher := watchSlices(t, sliceClient(t, members), "")
	watcher.until(isBookmark)
	members.set(m1)
	deadline := time.Now().Add(12 * time.Second) // longer than merge.Hold
	watcher.until(func(*gatewayv1.WatchServiceSlicesResponse) bool { return time.Now().After(deadline) })
	if len(watcher.seen) != 3 {
		t.Errorf("%d Services are left, want 3", len(watcher.seen))
	}
}

func TestWatchServiceSlices_NoReplicaAnswers(t *testing.T) {
	stream, err := sliceClient(t, newDirectory(dead(t, "slicesvc", "r1"))).WatchServiceSlices(t.Context(), &gatewayv1.WatchServiceSlicesRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	checkNoSource(t, err, "slicesvc r1", "refused")
}

func TestHTTP_RoutesOfSlices(t *testing.T) {
	p := newSlicesvcWithServices(3, "r1")
	_, m1 := p.start(t, "r1")
	service := startGateway(t, newDirectory(m1), time.Second)
	for path, want := range map[string]string{
		"/v1/slices":                                               `"name":"namespaces/shop/services/s02"`,
		"/v1/slices?pageSize=1":                                    `"nextPageToken":"p`,
		"/v1/namespaces/shop/slices":                               `"name":"namespaces/shop/services/s00"`,
		"/v1/namespaces/none/slices":                               `"serviceSlices":[]`,
		"/v1/namespaces/shop/services/s01/slices":                  `"endpoints":1`,
		"/v1/namespaces/shop/services/s01/slices:plan":             `"reason":"ENDPOINTS_CHANGED"`,
		"/v1/namespaces/shop/services/s01/endpoints/web-0:explain": `"firstBroken":-1`,
	} {
		response, body := send(t, service, http.MethodGet, path)
		if response.StatusCode != http.StatusOK || !strings.Contains(strings.ReplaceAll(string(body), `": `, `":`), want) {
			t.Errorf("%s: %s: %s, want 200 with %s", path, response.Status, body, want)
		}
	}
}

// The HTTP server is read only.
func TestHTTP_ReconcilesNothing(t *testing.T) {
	p := newSlicesvcWithServices(1, "r1")
	one, m1 := p.start(t, "r1")
	service := startGateway(t, newDirectory(m1), time.Second)
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		response, body := send(t, service, method, "/v1/namespaces/shop/services/s00/slices:reconcile")
		if response.StatusCode != http.StatusMethodNotAllowed && response.StatusCode != http.StatusNotImplemented && response.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s: %s, want an error", method, response.Status, body)
		}
	}
	if calls := one.calls.Load(); calls != 0 {
		t.Errorf("%d calls reached the replica", calls)
	}
}
