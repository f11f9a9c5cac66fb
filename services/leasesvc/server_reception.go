package leasesvc

import (
	"time"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/peers"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// reception counts what came of the beats of one message, hands on those that belong elsewhere, and words the refusals. It
// asks who holds the shards once for the whole message, and only if somebody is to be sent away.
type reception struct {
	*server
	all shards // nil until it is needed
	// final beats were handed on before and go no further.
	final bool
	// away are the beats for each other replica, with the refusals that tell of it.
	away map[string]*departed
}

type departed struct {
	beats    []peers.Beat
	refusals []*leasev1.Refusal
}

func (s *server) reception() *reception { return &reception{server: s} }

// refusal tells a holder that was introduced why it was not accepted; nil when it was.
func (r *reception) refusal(met sessioncontroller.RegisterResult, in *sessioncontroller.Registration) *leasev1.Refusal {
	if met.NotHeld {
		return r.moved(in.Holder, in.Sequence, in.Shard)
	}
	if met.Deferred {
		r.service.metrics.paced.Inc()
		return paced(r.turn(in))
	}
	r.service.metrics.count(met.Outcome, 1)
	return refusal(met.Outcome)
}

// turn is when a paced holder shall come again: in the order in which they came, and in time to live on.
func (r *reception) turn(in *sessioncontroller.Registration) time.Duration {
	patience := r.catalog.classes[in.Holder.Key.Class].HeartbeatInterval
	return jittered(min(2*r.gate.Wait(r.now()), patience))
}

// missed tells why a handle was not renewed. A session that is gone together with its shard is to be found where that went.
func (r *reception) missed(outcome session.Outcome, c *connection, h *handle) *leasev1.Refusal {
	if outcome == session.Unknown && !r.holdings()[h.shard].Here {
		return r.moved(c.holder(h), c.sequence, int(h.shard))
	}
	r.service.metrics.count(outcome, 1)
	return refusal(outcome)
}

func (r *reception) moved(h session.Holder, sequence uint64, shard int) *leasev1.Refusal {
	r.service.metrics.elsewhere.Inc()
	why := moved(shard, r.holdings())
	if r.final || why.MoveTo == "" {
		return why
	}
	if r.away == nil {
		r.away = map[string]*departed{}
	}
	d := r.away[why.MoveTo]
	if d == nil {
		d = &departed{}
		r.away[why.MoveTo] = d
	}
	d.beats = append(d.beats, peers.Beat{
		Class: r.catalog.classes[h.Key.Class].Name, Name: h.Key.Name, Boot: h.Boot, Sequence: sequence,
	})
	d.refusals = append(d.refusals, why)
	return why
}

// handOn gives the beats of those who were sent away to the replicas where they belong, so that no session dies while its
// holder moves. It is called once, behind the last refusal.
func (r *reception) handOn() {
	for owner, d := range r.away {
		if !r.service.forward(owner, d.beats) {
			continue
		}
		for _, why := range d.refusals {
			why.Forwarded = true
		}
	}
}

func (r *reception) holdings() shards {
	if r.all == nil {
		r.all = r.shards()
	}
	return r.all
}
