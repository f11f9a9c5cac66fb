package agent

import (
	"context"
	"sync"
	"time"
)

const (
	// defaultInterval stands for the granted interval before the first grant.
	defaultInterval = 10 * time.Second
	// unacknowledgedPoll is the time between two looks for unacknowledged beats.
	unacknowledgedPoll = time.Second
	// maxUnacknowledged is how many calls of Config.Unacknowledged run at once.
	maxUnacknowledged = 32
)

// acknowledgedWithin is how long a beat may wait for its acknowledgement: 6 s for an interval of 10
// s. The change of a leader after a crash, 5.3 s, leaves no beat without one.
func acknowledgedWithin(interval time.Duration) time.Duration { return interval * 3 / 5 }

// watchAcknowledgements calls Config.Unacknowledged until ctx ends, and returns when the last call
// has returned.
func (a *Agent) watchAcknowledgements(ctx context.Context) {
	tick := time.NewTicker(unacknowledgedPoll)
	defer tick.Stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	free := make(chan struct{}, maxUnacknowledged)
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			interval := a.interval()
			for _, h := range a.router.unacknowledged(now, interval, cap(free)-len(free)) {
				free <- struct{}{}
				calls.Go(func() {
					a.reportUnacknowledged(ctx, h, interval)
					<-free
				})
			}
			a.logUnacknowledged(now)
		}
	}
}

// interval is that of the last grant.
func (a *Agent) interval() time.Duration {
	if interval := a.history.read().Interval; interval > 0 {
		return interval
	}
	return defaultInterval
}

func (a *Agent) reportUnacknowledged(ctx context.Context, h Holder, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := a.cfg.Unacknowledged(ctx, h)
	a.router.reported(h)
	a.history.update(func(s *Status) {
		s.Unacknowledged++
		if err != nil {
			s.UnacknowledgedFailed++
			a.unacknowledged.last = err
		}
	})
}

// unacknowledgedLog is what was last logged of unacknowledged beats. The history guards last.
type unacknowledgedLog struct {
	at            time.Time
	beats, failed uint64
	last          error
}

// logUnacknowledged logs what happened since the last line, at most once in a period.
func (a *Agent) logUnacknowledged(now time.Time) {
	l := &a.unacknowledged
	var beats, failed uint64
	var last error
	a.history.update(func(s *Status) { beats, failed, last = s.Unacknowledged, s.UnacknowledgedFailed, l.last })
	if beats == l.beats || now.Sub(l.at) < logPeriod {
		return
	}
	a.cfg.Logger.Warn("beats were not acknowledged in time; their holders were renewed in another way",
		"beats", beats-l.beats, "failed", failed-l.failed, "last_error", last)
	l.at, l.beats, l.failed = now, beats, failed
}

// unacknowledged returns up to limit holders whose last acknowledgement is older than a beat may
// be, and marks them as reported. A holder that was not observed for an interval, or since its last
// acknowledged beat, may be dead. One that is superseded has another boot.
func (r *router) unacknowledged(now time.Time, interval time.Duration, limit int) []Holder {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []Holder
	for _, e := range r.entries {
		switch {
		case len(found) == limit:
			return found
		case e.reporting || e.superseded || now.Before(e.dueAt(interval)):
		case e.report.observes() && (now.Sub(e.report.ObservedTime) > interval || !e.report.ObservedTime.After(e.renewal.Observed)):
		default:
			e.reporting, e.reportedAt = true, now
			found = append(found, e.holder)
		}
	}
	return found
}

// dueAt is when Config.Unacknowledged is called if no beat is acknowledged before: when the beat
// after the last acknowledgement has waited long enough, and then once in an interval.
func (e *entry) dueAt(interval time.Duration) time.Time {
	acknowledged := e.addedAt
	if e.renewal.Accepted.After(acknowledged) {
		acknowledged = e.renewal.Accepted
	}
	due := acknowledged.Add(interval + acknowledgedWithin(interval))
	if again := e.reportedAt.Add(interval); again.After(due) {
		return again
	}
	return due
}

// reported says that a call of Config.Unacknowledged has returned.
func (r *router) reported(h Holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entries[h.key()]; e != nil && e.holder == h {
		e.reporting = false
	}
}
