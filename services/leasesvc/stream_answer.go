package leasesvc

import (
	"slices"
	"time"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/keeper"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// answer is one response message.
type answer struct {
	*leasev1.StreamHeartbeatsResponse
	// lost is set when a holder of the message belongs to another boot now.
	lost bool
}

// answer does what a message asks for. An error ends the stream.
func (c *connection) answer(request *leasev1.StreamHeartbeatsRequest) (*answer, error) {
	if err := c.check(request); err != nil {
		return nil, err
	}
	a := &answer{StreamHeartbeatsResponse: &leasev1.StreamHeartbeatsResponse{Sequence: request.Sequence}}
	x := c.exchange
	x.Sequence = request.Sequence
	a.Welcomes = c.introductions(request)
	x.Refs = x.Refs[:0]
	for _, number := range request.Handles {
		x.Refs = append(x.Refs, c.handles[number-1].ref)
	}
	if err := c.sessions.Exchange(c.wire.Context(), x); err != nil {
		return nil, err
	}
	reception := c.reception()
	c.welcome(a, reception)
	c.renewed(a, request.Handles, reception)
	if c.hasty(request) {
		a.Directive = leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN
	}
	return a, nil
}

// check refuses what the protocol forbids.
func (c *connection) check(request *leasev1.StreamHeartbeatsRequest) error {
	if err := checkStreamRequest(request); err != nil {
		return err
	}
	if request.Sequence <= c.sequence {
		return sequenceError{got: request.Sequence, last: c.sequence}
	}
	if c.sequence == 0 && len(request.Holders) == 0 {
		return errHolderExpected
	}
	if len(c.handles)+len(request.Holders) > maxHandles {
		return errStreamFull
	}
	for _, number := range request.Handles {
		if number == 0 || int(number) > len(c.handles) {
			return handleError{handle: number}
		}
	}
	c.sequence = request.Sequence
	return nil
}

// introductions fills the exchange with the holders whose class is served and refuses the others. Places of the former are
// left empty for welcome.
func (c *connection) introductions(request *leasev1.StreamHeartbeatsRequest) []*leasev1.Welcome {
	c.exchange.Holders = c.exchange.Holders[:0]
	if len(request.Holders) == 0 {
		return nil
	}
	welcomes := make([]*leasev1.Welcome, len(request.Holders))
	for i, h := range request.Holders {
		introduction, known := c.catalog.introduction(h, request.Sequence)
		if !known {
			welcomes[i] = &leasev1.Welcome{Result: &leasev1.Welcome_Refusal{Refusal: unknownClass(h.GetClass())}}
			c.service.metrics.unknownClass.Inc()
			continue
		}
		c.exchange.Holders = append(c.exchange.Holders, introduction)
	}
	return welcomes
}

// welcome puts what the keeper said into the empty places.
func (c *connection) welcome(a *answer, r *reception) {
	place := 0
	for i, met := range c.exchange.Met {
		place += slices.Index(a.Welcomes[place:], nil)
		shard := c.exchange.Holders[i].Shard
		a.Welcomes[place] = c.met(met, shard, r.refusal(met, shard))
		a.lost = a.lost || met.Outcome == session.Superseded
	}
}

func (c *connection) met(met keeper.Met, shard int, why *leasev1.Refusal) *leasev1.Welcome {
	if why != nil {
		return &leasev1.Welcome{Result: &leasev1.Welcome_Refusal{Refusal: why}}
	}
	c.handles = append(c.handles, handle{ref: met.Ref, shard: uint16(shard)})
	c.live++
	return &leasev1.Welcome{
		Handle: uint32(len(c.handles)), Result: &leasev1.Welcome_Grant{Grant: grantOf(met.Grant)},
	}
}

func (c *connection) renewed(a *answer, numbers []uint32, r *reception) {
	x := c.exchange
	if x.Renewed > 0 {
		c.service.metrics.count(session.Renewed, x.Renewed)
		a.Grant = grantOf(x.Grant)
	}
	for _, missed := range x.Missed {
		number := numbers[missed.Index]
		h := &c.handles[number-1]
		why := r.missed(missed.Outcome, int(h.shard))
		a.RefusedHandles = append(a.RefusedHandles, &leasev1.RefusedHandle{Handle: number, Refusal: why})
		a.lost = a.lost || missed.Outcome == session.Superseded
		if !h.dead {
			h.dead = true
			c.live--
		}
	}
}

// hasty looks at messages that only beat: whoever introduces holders has reason not to wait.
func (c *connection) hasty(request *leasev1.StreamHeartbeatsRequest) bool {
	if len(request.Holders) > 0 || c.exchange.Renewed == 0 {
		return false
	}
	return c.pace.note(time.Now(), c.exchange.Grant.Interval)
}
