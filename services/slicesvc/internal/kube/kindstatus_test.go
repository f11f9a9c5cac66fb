package kube_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// The status of a kind follows its lists and events, and has the cause while it is not heard.
func TestWatches_StatusSaysWhenEachKindWasHeard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(slicetest.Pod("web-0", "10.1.0.1"))
		var failing atomic.Bool
		failing.Store(true)
		client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return failing.Load(), nil, errors.New("no pods today")
		})
		w := kube.NewWatches(slicetest.Clientset{Interface: client}, never, slog.New(slog.DiscardHandler))
		var kinds []string
		for _, status := range w.Status() {
			kinds = append(kinds, status.Kind)
			if !status.Heard.IsZero() {
				t.Errorf("%s was heard before Run", status.Kind)
			}
		}
		if diff := gocmp.Diff([]string{"EndpointSlice", "Node", "Pod", "Service"}, kinds); diff != "" {
			t.Errorf("kinds (-want +got):\n%s", diff)
		}
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan error, 1)
		go func() { returned <- w.Run(ctx, &recordingHandler{}) }()
		synctest.Wait()
		for _, status := range w.Status() {
			if missing := status.Kind == "Pod"; status.Heard.IsZero() != missing || (status.Failure != nil) != missing {
				t.Errorf("without pods the status is %+v", status)
			}
		}
		if err := w.Check(); err == nil || !strings.Contains(err.Error(), "no pods today") {
			t.Errorf("check says %v, want the cause", err)
		}
		failing.Store(false)
		<-w.Synced()
		time.Sleep(time.Hour)
		updated := slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready)
		updated.ResourceVersion = "77"
		_, err := client.CoreV1().Pods(slicetest.Namespace).Update(ctx, updated, metav1.UpdateOptions{})
		must(t, err)
		synctest.Wait()
		if pods := w.Status()[2]; time.Since(pods.Heard) != 0 || pods.ResourceVersion != "77" || pods.Failure != nil {
			t.Errorf("after an event the status is %+v", pods)
		}
		cancel()
		must(t, <-returned)
	})
}

// never is longer than a test in a bubble: a fake clientset sends no bookmarks.
const never = 100 * 365 * 24 * time.Hour
