package mirrorcontroller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// State is what is known of one Endpoints object. Its objects are shared and must not be changed.
type State struct {
	// Endpoints is nil if there is none. ContentKnown says that it has its subsets: the cache has
	// only the metadata of an object that is not mirrored.
	Endpoints    *corev1.Endpoints
	ContentKnown bool
	// Service is nil if there is none.
	Service *corev1.Service
	// Reason is why the object is not mirrored; empty if it is.
	Reason mirror.Reason
	// Slices are the mirrored slices, unordered, as they were written last.
	Slices []*discoveryv1.EndpointSlice
	// SelectorSlices is how many other slices the Service has from slicesvc: slices of the Pods
	// that it selects or selected.
	SelectorSlices int
	// Invalid has the first invalid addresses, InvalidCount counts all. TooMany counts the
	// addresses above the limit. They are in no slice.
	Invalid               []string
	InvalidCount, TooMany int
	// Writer is the field manager that wrote the Endpoints object last; empty if it is not known.
	Writer string
	// Pending says that a sync is due or running.
	Pending bool
	slicecontroller.SyncStatus
}

// State returns false if there is neither an Endpoints object nor a mirrored slice.
func (c *Controller) State(key Key) (State, bool) {
	of, existing := c.subject(key), c.Index().SlicesOf(key)
	if of.object == nil && len(existing) == 0 {
		return State{}, false
	}
	state := State{
		Endpoints:      of.object,
		ContentKnown:   of.whole,
		Service:        of.service,
		Reason:         of.reason(),
		Slices:         existing,
		SelectorSlices: c.deps.Services.SliceCount(key),
		Pending:        c.Pending(key),
		SyncStatus:     c.SyncStatus(key),
	}
	if of.object != nil {
		state.Writer = writerOf(of.object)
	}
	if state.Reason == "" && of.whole {
		resolved := c.resolvedOf(key, of)
		state.Invalid, state.InvalidCount, state.TooMany = resolved.Invalid, resolved.InvalidCount, resolved.TooMany
	}
	return state, true
}

// resolvedOf returns what is left out of the slices of an object. Families is not set.
func (c *Controller) resolvedOf(key Key, of subject) mirror.Resolved {
	if known, ok := c.reports.get(key); ok && known.planned.entry == of.entry {
		return known.resolved
	}
	resolved := mirror.Resolve(of.object, c.cfg.Limits)
	resolved.Families = nil
	return resolved
}

// Preview plans all slices. It returns false if there is neither an Endpoints object nor a mirrored
// slice, or if the content of the object is not known.
func (c *Controller) Preview(key Key) (slicecontroller.Preview, bool) {
	of := c.subject(key)
	if of.object == nil && len(c.Index().SlicesOf(key)) == 0 {
		return slicecontroller.Preview{}, false
	}
	plan, _, err := c.plan(key, of, 0)
	if err != nil {
		return slicecontroller.Preview{}, false
	}
	_, unmanaged := c.Object(key)
	return slicecontroller.Preview{
		Plan:        plan,
		Unmanaged:   unmanaged != nil,
		Fingerprint: c.Fingerprint(of, plan),
		CatchingUp:  c.CatchingUp(key),
	}, true
}

// Written returns whether the cache shows everything in slices that an object should have there. It
// is true if nothing is to be mirrored. It is false outside a term, and until the term has caught
// up: the cache may lack the Endpoints object.
func (c *Controller) Written(key Key) bool {
	of := c.subject(key)
	if !c.CaughtUp(key) {
		return false
	}
	if of.reason() != "" {
		return true
	}
	preview, ok := c.Preview(key)
	return ok && !slices.ContainsFunc(preview.Plan.Changes, func(change pack.Change) bool {
		return change.Verb != planned.Delete
	})
}

// Health is what is wrong with the objects of the held shards.
type Health struct {
	slicecontroller.Health
	// Dropping are the objects with addresses in no slice. BothSources are those whose Service has
	// slices of Pods too.
	Dropping, BothSources slicecontroller.ServiceGroup
}

// Health returns the health of the held shards. It costs what is wrong.
func (c *Controller) Health() Health {
	health := Health{Health: c.Syncer.Health()}
	now := time.Now()
	dropping, bothSources := c.reports.withProblems()
	for key, found := range dropping {
		health.Dropping.Add(key, found.droppingSince, now, droppedText(found.resolved))
	}
	for key, found := range bothSources {
		if count := c.deps.Services.SliceCount(key); count > 0 {
			health.BothSources.Add(key, found.bothSourcesSince, now, fmt.Sprintf("%d slices of Pods beside the mirrored ones", count))
		}
	}
	return health
}

func droppedText(resolved mirror.Resolved) string {
	var parts []string
	if resolved.TooMany > 0 {
		parts = append(parts, fmt.Sprintf("%d addresses are above the limit", resolved.TooMany))
	}
	if resolved.InvalidCount > 0 {
		parts = append(parts, fmt.Sprintf("%d addresses are no IP addresses", resolved.InvalidCount))
	}
	return strings.Join(parts, ", ")
}

// Counts returns the sizes of some held shards.
func (c *Controller) Counts(shards []int) Counts {
	sum := c.reports.counts(shards)
	sum.EndpointSlices = c.Index().Counts(shards).EndpointSlices
	return sum
}

func (c *Controller) heldCounts() Counts { return c.Counts(c.Held()) }
