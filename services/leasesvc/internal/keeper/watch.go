package keeper

import (
	"context"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// EventType says what happened to a session.
type EventType uint8

const (
	// Added sessions began.
	Added EventType = iota
	// Modified sessions changed in state, boot or last write.
	Modified
	// Deleted sessions were released or forgotten. Their Lease has a holder, an epoch and a last write, and no times.
	Deleted
	// Dismissed is the end of a shard here, and of all its sessions.
	Dismissed
)

// Event is one change of one session, or the end of many.
type Event struct {
	Type  EventType
	Lease Lease
	// Dismissed are the sessions of the shard, of all classes and in no particular order, each like a Deleted one. Readers
	// share them.
	Dismissed []Lease
}

// Subscription is the changes of sessions since a moment.
type Subscription struct {
	// Existing are the sessions of that moment, in no particular order.
	Existing []Lease
	// Events are what happened after it, in order. The channel is closed when the reader was too slow, with the last events
	// lost; it stays open at the end of the Keeper.
	Events <-chan *Event

	events  chan *Event
	classes []bool // by session.ClassID; nil for all
}

// Watch subscribes to the sessions of the classes that are marked, or of all for nil. The subscriber calls Unwatch in the end.
func (k *Keeper) Watch(ctx context.Context, classes []bool) (*Subscription, error) {
	events := make(chan *Event, k.cfg.WatchQueue)
	sub := &Subscription{Events: events, events: events, classes: classes}
	err := k.do(ctx, func() {
		for _, key := range k.table.Keys() {
			if s, known := k.table.Get(key); known && sub.Wants(key.Class) {
				sub.Existing = append(sub.Existing, k.lease(s))
			}
		}
		k.watchers[sub] = struct{}{}
	})
	if err != nil {
		return nil, err
	}
	return sub, nil
}

// Unwatch ends a subscription. It may be repeated.
func (k *Keeper) Unwatch(sub *Subscription) {
	// The only error is that nothing is kept any more, and the subscription is gone with it.
	_ = k.do(context.Background(), func() { delete(k.watchers, sub) })
}

// Wants tells whether sessions of a class are subscribed to.
func (s *Subscription) Wants(class session.ClassID) bool {
	return s.classes == nil || s.classes[class]
}

// announce tells the watchers how the session in a slot stands.
func (k *Keeper) announce(what EventType, slot uint32) {
	if len(k.watchers) == 0 {
		return
	}
	if s, taken := k.table.At(slot); taken {
		k.send(&Event{Type: what, Lease: k.lease(s)})
	}
}

func (k *Keeper) send(e *Event) {
	for sub := range k.watchers {
		if e.Type != Dismissed && !sub.Wants(e.Lease.Holder.Key.Class) {
			continue
		}
		select {
		case sub.events <- e:
		default:
			close(sub.events)
			delete(k.watchers, sub)
		}
	}
}
