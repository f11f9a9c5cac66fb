package slicesvc_test

import (
	"fmt"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	trivetmeta "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
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
	t.Parallel()
	deps := fakeDeps(t,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}},
		slicetest.Service("api"), slicetest.Service("web"), slicetest.Pod("web-0", "10.1.0.1"),
		slicetest.Service("other", func(service *corev1.Service) { service.Namespace = "else" }),
	)
	_, client, _ := run(t, deps)
	ready(t, deps)
	stream := startWatch(t, client, "namespaces/shop")

	for _, want := range []string{"namespaces/shop/serviceslices/api", "namespaces/shop/serviceslices/web"} {
		event, err := stream.Recv()
		if err != nil || event.Type != trivetmeta.EventType_EVENT_TYPE_ADDED || event.ServiceSlices.GetName() != want {
			t.Fatalf("event is %v (%v), want that %s was added", event, err, want)
		}
	}
	if event, err := stream.Recv(); err != nil || event.Type != trivetmeta.EventType_EVENT_TYPE_BOOKMARK || !event.Bookmark.GetInitialEventsEnd() || event.ResumeToken == "" {
		t.Fatalf("event is %v (%v), want a bookmark", event, err)
	}

	if _, err := clientsetOf(deps).CoreV1().Pods("shop").Create(t.Context(), slicetest.Pod("web-1", "10.1.0.2"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	receiveUntil(t, stream, func(event *slicev1.WatchServiceSlicesResponse) bool {
		slices := event.ServiceSlices
		return slices.GetName() == "namespaces/shop/serviceslices/web" && slices.GetEndpointCount() == 2 && slices.GetReadyEndpointCount() == 2 &&
			slices.GetIdealSliceCount() == 1 && slices.GetOwner().GetEpoch() != 0 && slices.GetSyncs()[0].GetLastPlan() != nil
	})
	if err := clientsetOf(deps).CoreV1().Services("shop").Delete(t.Context(), "api", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deleted := receiveUntil(t, stream, func(event *slicev1.WatchServiceSlicesResponse) bool {
		return event.Type == trivetmeta.EventType_EVENT_TYPE_DELETED
	})
	if deleted.ServiceSlices.GetName() != "namespaces/shop/serviceslices/api" || deleted.ServiceSlices.GetUid() != "uid-of-api" || deleted.ServiceSlices.GetOwner().GetShard() == 0 {
		t.Errorf("deleted is %v, want api with its UID", deleted.ServiceSlices)
	}
}

// A shard that moves shows in the owner of its Services, and in the sources of the next bookmark.
func TestWatchServiceSlices_ShowsShardsThatComeAndGo(t *testing.T) {
	t.Parallel()
	deps := fakeDeps(t, slicetest.Service("web"))
	candidateOf(deps).Lose()
	_, client, _ := run(t, deps)
	ready(t, deps)
	stream := startWatch(t, client, "")
	first := receiveUntil(t, stream, isBookmark)
	checkSource(t, first.Bookmark.Sources)
	var all []int32
	for i := range slicesvc.DefaultConfig().Shards {
		all = append(all, int32(i))
	}
	for _, leads := range []bool{true, false} {
		var want []int32
		if leads {
			candidateOf(deps).Regain()
			want = all
		} else {
			candidateOf(deps).Lose()
		}
		moved := false
		bookmark := receiveUntil(t, stream, func(event *slicev1.WatchServiceSlicesResponse) bool {
			if event.Type == trivetmeta.EventType_EVENT_TYPE_DELETED {
				t.Errorf("the watch sent %v, though no Service is gone", event)
			}
			moved = moved || event.ServiceSlices != nil && (event.ServiceSlices.Owner.Epoch != 0) == leads
			return isBookmark(event)
		})
		if !moved {
			t.Errorf("leads %t: the bookmark came before the Service of a shard that moved", leads)
		}
		checkSource(t, bookmark.Bookmark.Sources, want...)
	}
}

func isBookmark(event *slicev1.WatchServiceSlicesResponse) bool {
	return event.Type == trivetmeta.EventType_EVENT_TYPE_BOOKMARK
}

// receiveNames returns what a watch sends before its next bookmark, and the token of the bookmark.
func receiveNames(t *testing.T, stream watchStream) (names []string, token string) {
	t.Helper()
	last := receiveUntil(t, stream, func(event *slicev1.WatchServiceSlicesResponse) bool {
		if !isBookmark(event) {
			names = append(names, event.Type.String()+" "+event.ServiceSlices.Name)
		}
		return isBookmark(event)
	})
	return names, last.ResumeToken
}

func TestWatchServiceSlices_Resumes(t *testing.T) {
	t.Parallel()
	deps := fakeDeps(t, slicetest.Service("api"), slicetest.Service("web"), slicetest.Service("old"))
	candidateOf(deps).Lose()
	_, client, stop := run(t, deps)
	ready(t, deps)
	list, err := client.ListServiceSlices(t.Context(), &slicev1.ListServiceSlicesRequest{Parent: "namespaces/shop"})
	if err != nil {
		t.Fatal(err)
	}
	watch := func(parent, token string) watchStream {
		stream, err := client.WatchServiceSlices(t.Context(), &slicev1.WatchServiceSlicesRequest{Parent: parent, ResumeToken: token})
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	services := clientsetOf(deps).CoreV1().Services("shop")
	updated := slicetest.Service("web", func(service *corev1.Service) { service.Labels = map[string]string{"changed": "yes"} })
	if _, err := services.Update(t.Context(), updated, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := services.Create(t.Context(), slicetest.Service("new"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := services.Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"EVENT_TYPE_MODIFIED namespaces/shop/serviceslices/web",
		"EVENT_TYPE_ADDED namespaces/shop/serviceslices/new",
		"EVENT_TYPE_DELETED namespaces/shop/serviceslices/old",
	}
	var bookmarked string
	testkit.Eventually(t, 30*time.Second, func() error {
		names, token := receiveNames(t, watch("namespaces/shop", list.ResumeToken))
		bookmarked = token
		if diff := gocmp.Diff(want, names); diff != "" {
			return fmt.Errorf("events since the list (-want +got):\n%s", diff)
		}
		return nil
	})
	between := receiveUntil(t, watch("namespaces/shop", list.ResumeToken), func(event *slicev1.WatchServiceSlicesResponse) bool {
		return event.ServiceSlices.GetName() == "namespaces/shop/serviceslices/web"
	})
	for name, c := range map[string]struct {
		token string
		want  []string
	}{
		"after an event":    {between.ResumeToken, want[1:]},
		"after a bookmark":  {bookmarked, nil},
		"without any token": {"", []string{"EVENT_TYPE_ADDED namespaces/shop/serviceslices/api", "EVENT_TYPE_ADDED namespaces/shop/serviceslices/new", "EVENT_TYPE_ADDED namespaces/shop/serviceslices/web"}},
	} {
		names, _ := receiveNames(t, watch("namespaces/shop", c.token))
		if diff := gocmp.Diff(c.want, names); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	stop()
	_, client, _ = run(t, deps)
	ready(t, deps)
	for name, stream := range map[string]watchStream{
		"of another process":   watch("namespaces/shop", bookmarked),
		"of another namespace": watch("", bookmarked),
		"that is none":         watch("namespaces/shop", "Zm9yZ2VkLXRva2VuLXg"),
	} {
		if _, err := stream.Recv(); status.Code(err) != codes.OutOfRange || rpcerror.ReasonOf(err) != rpcerror.ResumeTokenExpiredReason {
			t.Errorf("a token %s gives %v, want %s", name, err, rpcerror.ResumeTokenExpiredReason)
		}
	}
}

// The test runs alone: whether states are skipped depends on the time between two changes.
func TestWatchServiceSlices_SlowClientsSkipStates(t *testing.T) {
	deps := fakeDeps(t, slicetest.Service("web"))
	_, client, _ := run(t, deps)
	ready(t, deps)
	stream := startWatch(t, client, "")
	receiveUntil(t, stream, isBookmark)
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
		return conditionOf(event.ServiceSlices, "Managed").GetReason() == "NO_SELECTOR"
	})
	if events > changes/2 {
		t.Errorf("%d events for %d changes: no state was skipped", events, changes)
	}
}

func TestWatchServiceSlices_EndsWithTheServer(t *testing.T) {
	t.Parallel()
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
