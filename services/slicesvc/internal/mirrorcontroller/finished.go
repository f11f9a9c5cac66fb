package mirrorcontroller

import (
	"cmp"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// Finished implements slicecontroller.Source. It publishes a sync as metrics, Events and log
// messages.
func (c *Controller) Finished(key Key, _ slicecontroller.Object, done slicecontroller.FinishedSync) {
	report, ok := c.reports.get(key)
	if !ok {
		c.upstream.observeSync(done, mirror.Resolved{})
		return
	}
	c.upstream.observeSync(done, report.resolved)
	bothSources := report.planned.reason() == "" && c.deps.Services.SliceCount(key) > 0
	now := published{}
	if report.planned.object != nil {
		now = c.publish(report, done)
	}
	c.reports.finished(key, bothSources, now)
	if bothSources != !report.bothSourcesSince.IsZero() {
		c.Changed(key)
	}
	if done.Complete {
		c.callWritten(key)
	}
}

// publish publishes what is new about an object as Events and log messages, and returns what has
// been published about it.
func (c *Controller) publish(report report, done slicecontroller.FinishedSync) published {
	object, before := report.planned.object, report.published
	if before.uid != object.UID {
		before = published{uid: object.UID}
	}
	now := published{
		uid:     object.UID,
		writers: before.writers,
		invalid: report.resolved.InvalidCount,
		tooMany: report.resolved.TooMany,
	}
	if now.invalid != before.invalid && now.invalid > 0 {
		c.events.invalid(object, report.resolved)
	}
	if now.tooMany != before.tooMany && now.tooMany > 0 {
		c.events.tooMany(object, c.cfg.Limits.PerSubset, now.tooMany)
	}
	if report.planned.reason() == "" {
		if writer := cmp.Or(writerOf(object), unknownWriter); len(now.writers) < maxWriters && !slices.Contains(now.writers, writer) {
			now.writers = append(slices.Clip(now.writers), writer)
			c.logger.Warn("hand-made Endpoints are mirrored: Endpoints are deprecated, EndpointSlices replace them",
				"endpoints", keyOf(object).String(), "writer", writer)
			if created(done) {
				c.events.mirrored(object, writer)
			}
		}
	}
	now.failure = before.failure
	switch {
	case done.Err == nil && done.Complete:
		now.failure = ""
	case done.Err != nil && !needsNoEvent(done.Err) && done.Err.Error() != before.failure:
		now.failure = done.Err.Error()
		c.events.failed(object, done.Err)
	}
	return now
}

// needsNoEvent returns whether an error is followed by a sync at once, or an Event would add to the
// load of a kube-apiserver that throttles.
func needsNoEvent(err error) bool {
	_, throttled := kube.RetryAfter(err)
	return throttled || errors.Is(err, kube.ErrConflict)
}

// created returns whether a sync wrote the first slices of an object.
func created(done slicecontroller.FinishedSync) bool {
	for i := range done.Plan.Changes {
		if done.Plan.Changes[i].Verb != planned.Create {
			return false
		}
	}
	return len(done.Plan.Changes) > 0
}

// unknownWriter stands for the writer of an object without managed fields.
const unknownWriter = "unknown"

// writerOf returns the field manager that wrote an Endpoints object last; empty if it is not known.
func writerOf(object *corev1.Endpoints) string {
	if newest := kube.NewestManager(object.ManagedFields); len(newest) > 0 {
		return newest[0].Manager
	}
	return ""
}
