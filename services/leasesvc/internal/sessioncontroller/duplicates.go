package sessioncontroller

import (
	"time"

	"github.com/trivet-dev/trivet/internal/decisions"
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
		c.recordLease(decisions.LeaseDuplicated, ref.Slot(), s.Holder.Key, "boot "+s.Holder.Boot+" keeps the session, boot "+d.Boot+" is rejected", now)
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
	c.recordLease(decisions.LeaseDuplicated, ref.Slot(), h.Key, "boot "+h.Boot+" took the session back from boot "+other, c.now())
	c.onDuplicate(DuplicateBoots{Holder: h.Key, Current: h.Boot, Other: other})
}

// recordLease records a decision about the session in a slot. It makes no text, because all
// sessions may expire at once.
func (c *Controller) recordLease(action decisions.Action, slot uint32, holder session.Key, message string, now monotonic.Instant) {
	if c.cfg.Decisions == nil {
		return
	}
	class := &c.cfg.Classes[holder.Class]
	decision := decisions.Decision{
		Action: action, Message: message,
		Object: decisions.Object{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: class.Namespace, Name: holder.Name},
	}
	if !class.Unowned {
		decision.Node = holder.Name
	}
	if s, ok := c.table.At(slot); ok {
		decision.InputAge = now.Sub(s.LastBeat)
	}
	if shard := *c.shards.At(slot); int(shard) < len(c.held) && c.held[shard] != nil {
		decision.Shard, decision.Epoch = int32(shard), c.held[shard].Epoch()
	}
	c.cfg.Decisions.Record(decision)
}

func (c *Controller) onDuplicate(boots DuplicateBoots) {
	if c.cfg.OnDuplicate != nil {
		c.cfg.OnDuplicate(boots)
	}
}
