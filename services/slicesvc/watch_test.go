package slicesvc_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func candidateOf(deps slicesvc.Deps) *termtest.Candidate {
	return deps.Leadership.(*termtest.Candidate)
}

type watchStream = grpc.ServerStreamingClient[slicev1.WatchServiceSlicesResponse]

func startWatch(t *testing.T, client slicev1.SliceServiceClient, parent string) watchStream {
	t.Helper()
	stream, err := client.WatchServiceSlices(t.Context(), &slicev1.WatchServiceSlicesRequest{Parent: parent})
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// receiveUntil returns the first event with the condition.
func receiveUntil(t *testing.T, stream watchStream, condition func(*slicev1.WatchServiceSlicesResponse) bool) *slicev1.WatchServiceSlicesResponse {
	t.Helper()
	for {
		event, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if condition(event) {
			return event
		}
	}
}

func TestWatchServiceSlices_SendsAllThenABookmarkThenChanges(t *testing.T) {
	deps := fakeDeps(t,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}},
		slicetest.Service("api"), slicetest.Service("web"), slicetest.Pod("web-0", "10.1.0.1"),
		slicetest.Service("other", func(service *corev1.Service) { service.Namespace = "else" }),
	)
	_, client, _ := run(t, deps)
	ready(t, deps)
	stream := startWatch(t, client, "namespaces/shop")

	for _, want := range []string{"namespaces/shop/services/api", "namespaces/shop/services/web"} {
		event, err := stream.Recv()
		if err != nil || event.Type != slicev1.WatchServiceSlicesResponse_TYPE_ADDED || event.ServiceSlices.GetName() != want {
			t.Fatalf("event is %v (%v), want that %s was added", event, err, want)
		}
	}
	if event, err := stream.Recv(); err != nil || event.Type != slicev1.WatchServiceSlicesResponse_TYPE_BOOKMARK || event.Freshness == nil {
		t.Fatalf("event is %v (%v), want a bookmark", event, err)
	}

	if _, err := clientsetOf(deps).CoreV1().Pods("shop").Create(t.Context(), slicetest.Pod("web-1", "10.1.0.2"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	receiveUntil(t, stream, func(event *slicev1.WatchServiceSlicesResponse) bool {
		slices := event.ServiceSlices
		return slices.GetName() == "namespaces/shop/services/web" && slices.GetEndpoints() == 2 && slices.GetReadyEndpoints() == 2 &&
			slices.GetIdealSlices() == 1 && slices.GetEpoch() != 0 && slices.GetLastPlan().GetTime() != nil
	})
	if err := clientsetOf(deps).CoreV1().Services("shop").Delete(t.Context(), "api", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deleted := receiveUntil(t, stream, func(event *slicev1.WatchServiceSlicesResponse) bool {
		return event.Type == slicev1.WatchServiceSlicesResponse_TYPE_DELETED
	})
	if deleted.ServiceSlices.GetName() != "namespaces/shop/services/api" || deleted.ServiceSlices.GetUid() != "uid-of-api" {
		t.Errorf("deleted is %v, want api with its UID", deleted.ServiceSlices)
	}
}

// The epoch of a Service changes when the replica acquires or loses its shard, so the Service is
// sent again.
func TestWatchServiceSlices_SendsServicesWhenATermBeginsAndEnds(t *testing.T) {
	deps := fakeDeps(t, slicetest.Service("web"))
	candidateOf(deps).Lose()
	_, client, _ := run(t, deps)
	ready(t, deps)
	stream := startWatch(t, client, "")
	receiveUntil(t, stream, func(event *slicev1.WatchServiceSlicesResponse) bool {
		return event.Type == slicev1.WatchServiceSlicesResponse_TYPE_BOOKMARK
	})

	candidateOf(deps).Regain()
	receiveUntil(t, stream, func(event *slicev1.WatchServiceSlicesResponse) bool { return event.ServiceSlices.GetEpoch() != 0 })
	candidateOf(deps).Lose()
	receiveUntil(t, stream, func(event *slicev1.WatchServiceSlicesResponse) bool {
		return event.ServiceSlices != nil && event.ServiceSlices.GetEpoch() == 0
	})
}

func TestWatchServiceSlices_SlowClientsSkipStates(t *testing.T) {
	deps := fakeDeps(t, slicetest.Service("web"))
	_, client, _ := run(t, deps)
	ready(t, deps)
	stream := startWatch(t, client, "")
	receiveUntil(t, stream, func(event *slicev1.WatchServiceSlicesResponse) bool {
		return event.Type == slicev1.WatchServiceSlicesResponse_TYPE_BOOKMARK
	})
	const changes = 200
	for i := range changes {
		service := slicetest.Service("web", func(service *corev1.Service) {
			service.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
			service.Labels = map[string]string{"change": fmt.Sprint(i)}
			if i == changes-1 {
				service.Spec.Selector = nil
			}
		})
		if _, err := clientsetOf(deps).CoreV1().Services("shop").Update(t.Context(), service, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	events := 0
	receiveUntil(t, stream, func(event *slicev1.WatchServiceSlicesResponse) bool {
		events++
		return event.ServiceSlices.GetUnmanagedReason() == "NO_SELECTOR"
	})
	if events > changes/2 {
		t.Errorf("%d events for %d changes: no state was skipped", events, changes)
	}
}

func TestWatchServiceSlices_EndsWithTheServer(t *testing.T) {
	deps := fakeDeps(t, slicetest.Service("web"))
	_, client, stop := run(t, deps)
	ready(t, deps)
	stop()
	stream := startWatch(t, client, "")
	done := make(chan error, 1)
	go func() {
		_, err := stream.Recv()
		done <- err
	}()
	select {
	case err := <-done:
		if status.Code(err) != codes.Unavailable || rpcerror.ReasonOf(err) != rpcerror.ShuttingDownReason {
			t.Errorf("error is %v, want %s", err, rpcerror.ShuttingDownReason)
		}
	case <-time.After(30 * time.Second):
		t.Error("the watch of a stopped service does not end")
	}
}
