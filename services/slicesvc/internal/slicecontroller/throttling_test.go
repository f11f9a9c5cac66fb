package slicecontroller_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// throttle refuses all writes and asks to come back after so many seconds. It counts them.
func throttle(seconds int, attempts *int) func(pack.Change) error {
	return func(pack.Change) error {
		*attempts++
		return fmt.Errorf("update: %w", apierrors.NewTooManyRequests("later", seconds))
	}
}

func TestRun_LeavesAKubeAPIServerAloneThatAsksForIt(t *testing.T) {
	for name, c := range map[string]struct {
		asked int
		most  int // of two workers in a minute
	}{
		"for a moment":     {asked: 0, most: 2 * 10 * 60},
		"for a while":      {asked: 5, most: 2 * (60/5 + 1)},
		"for far too long": {asked: 3600, most: 2 * (60/10 + 1)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, api, _ := shop(t)
				attempts := 0
				api.refuseWith(throttle(c.asked, &attempts))
				for i := range 40 {
					e.PutService(slicetest.Service(fmt.Sprint("more-", i)))
				}
				settle(time.Minute)
				if attempts == 0 || attempts > c.most {
					t.Errorf("%d attempts in a minute, want at most %d", attempts, c.most)
				}
				api.refuseWith(nil)
				settle(2 * time.Minute)
				if got := api.size(); got != 41 {
					t.Errorf("%d slices in the end, want 41", got)
				}
			})
		})
	}
}

// Whoever becomes urgent while the workers rest does not wait for what they were refused.
func TestRun_MostUrgentGoesFirstAfterARest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		attempts := 0
		api.refuseWith(throttle(5, &attempts))
		for i := range 40 {
			e.PutService(slicetest.Service(fmt.Sprint("more-", i), func(service *corev1.Service) { service.Spec.Selector = map[string]string{"app": "more"} }))
		}
		settle(time.Second)
		var written []string
		api.refuseWith(func(change pack.Change) error {
			written = append(written, change.Slice.Labels[discoveryv1.LabelServiceName])
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		e.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready))
		if how, err := e.Reconcile(ctx, key("web")); err != nil || !how.Applied {
			t.Errorf("reconcile: %+v, %v", how, err)
		}
		api.mu.Lock()
		defer api.mu.Unlock()
		if !slices.Contains(written[:2], "web") {
			t.Errorf("the two workers wrote %q after the rest, want that web is first, which somebody asked for", written)
		}
	})
}

// A plan of many writes is not tried to its end when the first four, which are made at the same time, are refused for being too many.
func TestRun_RestOfAPlanIsNotTriedOnAThrottledKubeAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		for i := 2; i < 950; i++ {
			e.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		settle(time.Second)
		attempts := 0
		api.refuseWith(throttle(5, &attempts))
		e.PutNode(node("node-a", "zone-b"))
		settle(time.Second)
		if attempts != 4 {
			t.Errorf("%d attempts, want four", attempts)
		}
		state, _ := e.State(slicecontroller.Key{Namespace: slicetest.Namespace, Name: "web"})
		if state.History.Failures != 1 {
			t.Errorf("history is %+v, want one failure", state.History)
		}
		api.refuseWith(nil)
		settle(time.Minute)
		if state, _ := e.State(key("web")); state.History.Failures != 0 {
			t.Errorf("history is %+v, want no failure in the end", state.History)
		}
	})
}
