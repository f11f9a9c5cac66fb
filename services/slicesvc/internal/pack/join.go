package pack

import (
	"cmp"
	"slices"
)

// join lets slices that are written anyway share what is left in them: where the
// endpoints of one fit into another, the first is deleted instead of updated.
// That is no write more, and a slice less. It returns the drafts that stay, in
// their order, and those that go.
//
// Endpoints that change in the same plan do not move: for a moment a moved
// endpoint is in both slices, and what is read of it must not depend on which.
func join(written []*draft, limit int) (staying, going []*draft) {
	if len(written) < 2 {
		return written, nil
	}
	emptiestFirst := slices.Clone(written)
	slices.SortStableFunc(emptiestFirst, func(a, b *draft) int {
		return cmp.Compare(len(a.endpoints), len(b.endpoints))
	})
	left := map[*draft]struct{}{}
	for i, source := range emptiestFirst {
		if source.changed+source.added > 0 {
			continue
		}
		// The emptier ones have gone already or could not, so the fuller ones are enough to look at.
		into := fullestWithRoom(emptiestFirst[i+1:], len(source.endpoints), limit)
		if into == nil {
			continue
		}
		into.join(source)
		left[source] = struct{}{}
		going = append(going, source)
	}
	staying = slices.DeleteFunc(slices.Clone(written), func(d *draft) bool {
		_, gone := left[d]
		return gone
	})
	return staying, going
}

// fullestWithRoom finds the draft that has the least room left after taking n
// endpoints, the first of several; nil when none has room for all.
func fullestWithRoom(among []*draft, n, limit int) *draft {
	var best *draft
	for _, candidate := range among {
		fits := len(candidate.endpoints)+n <= limit
		if fits && (best == nil || len(candidate.endpoints) > len(best.endpoints)) {
			best = candidate
		}
	}
	return best
}

// join takes over the endpoints of another draft.
func (d *draft) join(source *draft) {
	d.endpoints = append(d.endpoints, source.endpoints...)
	d.added += len(source.endpoints)
	d.reason = EndpointsChanged
	source.removed, source.reason = len(source.from.Endpoints), Compacted
}
