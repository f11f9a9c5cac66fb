package nodeapi

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
)

// publish publishes a pass in which the Nodes with the names exist and their shards are held.
func publish(p *nodehealthcontroller.Publisher, now monotonic.Instant, names ...string) {
	var nodes []nodehealth.NodeState
	for _, name := range names {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		nodes = append(nodes, nodehealth.DefaultRules().Observe(now, nodehealth.NodeState{}, nodehealth.Observation{Node: node}))
	}
	p.Publish(nodehealthcontroller.Snapshot{At: nodehealth.Moment{Instant: now}}, nodes, func(*nodehealth.NodeState) nodehealthcontroller.Result {
		return nodehealthcontroller.Result{Held: true}
	})
}

func names(events []nodeEvent) []string {
	list := []string{}
	for _, e := range events {
		if e.event == nil {
			list = append(list, "bookmark")
			continue
		}
		list = append(list, e.event.Node.Object.Name)
	}
	return list
}

func TestNodeEvents_ReturnsNodesThenABookmarkThenChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := nodehealthcontroller.NewPublisher()
		publish(p, 1, "n1", "n2")
		source := &nodeEvents{publisher: p, watcher: p.Watch(func(*nodehealthcontroller.Node) bool { return true })}
		next := func(want ...string) {
			t.Helper()
			events, err := source.NextWithin(t.Context(), time.Minute)
			if got := names(events); err != nil || !slices.Equal(want, got) {
				t.Errorf("got %v, error %v; want %v", got, err, want)
			}
		}
		next("n1", "n2", "bookmark")
		time.AfterFunc(time.Second, func() { publish(p, 2, "n1", "n2", "n3") })
		next("n1", "n2", "n3") // each pass has new objects
		next()                 // a minute without changes
	})
}

func TestNodeEvents_FailsWithoutASnapshot(t *testing.T) {
	p := nodehealthcontroller.NewPublisher()
	source := &nodeEvents{publisher: p, watcher: p.Watch(func(*nodehealthcontroller.Node) bool { return true })}
	if _, err := source.NextWithin(t.Context(), time.Minute); !errors.Is(err, errNotSynced) {
		t.Errorf("error %v, want errNotSynced", err)
	}
	publish(p, 1, "n1")
	ctx, cancel := context.WithCancel(t.Context())
	if events, err := source.NextWithin(ctx, time.Minute); err != nil || len(events) != 2 {
		t.Errorf("got %v, error %v; want a Node and a bookmark", names(events), err)
	}
	cancel()
	if _, err := source.NextWithin(ctx, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the end of the context", err)
	}
	p.Clear()
	if _, err := source.NextWithin(t.Context(), time.Minute); !errors.Is(err, errNotSynced) {
		t.Errorf("error %v, want errNotSynced", err)
	}
}
