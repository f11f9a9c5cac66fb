package agent

import (
	"maps"
	"slices"
	"time"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// cadence is how the holders of one class beat on one stream: together, in messages of their own. So each class keeps its
// interval, however short those of others are, and an answer is about one class alone.
type cadence struct {
	interval time.Duration // of the last grant
	at       time.Time     // of the next beat
}

// sendBeats renews everybody whose class is due.
func (c *conversation) sendBeats(now time.Time) error {
	for _, class := range slices.Sorted(maps.Keys(c.cadences)) {
		own := c.cadences[class]
		if own.at.After(now) {
			continue
		}
		handles := c.roster.alive(c.post, class)
		if len(handles) == 0 {
			delete(c.cadences, class)
			continue
		}
		// Should the answer be late, the next beat is not.
		own.at = now.Add(own.interval)
		if err := c.renew(class, handles); err != nil {
			return err
		}
	}
	c.keepTime()
	return nil
}

func (c *conversation) renew(class string, handles []uint32) error {
	for chunk := range slices.Chunk(handles, maxBeats) {
		if err := c.send(&leasev1.StreamHeartbeatsRequest{Handles: chunk}, question{class: class}); err != nil {
			return err
		}
	}
	return nil
}

// join has the class beat no later than the grant to one of its holders says.
func (c *conversation) join(class string, grant *leasev1.Grant) {
	interval := intervalOf(grant)
	at := c.now.Add(interval)
	if own := c.cadences[class]; own == nil {
		c.cadences[class] = &cadence{interval: interval, at: at}
	} else if at.Before(own.at) {
		own.at = at
	}
	c.adopt(grant)
}

// rhythm lets the next beat of a class follow by the interval that an answer to its beat gives.
func (c *conversation) rhythm(class string, grant *leasev1.Grant) {
	interval := intervalOf(grant)
	c.cadences[class] = &cadence{interval: interval, at: c.now.Add(interval)}
	c.adopt(grant)
}

// adopt notes a grant for people, and keeps time by what follows from it.
func (c *conversation) adopt(grant *leasev1.Grant) {
	c.keepTime()
	c.journal.note(func(s *Status) {
		s.Epoch, s.Interval, s.TTL = grant.Epoch, intervalOf(grant), grant.Ttl.AsDuration()
	})
}

// keepTime sets the alarm for the next beat of any class. Without any the interval stays that of the last.
func (c *conversation) keepTime() {
	var next time.Time
	shortest := time.Duration(0)
	for _, own := range c.cadences {
		next = earlier(next, own.at)
		if shortest == 0 || own.interval < shortest {
			shortest = own.interval
		}
	}
	if shortest > 0 {
		c.interval = shortest
	}
	set(c.beat, next)
}

func intervalOf(grant *leasev1.Grant) time.Duration {
	return max(grant.GetNextInterval().AsDuration(), minInterval)
}
