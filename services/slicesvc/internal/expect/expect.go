package expect

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Key names a Service or a slice.
type Key = types.NamespacedName

// Version is one state of a slice: what a write returned or the cache showed.
type Version struct {
	Name            string
	UID             types.UID
	ResourceVersion string
}

// Expectations are kept for all Services.
type Expectations struct {
	// life is how long an expectation holds a Service up at most.
	life     time.Duration
	services map[Key]*record
}

// record is one Service's expectations.
type record struct {
	uid types.UID
	// written has, by slice name, what was written and not yet shown.
	written map[string]expected
	// deleted has, by UID, the slices deleted and not yet shown as gone.
	deleted map[types.UID]expected
	// held says that somebody wanted to plan the Service and could not.
	held bool
	// underway is set from Begin to End; events that come meanwhile are kept in
	// early, for they may be of writes that have not been noted yet.
	underway bool
	early    []event
}

type expected struct {
	version string
	until   time.Time
}

type event struct {
	version Version
	gone    bool
}

// New returns Expectations that expire after life.
func New(life time.Duration) *Expectations {
	return &Expectations{life: life, services: map[Key]*record{}}
}

// Begin starts a pass over a Service. If the cache has yet to show a write of
// ours, the pass must not go on: wait is how long, at most, until it may; an
// event that clears the way earlier is announced by Shown or Gone. Otherwise
// wait is 0 and the pass ends with End.
func (x *Expectations) Begin(key Key, uid types.UID, now time.Time) (wait time.Duration) {
	entry := x.services[key]
	if entry == nil || entry.uid != uid {
		entry = &record{
			uid:     uid,
			written: map[string]expected{},
			deleted: map[types.UID]expected{},
		}
		x.services[key] = entry
	}
	if wait = entry.outstanding(now); wait > 0 {
		entry.held = true
		return wait
	}
	entry.held, entry.underway, entry.early = false, true, nil
	return 0
}

// Pending reports whether the cache has yet to show a write of ours.
func (x *Expectations) Pending(key Key, now time.Time) bool {
	entry := x.services[key]
	return entry != nil && entry.outstanding(now) > 0
}

// Wrote notes a slice as a write returned it.
func (x *Expectations) Wrote(key Key, slice Version, now time.Time) {
	if entry := x.services[key]; entry != nil {
		entry.written[slice.Name] = expected{version: slice.ResourceVersion, until: now.Add(x.life)}
	}
}

// Deleted notes a slice that was deleted.
func (x *Expectations) Deleted(key Key, slice Version, now time.Time) {
	if entry := x.services[key]; entry != nil {
		delete(entry.written, slice.Name)
		entry.deleted[slice.UID] = expected{until: now.Add(x.life)}
	}
}

// End finishes a pass. It reports whether somebody else changed a slice of the
// Service meanwhile, so that it has to be looked at again.
func (x *Expectations) End(key Key) (again bool) {
	entry := x.services[key]
	if entry == nil || !entry.underway {
		return false
	}
	entry.underway = false
	for _, e := range entry.early {
		if !entry.resolve(e) {
			again = true
		}
	}
	entry.early = nil
	return again
}

// Shown takes note of a slice the cache shows, new or changed. It reports
// whether the Service must be looked at: somebody else wrote the slice, or
// this was the last thing the Service was waiting for.
func (x *Expectations) Shown(key Key, slice Version, now time.Time) bool {
	return x.observe(key, event{version: slice}, now)
}

// Gone takes note of a slice that the cache does not show any more, as Shown does.
func (x *Expectations) Gone(key Key, slice Version, now time.Time) bool {
	return x.observe(key, event{version: slice, gone: true}, now)
}

// Forget drops what is known of a Service.
func (x *Expectations) Forget(key Key) { delete(x.services, key) }

func (x *Expectations) observe(key Key, e event, now time.Time) bool {
	entry := x.services[key]
	if entry == nil {
		return true
	}
	if entry.underway {
		entry.early = append(entry.early, e)
		return false
	}
	if own := entry.resolve(e); !own {
		return true
	}
	return entry.held && entry.outstanding(now) == 0
}

// resolve strikes out what an event shows and reports whether the event is of
// our own making.
func (r *record) resolve(e event) (own bool) {
	if e.gone {
		_, own = r.deleted[e.version.UID]
		delete(r.deleted, e.version.UID)
		delete(r.written, e.version.Name)
		return own
	}
	wrote, ok := r.written[e.version.Name]
	if !ok {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(e.version.ResourceVersion, wrote.version)
	switch {
	case err == nil && order < 0:
		// An older state on its way to ours: the event of ours is still to come.
		return true
	default:
		delete(r.written, e.version.Name)
		return e.version.ResourceVersion == wrote.version
	}
}

// outstanding gives how long, at most, the oldest expectation still holds, and
// drops the expired ones.
func (r *record) outstanding(now time.Time) time.Duration {
	var wait time.Duration
	for name, e := range r.written {
		if !now.Before(e.until) {
			delete(r.written, name)
			continue
		}
		wait = max(wait, e.until.Sub(now))
	}
	for uid, e := range r.deleted {
		if !now.Before(e.until) {
			delete(r.deleted, uid)
			continue
		}
		wait = max(wait, e.until.Sub(now))
	}
	return wait
}
