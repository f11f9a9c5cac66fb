package leasesvc

import (
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/keeper"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// reception counts what came of the beats of one message and words the refusals. It asks who holds the shards once for the
// whole message, and only if somebody is to be sent away.
type reception struct {
	*server
	all shards // nil until it is needed
}

func (s *server) reception() *reception { return &reception{server: s} }

// refusal tells a holder that was introduced why it was not accepted; nil when it was.
func (r *reception) refusal(met keeper.Met, shard int) *leasev1.Refusal {
	if met.Elsewhere {
		return r.moved(shard)
	}
	r.service.metrics.count(met.Outcome, 1)
	return refusal(met.Outcome)
}

// missed tells why a handle was not renewed. A session that is gone together with its shard is to be found where that went.
func (r *reception) missed(outcome session.Outcome, shard int) *leasev1.Refusal {
	if outcome == session.Unknown && !r.holdings()[shard].Here {
		return r.moved(shard)
	}
	r.service.metrics.count(outcome, 1)
	return refusal(outcome)
}

func (r *reception) moved(shard int) *leasev1.Refusal {
	r.service.metrics.elsewhere.Inc()
	return moved(shard, r.holdings())
}

func (r *reception) holdings() shards {
	if r.all == nil {
		r.all = r.shards()
	}
	return r.all
}
