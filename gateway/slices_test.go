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
	service := running(t, members, time.Second)
	return gatewayv1.NewSliceServiceClient(testkit.Serve(t, service.Register))
}

// stocked is a pantry with Services shop/s00 to shop/s(count-1).
func stocked(count int, holders ...string) *pantry {
	p := newPantry(holders...)
	for i := range count {
		p.put(serviceName("shop", fmt.Sprintf("s%02d", i)), int32(i))
	}
	return p
}

func TestGetServiceSlices_TheHolderAnswersElseAnyReplica(t *testing.T) {
	p := stocked(8, "r1", "r2", "r3", "r2")
	_, m1 := p.hire(t, "r1")
	_, m2 := p.hire(t, "r2")
	_, m3 := p.hire(t, "r3")
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

	p.move("")
	answer, err := client.GetServiceSlices(t.Context(), &gatewayv1.GetServiceSlicesRequest{Name: serviceName("shop", "s01")})
	if err != nil || answer.ServiceSlices.Endpoints != 1 || answer.Freshness.Epoch != 0 {
		t.Errorf("without a holder the answer is %v (%v), want one all the same", answer, err)
	}
}

func TestSliceReads_AHangingHolderCostsItsPartOnly(t *testing.T) {
	p := stocked(1, "r1")
	one, m1 := p.hire(t, "r1")
	_, m2 := p.hire(t, "r2")
	one.stuck.Store(true)
	client := sliceClient(t, newDirectory(m1, m2))

	answer, err := client.GetServiceSlices(t.Context(), &gatewayv1.GetServiceSlicesRequest{Name: serviceName("shop", "s00")})
	if err != nil || answer.Freshness.ReplicaId != "r2" {
		t.Errorf("GetServiceSlices() = %v, %v; want what r2 knows", answer, err)
	}
	list, err := client.ListServiceSlices(t.Context(), &gatewayv1.ListServiceSlicesRequest{})
	if err != nil || len(list.ServiceSlices) != 1 || len(list.Missing) != 1 || list.Missing[0].Replica.Id != "r1" {
		t.Errorf("ListServiceSlices() = %v, %v; want one Service, and r1 missing", list, err)
	}
}

func TestSliceReads_HandOnWhatReplicasSay(t *testing.T) {
	p := stocked(1, "r1")
	_, m1 := p.hire(t, "r1")
	_, m2 := p.hire(t, "r2")
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

// A replica whose watch lags has not seen what is new, and still knows what is gone.
func TestSliceReads_ThatAServiceDoesNotExistIsForThoseToSayWhoKnow(t *testing.T) {
	there, absent := serviceName("shop", "s00"), serviceName("shop", "none")
	for name, c := range map[string]struct {
		prepare func(holder, lagging, newest *packer)
		service string
		reason  rpcerror.Reason // none if there is an answer
	}{
		"the holder says so": {
			prepare: func(_, _, newest *packer) { newest.stuck.Store(true) }, service: absent, reason: "SERVICE_NOT_FOUND",
		},
		"one that lags says so, and the holder cannot be asked": {
			prepare: func(holder, lagging, newest *packer) {
				holder.stuck.Store(true)
				newest.stuck.Store(true)
				lagging.lagging.Store(true)
			}, service: there, reason: api.NoSourceReason,
		},
		"one that lags says so, and another one knows better": {
			prepare: func(holder, lagging, _ *packer) {
				holder.stuck.Store(true)
				lagging.lagging.Store(true)
			}, service: there,
		},
		"nobody holds it, and all say so": {
			prepare: func(holder, _, _ *packer) { holder.pantry.move("") }, service: absent, reason: "SERVICE_NOT_FOUND",
		},
		"nobody holds it, and the newest says that it has gone": {
			prepare: func(holder, _, newest *packer) {
				holder.pantry.move("")
				newest.lagging.Store(true)
			}, service: there, reason: "SERVICE_NOT_FOUND",
		},
		"the holder is being filled, and others say so": {
			prepare: func(holder, _, _ *packer) { holder.filling.Store(true) }, service: absent, reason: api.NoSourceReason,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := stocked(1, "r1")
			holder, m1 := p.hire(t, "r1")
			lagging, m2 := p.hire(t, "r2")
			newest, m3 := p.hire(t, "r3-newest")
			c.prepare(holder, lagging, newest)
			_, err := sliceClient(t, newDirectory(m1, m2, m3)).PlanService(t.Context(), &gatewayv1.PlanServiceRequest{Name: c.service})
			if got := rpcerror.ReasonOf(err); got != c.reason {
				t.Errorf("PlanService() = %v, want reason %q", err, c.reason)
			}
		})
	}
}

func TestSliceReads_NobodyCanBeAsked(t *testing.T) {
	p := stocked(1, "r1")
	filling, m1 := p.hire(t, "r1")
	filling.filling.Store(true)
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
	p := stocked(4, "r1", "r2")
	_, m1 := p.hire(t, "r1")
	_, m2 := p.hire(t, "r2")
	client := sliceClient(t, newDirectory(m1, m2))
	for _, holder := range []string{"r1", "r2", "r1"} {
		p.move(holder)
		answer, err := client.ReconcileService(t.Context(), &gatewayv1.ReconcileServiceRequest{Name: serviceName("shop", "s02")})
		if err != nil || !answer.Applied || answer.Freshness.ReplicaId != holder {
			t.Errorf("ReconcileService() = %v, %v; want it done by %s", answer, err, holder)
		}
	}
	p.move("")
	_, err := client.ReconcileService(t.Context(), &gatewayv1.ReconcileServiceRequest{Name: serviceName("shop", "s02")})
	checkReason(t, err, codes.Unavailable, rpcerror.NotLeaderReason)
	answer, err := client.ReconcileService(t.Context(), &gatewayv1.ReconcileServiceRequest{Name: serviceName("shop", "s02"), ValidateOnly: true})
	if err != nil || answer.Applied {
		t.Errorf("validate_only gives %v (%v), want an answer of anybody", answer, err)
	}
}

