package leasesvc

import (
	"slices"
	"time"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// answer is one response message, used again for the next: gRPC has encoded a message when it has taken it.
type answer struct {
	response leasev1.StreamHeartbeatsResponse
	// lost is set when a holder of the message belongs to another boot now.
	lost bool
}

func (a *answer) begin(sequence uint64) {
	r := &a.response
	r.Sequence, r.Welcomes, r.Grant, r.RefusedHandles, r.Directive, r.MoveTo = sequence, nil, nil, nil, 0, ""
	a.lost = false
}

// respond does what a message asks for and leaves the answer in c.answer. An error ends the stream.
//
// A message of beats alone, all of them of holders that are alive, asks nobody and allocates nothing.
func (c *connection) respond(request *leasev1.StreamHeartbeatsRequest) error {
	if err := c.check(request); err != nil {
		return err
	}
	directive, err := c.directive()
	if err != nil {
		return err
	}
	c.answer.begin(request.Sequence)
	c.answer.response.Directive = directive
	silence, renewed := c.hear(request)
	c.answer.response.Welcomes = c.introductions(request)
	if x := c.exchange; len(x.Registrations)+len(x.Refs) > 0 {
		x.Sequence = request.Sequence
		if err := c.sessions.Process(c.wire.Context(), x); err != nil {
			return err
		}
		reception := c.reception()
		c.welcome(reception)
		renewed = c.recovered(renewed, reception)
		reception.handOn()
	}
	if renewed.Interval == 0 {
		return nil // nobody was renewed
	}
	c.answer.response.Grant = c.grants[c.grants.place(renewed)].wire
	// Whoever introduces holders has reason not to wait.
	if len(request.Holders) == 0 && c.pace.note(silence, renewed.Interval) && directive == 0 {
		c.answer.response.Directive = leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN
	}
	return nil
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

// hear renews the sessions of holders that are alive, and fills the exchange with the others. The silence is the first holder's.
func (c *connection) hear(request *leasev1.StreamHeartbeatsRequest) (silence time.Duration, renewed sessioncontroller.Grant) {
	x := c.exchange
	x.Refs, c.missed = x.Refs[:0], c.missed[:0]
	now, running := c.sessions.Now()
	silence = c.silence(now, request.Handles)
	last, count := -1, 0
	for _, number := range request.Handles {
		h := &c.handles[number-1]
		if !running || !c.sessions.Beat(now, h.ref, request.Sequence) {
			x.Refs, c.missed = append(x.Refs, h.ref), append(c.missed, number)
			continue
		}
		if count++; int(h.grant) != last {
			last = int(h.grant)
			renewed = renewed.Min(c.grants[h.grant].Grant)
		}
	}
	if count > 0 {
		c.service.metrics.count(session.Renewed, count)
	}
	return silence, renewed
}

// silence is for how long the first of the handles was not heard; unheardOf where nobody knows.
func (c *connection) silence(now monotonic.Instant, handles []uint32) time.Duration {
	if len(handles) == 0 {
		return unheardOf
	}
	last, known := c.sessions.LastBeat(c.handles[handles[0]-1].ref)
	if !known {
		return unheardOf
	}
	return now.Sub(last)
}

// introductions fills the exchange with the holders whose class is served and refuses the others. Places of the former are
// left empty for welcome.
func (c *connection) introductions(request *leasev1.StreamHeartbeatsRequest) []*leasev1.Welcome {
	c.exchange.Registrations = c.exchange.Registrations[:0]
	if len(request.Holders) == 0 {
		return nil
	}
	admitted := c.gate.Admit(c.now(), len(request.Holders))
	welcomes := make([]*leasev1.Welcome, len(request.Holders))
	for i, h := range request.Holders {
		introduction, known := c.catalog.introduction(h, request.Sequence)
		if !known {
			welcomes[i] = &leasev1.Welcome{Result: &leasev1.Welcome_Refusal{Refusal: unknownClass(h.GetClass())}}
			c.service.metrics.unknownClass.Inc()
			continue
		}
		if i > 0 && introduction.Holder.Boot == request.Holders[0].BootId {
			introduction.Holder.Boot = request.Holders[0].BootId // one string for all
		}
		introduction.Deferred = len(c.exchange.Registrations) >= admitted
		c.exchange.Registrations = append(c.exchange.Registrations, introduction)
	}
	return welcomes
}

// welcome puts what the keeper said into the empty places.
func (c *connection) welcome(r *reception) {
	place, welcomes := 0, c.answer.response.Welcomes
	c.makeRoom(len(c.exchange.Results))
	for i, met := range c.exchange.Results {
		place += slices.Index(welcomes[place:], nil)
		in := &c.exchange.Registrations[i]
		welcomes[place] = c.met(met, in, r.refusal(met, in))
		c.answer.lost = c.answer.lost || met.Outcome == session.Superseded
	}
}

func (c *connection) met(met sessioncontroller.RegisterResult, in *sessioncontroller.Registration, why *leasev1.Refusal) *leasev1.Welcome {
	if why != nil {
		return &leasev1.Welcome{Result: &leasev1.Welcome_Refusal{Refusal: why}}
	}
	c.handles = append(c.handles, handle{
		ref: met.Ref, name: met.Name, boot: c.bootAt(in.Holder.Boot), class: in.Holder.Key.Class, shard: uint16(in.Shard),
		grant: c.grants.place(met.BeatGrant),
	})
	c.live++
	return &leasev1.Welcome{
		Handle: uint32(len(c.handles)), Result: &leasev1.Welcome_Grant{Grant: grantOf(met.Grant)},
	}
}

// recovered takes what came of the beats that only the keeper could take.
func (c *connection) recovered(renewed sessioncontroller.Grant, r *reception) sessioncontroller.Grant {
	x := c.exchange
	if x.Renewed > 0 {
		c.service.metrics.count(session.Renewed, x.Renewed)
		renewed = renewed.Min(x.Grant)
	}
	if renewed.Interval == 0 && c.resync(r) {
		c.answer.response.Directive = leasev1.StreamHeartbeatsResponse_DIRECTIVE_RESYNC
	}
	for _, missed := range x.Rejected {
		number := c.missed[missed.Index]
		h := &c.handles[number-1]
		if why := r.missed(missed.Outcome, c, h); c.answer.response.Directive != leasev1.StreamHeartbeatsResponse_DIRECTIVE_RESYNC {
			c.answer.response.RefusedHandles = append(c.answer.response.RefusedHandles, &leasev1.RefusedHandle{Handle: number, Refusal: why})
		}
		c.answer.lost = c.answer.lost || missed.Outcome == session.Superseded
		if !h.dead {
			h.dead = true
			c.live--
		}
	}
	return renewed
}

// manyLost is from how many sessions on that are gone all at once the client is asked to introduce all its holders again. Fewer
// may have been released one by one.
const manyLost = 8

// resync tells whether all beats of a message of which none was renewed were for sessions that are gone although their shards
// are here: those left and came back. Then one word says more than a refusal for each.
func (c *connection) resync(r *reception) bool {
	x := c.exchange
	if len(x.Rejected) < manyLost || len(x.Rejected) < len(c.missed) {
		return false
	}
	for _, missed := range x.Rejected {
		h := &c.handles[c.missed[missed.Index]-1]
		if missed.Outcome != session.Unknown || !r.holdings()[h.shard].Here {
			return false
		}
	}
	return true
}
