package slicecontroller_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

func TestHealth_NamesTheServicesThatFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t)
		cluster.refuseWith(func(pack.Change) error { return errBusy })
		for i := range 8 {
			putService(controller, fmt.Sprint("svc-", i), 1)
		}
		began := time.Now()
		held := holdAllShards(t, controller)
		advance(10 * time.Second)
		failing := controller.Health().Failing
		want := []slicecontroller.Key{key("svc-0"), key("svc-1"), key("svc-2"), key("svc-3"), key("svc-4")}
		if diff := gocmp.Diff(want, failing.First); failing.Count != 8 || diff != "" {
			t.Errorf("%d Services fail, want 8; the first (-want +got):\n%s", failing.Count, diff)
		}
		if failing.Cause == "" || failing.Since.Before(began) || failing.Since.After(began.Add(time.Second)) {
			t.Errorf("failing is %+v, want the cause and the time of the first failure", failing)
		}
		cluster.refuseWith(nil)
		advance(2 * time.Minute)
		if health := controller.Health(); health.Failing.Count != 0 || len(health.Shards) != shards {
			t.Errorf("health is %+v, want all shards without failures", health)
		}
		held.end()
		if health := controller.Health(); len(health.Shards) != 0 {
			t.Errorf("health is %+v, want no shard", health)
		}
	})
}

// A watch shows when a contention begins and when it ends.
func TestHealth_ContentionBeginsAndEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		name := cluster.onlySlice(t).Name
		for range 4 {
			cluster.edit(name, func(slice *discoveryv1.EndpointSlice) {
				slice.Endpoints = slice.Endpoints[:1]
				slice.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "other-controller"}}
			})
			advance(time.Second)
		}
		contended := controller.Health().Contended
		if contended.Count != 1 || contended.First[0] != key("web") || contended.Cause == "" || contended.Since.IsZero() {
			t.Fatalf("contended is %+v, want web with the other writer", contended)
		}
		state, _ := controller.State(key("web"))
		if state.ContendedBy != contended.Cause || !state.ContendedSince.Equal(contended.Since) {
			t.Errorf("state is contended by %q since %v, health says %+v", state.ContendedBy, state.ContendedSince, contended)
		}
		advance(20 * time.Second) // the pause has ended, and the other writer may still be there
		revision := controller.Revision()
		advance(10 * time.Minute)
		if contended := controller.Health().Contended; contended.Count != 0 {
			t.Errorf("contended is %+v after ten quiet minutes", contended)
		}
		if state, _ := controller.State(key("web")); state.ContendedBy != "" {
			t.Errorf("the state is contended by %q after ten quiet minutes", state.ContendedBy)
		}
		if changes := controller.Changes(revision).Services; len(changes) != 1 || changes[0].Key != key("web") {
			t.Errorf("changes are %+v, want that the contention of web has ended", changes)
		}
	})
}

// failingLists fails every list.
type failingLists struct{ slicecontroller.Reader }

func (failingLists) List(context.Context) ([]metav1.ObjectMeta, string, error) {
	return nil, "", errors.New("no list today")
}

func TestHealth_SaysWhyAShardCannotWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, _ := start(t, func(_ *slicecontroller.Config, deps *slicecontroller.Deps) {
			deps.Reader = failingLists{deps.Reader}
		})
		began := time.Now()
		holdShards(t, controller, 2)
		advance(10 * time.Second)
		held := controller.Health().Shards
		if len(held) != 1 || held[0].Shard != 2 || held[0].Blocked == nil || held[0].Since.Sub(began) > time.Second {
			t.Errorf("shards are %+v, want that shard 2 is blocked since %v", held, began)
		}
	})
}

// goneWriter deletes no slice, because all are gone.
type goneWriter struct {
	slicecontroller.Writer
	busy *atomic.Bool // fails deletions while set
}

func (w goneWriter) Write(ctx context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error) {
	switch {
	case change.Verb == planned.Delete && w.busy.Load():
		return nil, errBusy
	case change.Verb == planned.Delete:
		return nil, nil
	}
	return w.Writer.Write(ctx, change)
}
