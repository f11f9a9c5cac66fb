package nodestore

import (
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/kubewatch"
)

// Freshness returns how fresh the caches of kinds are, ordered by kind. A kind that no Subscription
// has is missing.
func (s *Store) Freshness(kinds Kinds) []answer.Cache {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []answer.Cache
	for _, k := range []struct {
		kind Kinds
		name string
	}{{Leases, "Lease"}, {Nodes, "Node"}, {Pods, "Pod"}} {
		if i := s.running[k.kind]; i != nil && kinds&k.kind != 0 {
			all = append(all, answer.Cache{Kind: k.name, ResourceVersion: i.LastSyncResourceVersion(), Heard: i.heard.get()})
		}
	}
	return all
}

// heardTime is when the watch of an informer was last heard. It is safe for concurrent use.
type heardTime struct{ at atomic.Pointer[time.Time] }

func (h *heardTime) set() {
	now := time.Now()
	h.at.Store(&now)
}

func (h *heardTime) get() time.Time {
	if at := h.at.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// newInformer returns an informer of the selected objects; nil selects all. It sets heard with each
// answer and each event, as the informers of client-go do not.
func newInformer[L runtime.Object](
	s *Store, objects kubewatch.Client[L], kind string, heard *heardTime, example runtime.Object, selector fields.Selector, indexers cache.Indexers,
) cache.SharedIndexInformer {
	cfg := kubewatch.Config{
		Kind: kind, SilenceLimit: s.cfg.WatchSilenceLimit, Metrics: s.watches, OnEvent: heard.set,
		OnAnswer: func(err error) {
			if err == nil {
				heard.set()
			}
		},
	}
	if selector != nil {
		cfg.FieldSelector = selector.String()
	}
	return cache.NewSharedIndexInformer(kubewatch.New(objects, s.kube, cfg), example, 0, indexers)
}
