package allocationcontroller

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/internal/answer"
)

// heardKinds records when each watch was last heard. It is safe for concurrent use: bookmarks of
// watches do not pass through the goroutine of Run.
type heardKinds struct {
	mu    sync.Mutex // guards kinds
	kinds map[Kind]answer.Cache
}

func newHeardKinds(kinds []Kind) *heardKinds {
	h := &heardKinds{kinds: map[Kind]answer.Cache{}}
	for _, kind := range kinds {
		h.kinds[kind] = answer.Cache{Kind: objectKind(kind)}
	}
	return h
}

func objectKind(kind Kind) string {
	switch kind {
	case KindServices:
		return "Service"
	case KindIPAddresses:
		return "IPAddress"
	default:
		return "ServiceCIDR"
	}
}

func (h *heardKinds) set(kind Kind, version string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kinds[kind] = answer.Cache{Kind: objectKind(kind), ResourceVersion: cmp.Or(version, h.kinds[kind].ResourceVersion), Heard: now}
}

func (h *heardKinds) list() []answer.Cache {
	h.mu.Lock()
	defer h.mu.Unlock()
	var states []answer.Cache
	for _, state := range h.kinds {
		states = append(states, state)
	}
	slices.SortFunc(states, func(a, b answer.Cache) int { return cmp.Compare(a.Kind, b.Kind) })
	return states
}
