package engine

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/contention"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// A Service that is being compacted rests for compactionPause after each
// compactionBudget writes.
const (
	compactionPause  = time.Second
	compactionBudget = 12
)

// record is what is remembered of one Service for one term, beside the cache.
type record struct {
	// service is the version that placement was made for; a Service made again under
	// its name is another one.
	service *corev1.Service
	// placement is where its endpoints lie; nil unless it is settled. While a pass is
	// under way the pass has it.
	placement *pack.Placement
	due       due
	underway  bool
	// writing has the slices of which a write is under way, with what the watch
	// showed of each meanwhile.
	writing map[string]*sighting
	// unread has the slices of which the watch showed a version that the cache does
	// not have; the next pass reads them first.
	unread map[string]struct{}
	last   LastPlan
	// written is when slices were last written here.
	written map[string]time.Time
	// unsure has the slices of which a write failed that may have been stored all the
	// same: the next that is seen of them may be it.
	unsure  map[string]struct{}
	rivalry contention.Record
	// quiet is when the Service will have been quiet for long enough to be compacted;
	// zero when there is nothing to compact.
	quiet time.Time
}

// due is what the next pass over a Service is for. The zero value asks for none.
type due struct {
	trigger Trigger
	// whole says that pods and what is known of the slices are not enough to go by.
	whole bool
	// pods are those that changed, by name.
	pods map[string]struct{}
	// since is when the first cause was put in, and changed when the earliest change
	// came about, as far as its object says so.
	since, changed time.Time
	// waiting are told how the pass went.
	waiting []chan<- outcome
}

func (d *due) empty() bool { return d.trigger == "" }

// cause is why a Service needs a pass.
type cause struct {
	trigger Trigger
	// pods are those that changed; without any the whole Service is looked at.
	pods []Key
	// at is when the change came about; zero when that is not known.
	at time.Time
}

// add takes in another cause for a Service of that namespace. Of several causes
// the first gives the trigger, and of several times the earliest counts.
func (d *due) add(namespace string, c cause, now time.Time) {
	if d.empty() {
		d.trigger, d.since = c.trigger, now
	}
	d.whole = d.whole || len(c.pods) == 0
	for _, pod := range c.pods {
		if pod.Namespace != namespace {
			continue
		}
		if d.pods == nil {
			d.pods = map[string]struct{}{}
		}
		d.pods[pod.Name] = struct{}{}
	}
	d.date(c.at)
}

func (d *due) date(at time.Time) {
	if !at.IsZero() && (d.changed.IsZero() || at.Before(d.changed)) {
		d.changed = at
	}
}

// failure is how a Service fails since its last success.
type failure struct {
	count int
	err   error
	at    time.Time
	// rest is how long the kube-apiserver asked to be left alone.
	rest time.Duration
}

// pause is how long the Service rests before it is tried again unless something
// happens to it.
func (f failure) pause() time.Duration { return max(retryPause(f.count), f.rest) }

// left is how long the Service still rests when something has happened to it.
func (f failure) left(now time.Time) time.Duration {
	return max(min(retryPause(f.count), eagerRetry), f.rest-now.Sub(f.at))
}

// job is what a pass is given.
type job struct {
	due
	service   *corev1.Service
	placement *pack.Placement
	// unread are slices to be read before anything is planned.
	unread map[string]struct{}
	// creation says that the Service is met for the first time in this term.
	creation bool
	// resting says that somebody else keeps undoing our writes.
	resting bool
	// compacting says that nothing is due but to make do with fewer slices, by budget
	// writes at most.
	compacting bool
	budget     int
}

// outcome is how a pass went.
type outcome struct {
	plan pack.Plan
	// written are the changes of the plan that were carried out.
	written []pack.Change
	last    LastPlan
	err     error
	// conflict says that a slice was not as planned from, and reread that what is
	// there instead is known by now.
	conflict, reread bool
	// rest is how long the kube-apiserver asks to be left alone; 0 if it does not.
	rest time.Duration
	// withheld says that a part of the plan waits until the Service has rested, and
	// terminating that one cannot be written any more, with all the namespace.
	withheld, terminating bool
	// placement is where the endpoints lie now, nil if that is not settled; slack
	// says that they might lie in fewer slices, once the Service was quiet for so long.
	placement *pack.Placement
	slack     bool
	quiet     time.Duration
}

// answer tells those who wait for the pass how it went.
func (d *due) answer(how outcome) {
	for _, waiting := range d.waiting {
		waiting <- how
	}
	d.waiting = nil
}

// leaveUnread notes a slice that is to be read.
func (r *record) leaveUnread(name string) {
	if r.unread == nil {
		r.unread = map[string]struct{}{}
	}
	r.unread[name] = struct{}{}
}

// undone notes that a slice is not as it was left here, and reports whether the
// Service rests from now on. A write of ours that was not answered undoes nothing.
func (r *record) undone(name, by string, now time.Time) (rests bool) {
	if _, ours := r.unsure[name]; ours {
		delete(r.unsure, name)
		return false
	}
	return r.rivalry.Undone(r.written[name], now, by)
}

// compactable returns how long it is until the Service may be compacted: 0 for
// now, less for never. What somebody else keeps undoing is no time for it.
func (r *record) compactable(now time.Time) time.Duration {
	if r.quiet.IsZero() {
		return -1
	}
	return max(r.quiet.Sub(now), r.rivalry.Resting(now), 0)
}

// noteQuiet sets when the Service may be compacted if nothing else happens.
func (r *record) noteQuiet(done job, how outcome, now time.Time) {
	// After what was compacted there may be more to do, and after anything else
	// nothing may be written for a while before there is.
	switch {
	case !how.slack, done.compacting && how.plan.Empty():
		r.quiet = time.Time{}
	case done.compacting:
		r.quiet = now.Add(compactionPause)
	case how.last.writes() == 0 && !r.quiet.IsZero():
		// It is as quiet as it was.
	default:
		r.quiet = now.Add(how.quiet)
	}
}

// part reports whether the changed pods are all that has to be looked at.
func (j *job) part() bool { return j.placement != nil && !j.whole }