func TestListServiceSlices_EveryServiceOnceAndFromItsHolder(t *testing.T) {
	p := stocked(25, "r1", "r2", "r3", "r1")
	p.put(serviceName("else", "far"), 1)
	_, m1 := p.hire(t, "r1")
	_, m2 := p.hire(t, "r2")
	_, m3 := p.hire(t, "r3")
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
					t.Errorf("%s was not told by its holder", service.Name)
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

// watched is one who watches Services.
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

// until takes events until it is so; a contradiction among them fails the test.
func (w *watchedSlices) until(so func(*gatewayv1.WatchServiceSlicesResponse) bool) {
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
				w.t.Fatalf("%v though known is %v", event, known)
			}
			w.seen[name] = event.ServiceSlices
		case slicev1.WatchServiceSlicesResponse_TYPE_DELETED:
			if !known {
				w.t.Fatalf("%v though it was never told", event)
			}
			delete(w.seen, name)
		}
		if so(event) {
			return
		}
	}
}

func isBookmark(event *gatewayv1.WatchServiceSlicesResponse) bool {
	return event.Type == slicev1.WatchServiceSlicesResponse_TYPE_BOOKMARK && len(event.Missing) == 0
}

func TestWatchServiceSlices_IsOneViewOfAllReplicas(t *testing.T) {
	p := stocked(6, "r1", "r2")
	p.put(serviceName("else", "far"), 1)
	_, m1 := p.hire(t, "r1")
	_, m2 := p.hire(t, "r2")
	members := newDirectory(m1, m2)
	watcher := watchSlices(t, sliceClient(t, members), "namespaces/shop")
	watcher.until(isBookmark)
	if len(watcher.seen) != 6 {
		t.Errorf("%d Services until the bookmark, want 6: %v", len(watcher.seen), watcher.seen)
	}
	for name, service := range watcher.seen {
		if service.LastPlan == nil || service.Epoch == 0 {
			t.Errorf("%s was not told by its holder: %v", name, service)
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
		t.Errorf("that a Service is gone took %s to be told", took)
	}

	// A holder that dies takes nothing with it, and its successor knows most from then on.
	p.move("r2")
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

// A fleet whose loop runs nowhere loses no Service when a replica is replaced.
func TestWatchServiceSlices_WithoutHoldersNothingVanishes(t *testing.T) {
	p := stocked(3, "")
	_, m1 := p.hire(t, "r1")
	_, m2 := p.hire(t, "r2")
	members := newDirectory(m1, m2)
	watcher := watchSlices(t, sliceClient(t, members), "")
	watcher.until(isBookmark)
	members.set(m1)
	deadline := time.Now().Add(12 * time.Second) // longer than what is doubted lives on
	watcher.until(func(*gatewayv1.WatchServiceSlicesResponse) bool { return time.Now().After(deadline) })
	if len(watcher.seen) != 3 {
		t.Errorf("%d Services are left, want 3", len(watcher.seen))
	}
}

func TestWatchServiceSlices_NobodyTells(t *testing.T) {
	stream, err := sliceClient(t, newDirectory(dead(t, "slicesvc", "r1"))).WatchServiceSlices(t.Context(), &gatewayv1.WatchServiceSlicesRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	checkNoSource(t, err, "slicesvc r1", "refused")
}

func TestHTTP_RoutesOfSlices(t *testing.T) {
	p := stocked(3, "r1")
	_, m1 := p.hire(t, "r1")
	service := running(t, newDirectory(m1), time.Second)
	for path, want := range map[string]string{
		"/v1/slices":                                               `"name":"namespaces/shop/services/s02"`,
		"/v1/slices?pageSize=1":                                    `"nextPageToken":"p`,
		"/v1/namespaces/shop/slices":                               `"name":"namespaces/shop/services/s00"`,
		"/v1/namespaces/none/slices":                               `"serviceSlices":[]`,
		"/v1/namespaces/shop/services/s01/slices":                  `"endpoints":1`,
		"/v1/namespaces/shop/services/s01/slices:plan":             `"reason":"ENDPOINTS_CHANGED"`,
		"/v1/namespaces/shop/services/s01/endpoints/web-0:explain": `"firstBroken":-1`,
	} {
		response, body := do(t, request(t, service, http.MethodGet, path))
		if response.StatusCode != http.StatusOK || !strings.Contains(strings.ReplaceAll(string(body), `": `, `":`), want) {
			t.Errorf("%s: %s: %s, want 200 with %s", path, response.Status, body, want)
		}
	}
}

// The HTTP server is read only: what writes is asked for over gRPC, which knows its callers.
func TestHTTP_ReconcilesNothing(t *testing.T) {
	p := stocked(1, "r1")
	one, m1 := p.hire(t, "r1")
	service := running(t, newDirectory(m1), time.Second)
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		response, body := do(t, request(t, service, method, "/v1/namespaces/shop/services/s00/slices:reconcile"))
		if response.StatusCode != http.StatusMethodNotAllowed && response.StatusCode != http.StatusNotImplemented && response.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s: %s, want a refusal", method, response.Status, body)
		}
	}
	if calls := one.calls.Load(); calls != 0 {
		t.Errorf("the replica was asked %d times", calls)
	}
}
