package sessioncontroller

import (
	"cmp"
	"log/slog"
	"slices"
	"time"
	"unique"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

const (
	// MaxAge is the greatest age of a Report. It keeps ages within the range of a
	// monotonic.Instant.
	MaxAge = 366 * 24 * time.Hour
	// reportBytesPerSession bounds, on average over Config.Limit sessions, the memory of reported
	// conditions. The conditions of a holder above the bound are not kept.
	reportBytesPerSession = 1024
	// conditionBytes is the memory of a kept condition without its texts.
	conditionBytes = 96
	// transitionTolerance is how much the reported time of a transition, or of the begin of a
	// cut-off, may vary with the latency of messages and still count as the same.
	transitionTolerance = 2 * time.Second
)

// Report is what an agent knows of a holder. Ages count from the time at which the message was
// sent.
type Report struct {
	// Observed says that the agent observes the holder. ObservedAge is how long ago it was observed
	// to be alive.
	Observed    bool
	ObservedAge time.Duration
	// CutOff says that every request of the holder to kube-apiserver fails, and CutOffAge for how
	// long that has been so.
	CutOff    bool
	CutOffAge time.Duration
	// Conditions replace all conditions of the last report.
	Conditions []ReportedCondition
	// ConditionsOmitted says that Conditions are not known, so those of the last report stay.
	ConditionsOmitted bool
}

// ReportedCondition is one aspect of a holder as its agent reports it.
type ReportedCondition struct {
	Type, Reason, Message string
	Status                ConditionStatus
	// TransitionAge is how long ago the status changed; negative if it is unknown.
	TransitionAge time.Duration
}

// ConditionStatus has the numbers of trivet.meta.v1.Condition.Status.
type ConditionStatus uint8

// Condition is a reported condition of a holder.
type Condition struct {
	Type, Reason, Message string
	Status                ConditionStatus
	// TransitionTime is when the status changed; zero if it is unknown.
	TransitionTime time.Time
}

// reports keep the last report of each holder that has one. A holder that was observed just now, is
// not cut off and has no conditions has none.
type reports struct {
	bySlot map[uint32]*keptReport
	bytes  int // of all conditions
	limit  int
	full   bool // the limit was logged and has been reached since
	logger *slog.Logger
}

// keptReport is the last report of the holder in a slot.
type keptReport struct {
	received monotonic.Instant
	// cutOff is since when every request of the holder to kube-apiserver has failed; 0 if they are
	// served, or if that is not known.
	cutOff     monotonic.Instant
	conditions []keptCondition // ordered by type
	bytes      int
}

// keptCondition shares its texts with the conditions of other holders.
type keptCondition struct {
	kind, reason, message unique.Handle[string]
	status                ConditionStatus
	transition            monotonic.Instant
	transitionKnown       bool
}

func newReports(sessions int, logger *slog.Logger) reports {
	return reports{bySlot: map[uint32]*keptReport{}, limit: sessions * reportBytesPerSession, logger: logger}
}

// updateReport takes the report of an accepted beat, and returns whether readers see a change.
func (c *Controller) updateReport(slot uint32, received monotonic.Instant, report *Report) (changed bool) {
	if report != nil && report.Observed && !*c.observed.At(slot) {
		*c.observed.At(slot) = true
		changed = true
	}
	return c.reports.update(slot, received, report) || changed
}

// update keeps a report; nil changes nothing. It returns whether the conditions of the holder
// changed, or since when it is cut off. A report that is older than the kept one is ignored.
func (r *reports) update(slot uint32, received monotonic.Instant, report *Report) (changed bool) {
	last := r.bySlot[slot]
	if report == nil || last == nil && report.saysNothing() || last != nil && received < last.received {
		return false
	}
	if last == nil {
		last = &keptReport{}
		r.bySlot[slot] = last
	}
	before := last.conditions
	if !report.ConditionsOmitted {
		r.replace(last, keep(received, report.Conditions, before))
	}
	cutOff := report.cutOffSince(received, last.cutOff)
	changed = cutOff != last.cutOff || !slices.Equal(last.conditions, before)
	last.received, last.cutOff = received, cutOff
	if report.ObservedAge == 0 && cutOff == 0 && len(last.conditions) == 0 {
		delete(r.bySlot, slot)
	}
	return changed
}

// saysNothing returns whether a holder without another report needs no place for this one.
func (r *Report) saysNothing() bool {
	return r.ObservedAge == 0 && !r.CutOff && len(r.Conditions) == 0
}

// cutOffSince returns since when the holder is cut off, by a report; 0 if it is not. The last one
// stays if only the latency of the messages differs.
func (r *Report) cutOffSince(received, last monotonic.Instant) monotonic.Instant {
	if !r.CutOff {
		return 0
	}
	since := received.Add(-min(max(r.CutOffAge, 0), MaxAge))
	if last != 0 && since.Sub(last).Abs() <= transitionTolerance {
		return last
	}
	return cmp.Or(since, 1) // 0 means that it is not
}

// replace keeps the conditions if the limit allows it, otherwise none.
func (r *reports) replace(report *keptReport, conditions []keptCondition) {
	r.bytes -= report.bytes
	report.conditions, report.bytes = conditions, 0
	for _, c := range conditions {
		report.bytes += conditionBytes + len(c.kind.Value()) + len(c.reason.Value()) + len(c.message.Value())
	}
	switch {
	case r.bytes+report.bytes <= r.limit:
		r.full = r.full && r.bytes > r.limit/2
	default:
		if !r.full {
			r.logger.Warn("no memory for further conditions of holders; they are not shown", "bytes", r.bytes, "limit", r.limit)
		}
		r.full, report.conditions, report.bytes = true, nil, 0
	}
	r.bytes += report.bytes
}

// remove forgets the report of a slot.
func (r *reports) remove(slot uint32) {
	if last := r.bySlot[slot]; last != nil {
		r.bytes -= last.bytes
		delete(r.bySlot, slot)
	}
}

// keep converts reported conditions. Of two with the same type the last one counts. A condition
// that did not change keeps the time of its transition.
func keep(received monotonic.Instant, reported []ReportedCondition, last []keptCondition) []keptCondition {
	conditions := make([]keptCondition, 0, len(reported))
	for _, c := range reported {
		kept := keptCondition{kind: unique.Make(c.Type), reason: unique.Make(c.Reason), message: unique.Make(c.Message), status: c.Status}
		if c.TransitionAge >= 0 {
			kept.transition, kept.transitionKnown = received.Add(-c.TransitionAge), true
		}
		if i := slices.IndexFunc(last, func(l keptCondition) bool { return l.kind == kept.kind }); i >= 0 && kept.sameTransition(last[i]) {
			kept.transition, kept.transitionKnown = last[i].transition, last[i].transitionKnown
		}
		if i := slices.IndexFunc(conditions, func(o keptCondition) bool { return o.kind == kept.kind }); i >= 0 {
			conditions[i] = kept
			continue
		}
		conditions = append(conditions, kept)
	}
	slices.SortFunc(conditions, func(a, b keptCondition) int { return cmp.Compare(a.kind.Value(), b.kind.Value()) })
	return conditions
}

func (c keptCondition) sameTransition(last keptCondition) bool {
	return c.status == last.status &&
		(!c.transitionKnown || last.transitionKnown && c.transition.Sub(last.transition).Abs() <= transitionTolerance)
}

// addReport adds the last report of the holder to its lease.
func (c *Controller) addReport(now monotonic.Instant, slot uint32, lastBeat monotonic.Instant, l *Lease) {
	report := c.reports.bySlot[slot]
	if report == nil {
		return
	}
	if report.received > lastBeat {
		l.LastReportTime = c.clock.WallTime(now, report.received)
	}
	if report.cutOff != 0 {
		l.CutOffTime = c.clock.WallTime(now, report.cutOff)
	}
	for _, kept := range report.conditions {
		condition := Condition{Type: kept.kind.Value(), Reason: kept.reason.Value(), Message: kept.message.Value(), Status: kept.status}
		if kept.transitionKnown {
			condition.TransitionTime = c.clock.WallTime(now, kept.transition)
		}
		l.Conditions = append(l.Conditions, condition)
	}
}

// observed returns when a holder was observed whose beat was received at a time.
func observed(received monotonic.Instant, report *Report) monotonic.Instant {
	if report == nil {
		return received
	}
	return received.Add(-min(max(report.ObservedAge, 0), MaxAge))
}
