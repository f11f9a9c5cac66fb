package allocationcontroller

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// CacheState says how fresh the cache of one kind of objects is.
type CacheState struct {
	// Kind is the kind as Kubernetes writes it, for example "Service".
	Kind string
	// Version is the newest resourceVersion that the watch has delivered, empty before the first.
	Version string
	// Heard is when the watch was last heard, the zero time if it never was.
	Heard time.Time
}

// heardKinds records when each watch was last heard. It is safe for concurrent use: bookmarks of
// watches do not pass through the goroutine of Run.
type heardKinds struct {
	mu    sync.Mutex // guards kinds
	kinds map[Kind]CacheState
}

func newHeardKinds(kinds []Kind) *heardKinds {
	h := &heardKinds{kinds: map[Kind]CacheState{}}
	for _, kind := range kinds {
		h.kinds[kind] = CacheState{Kind: objectKind(kind)}
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
	h.kinds[kind] = CacheState{Kind: objectKind(kind), Version: cmp.Or(version, h.kinds[kind].Version), Heard: now}
}

func (h *heardKinds) list() []CacheState {
	h.mu.Lock()
	defer h.mu.Unlock()
	var states []CacheState
	for _, state := range h.kinds {
		states = append(states, state)
	}
	slices.SortFunc(states, func(a, b CacheState) int { return cmp.Compare(a.Kind, b.Kind) })
	return states
}
