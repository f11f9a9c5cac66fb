package sessioncontroller

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// supersededFor returns the time until a rejected boot may have the session: until the session of
// the current boot expires if no further beat comes, and at least one interval.
func (c *Controller) supersededFor(now monotonic.Instant, ref session.Ref) time.Duration {
	s, ok := c.table.At(ref.Slot())
	if !ok {
		return 0
	}
	return max(s.Deadline.Sub(now), c.cfg.Classes[s.Holder.Key.Class].Session.Interval)
}

// reportDuplicate reports a rejected boot from its second rejection on. A single one may be a late
// message.
func (c *Controller) reportDuplicate(now monotonic.Instant, ref session.Ref) {
	s, ok := c.table.At(ref.Slot())
	if !ok {
		return
	}
	d, ok := c.table.Duplicate(now, s.Ref)
	if !ok || d.Rejections < 2 {
		return
	}
	if d.Rejections == 2 {
		c.changes.touch(ref.Slot())
		c.problemSlots.duplicates.add(ref.Slot())
		c.counts.duplicates.Add(1)
		c.cfg.Logger.Warn("two boots of one holder send heartbeats; the boot that registered last keeps the session",
			"class", c.cfg.Classes[s.Holder.Key.Class].Session.Name, "holder", s.Holder.Key.Name, "kept", s.Holder.Boot, "rejected", d.Boot)
	}
	c.onDuplicate(DuplicateBoots{Holder: s.Holder.Key, Current: s.Holder.Boot, Other: d.Boot})
}

// reportReturn reports that a replaced boot took its session back.
func (c *Controller) reportReturn(ref session.Ref, h session.Holder) {
	other, returned := c.table.Returned(ref)
	if !returned {
		return
	}
	c.counts.duplicates.Add(1)
	c.cfg.Logger.Warn("a replaced boot has the session again, so two machines have the name of one holder",
		"class", c.cfg.Classes[h.Key.Class].Session.Name, "holder", h.Key.Name, "returned", h.Boot, "replaced", other)
	c.onDuplicate(DuplicateBoots{Holder: h.Key, Current: h.Boot, Other: other})
}

func (c *Controller) onDuplicate(boots DuplicateBoots) {
	if c.cfg.OnDuplicate != nil {
		c.cfg.OnDuplicate(boots)
	}
}
