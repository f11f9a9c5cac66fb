package mirrorcontroller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
)

// reports has what the last syncs found, by object. It is safe for concurrent use.
type reports struct {
	shards int

	mu  sync.Mutex // guards all below
	all map[Key]*report
	// dropping and bothSources are the objects that a Problem is about.
	dropping, bothSources map[Key]struct{}
}

// report is what the last sync of an object found.
type report struct {
	// planned is what was planned from. resolved belongs to it.
	planned  subject
	resolved mirror.Resolved
	// endpoints and groups are sums over the families of resolved.
	endpoints, groups int
	// droppingSince is when addresses were first left out, bothSourcesSince when the Service was
	// first seen with slices of both sources; zero if that is not so.
	droppingSince, bothSourcesSince time.Time
	// published is what the next sync does not publish again.
	published published
}

// published is what Events and log messages have published about an object.
type published struct {
	uid types.UID
	// writers are the first few field managers that were named.
	writers          []string
	invalid, tooMany int
	// failure is the error of the last failed sync that an Event is about.
	failure string
}

// maxWriters bounds how many writers of an object are named. Writers may take turns.
const maxWriters = 5

func newReports(shards int) *reports {
	return &reports{shards: shards, all: map[Key]*report{}, dropping: map[Key]struct{}{}, bothSources: map[Key]struct{}{}}
}

// planned records what a plan was made from.
func (r *reports) planned(key Key, from subject, resolved mirror.Resolved) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := r.all[key]
	if found == nil {
		found = &report{}
		r.all[key] = found
	}
	found.planned, found.resolved = from, resolved
	found.endpoints, found.groups = 0, 0
	for _, family := range resolved.Families {
		found.groups += len(family.Groups)
		for i := range family.Groups {
			found.endpoints += len(family.Groups[i].Endpoints)
		}
	}
	found.resolved.Families = nil // as large as the object
	markProblem(r.dropping, key, resolved.TooMany+resolved.InvalidCount > 0, &found.droppingSince)
}

// finished records the end of a sync, and what was published about the object. bothSources says
// that the Service has slices of both sources.
func (r *reports) finished(key Key, bothSources bool, now published) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := r.all[key]
	if found == nil {
		return
	}
	markProblem(r.bothSources, key, bothSources, &found.bothSourcesSince)
	found.published = now
	if found.planned.reason() != "" {
		r.drop(key)
	}
}

// size returns how many objects were mirrored in the terms that are held.
func (r *reports) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all)
}

// forget drops what is known of an object.
func (r *reports) forget(key Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(key)
}

// drop needs r.mu.
func (r *reports) drop(key Key) {
	delete(r.all, key)
	delete(r.dropping, key)
	delete(r.bothSources, key)
}

func (r *reports) get(key Key) (report, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := r.all[key]
	if found == nil {
		return report{}, false
	}
	return *found, true
}

// withProblems returns copies of the reports of objects that a Problem is about.
func (r *reports) withProblems() (dropping, bothSources map[Key]report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	dropping, bothSources = map[Key]report{}, map[Key]report{}
	for key := range r.dropping {
		dropping[key] = *r.all[key]
	}
	for key := range r.bothSources {
		bothSources[key] = *r.all[key]
	}
	return dropping, bothSources
}

// markProblem adds an object to the set of those with a problem, or removes it. since is when the
// problem was first seen; zero without it.
func markProblem(set map[Key]struct{}, key Key, problem bool, since *time.Time) {
	switch {
	case !problem:
		delete(set, key)
		*since = time.Time{}
	case since.IsZero():
		set[key] = struct{}{}
		*since = time.Now()
	}
}

// Counts are sums over the objects of some shards that were synced here.
type Counts struct {
	// Mirrored counts the mirrored Endpoints objects, EndpointSlices the mirrored slices, and
	// Endpoints what they should have, in all families and sets of ports.
	Mirrored, EndpointSlices, Endpoints int
	// DroppedAddresses counts the addresses that are in no slice.
	DroppedAddresses int
	// minSlices counts the slices that the objects need at least.
	minSlices int
}

func (r *reports) counts(shards []int) Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	wanted := map[int]bool{}
	for _, number := range shards {
		wanted[number] = true
	}
	var sum Counts
	for key, found := range r.all {
		if found.planned.reason() != "" || !wanted[shard.Of(key.Namespace, key.Name, r.shards)] {
			continue
		}
		sum.Mirrored++
		sum.minSlices += found.groups
		sum.Endpoints += found.endpoints
		sum.DroppedAddresses += found.resolved.TooMany + found.resolved.InvalidCount
	}
	return sum
}

// dropShard drops what is known of the objects of a shard whose term has ended.
func (r *reports) dropShard(number int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.all {
		if shard.Of(key.Namespace, key.Name, r.shards) == number {
			r.drop(key)
		}
	}
}
