package api

import (
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// fullRetryAfter is when a holder may try again that found a full table.
const fullRetryAfter = time.Minute

// noLeaderRetryAfter is when a holder may try again while no replica leads its shard.
const noLeaderRetryAfter = 500 * time.Millisecond

// reply makes the rejections of one message, counts its results, and forwards the beats of holders
// whose shards other replicas lead. It asks for the owners of the shards once for a message, and
// only if a holder is redirected.
type reply struct {
	server *Server
	caller *authn.Caller
	method string
	// forwarded is set for a message from a peer, whose beats are not forwarded again.
	forwarded  bool
	owners     Owners                      // nil until needed
	redirected map[string]*redirectedBeats // by the address of the replica
}

type redirectedBeats struct {
	beats      []Beat
	rejections []*leasev1.Rejection
}

func newReply(server *Server, caller *authn.Caller, method string) *reply {
	return &reply{server: server, caller: caller, method: method}
}

// registrationRejection returns why a registration was rejected; nil if it was accepted.
func (r *reply) registrationRejection(result *sessioncontroller.RegisterResult, registration *sessioncontroller.Registration) *leasev1.Rejection {
	if result.NotHeld {
		h := registration.Holder
		return r.redirect(registration.Shard, Beat{
			Class: r.server.Catalog.Get(h.Key.Class).Name, Name: h.Key.Name, Boot: h.Boot,
			Sequence: registration.Sequence, Report: registration.Report, Owner: registration.Owner, Mode: forwardableMode(registration.Agent),
		})
	}
	if result.Deferred {
		r.server.metrics.deferred.Inc()
		// Each holder returns at another time, and before its next beat is due.
		interval := r.server.Catalog.Get(registration.Holder.Key.Class).HeartbeatInterval
		pause := backoff.Jitter(min(2*r.server.registrations.retryAfter(time.Now()), interval))
		return &leasev1.Rejection{
			Reason: string(reasonRegistrationRateLimited), Code: code.Code_UNAVAILABLE,
			Message: "registrations are rate-limited; register again after retry_after", RetryAfter: durationpb.New(pause),
		}
	}
	if result.OwnerFull {
		r.server.metrics.tooManyOfOwner.Inc()
		return &leasev1.Rejection{
			Reason: string(reasonTooManyHolders), Code: code.Code_RESOURCE_EXHAUSTED,
			Message:    fmt.Sprintf("user %q has opened %d leases here (--max-leases-per-identity)", registration.Owner, r.server.MaxLeasesPerIdentity),
			RetryAfter: durationpb.New(backoff.Jitter(2 * fullRetryAfter)),
		}
	}
	r.server.metrics.count(result.Outcome, 1)
	if result.Outcome == session.TookOver {
		r.server.reportTakeover(r.caller, r.method, registration.Holder)
	}
	return rejectionOf(result.Outcome, result.RetryAfter)
}

// maxModeBytes bounds the mode of a forwarded beat; those of trivet-agent are shorter.
const maxModeBytes = 16

// forwardableMode returns the mode of an agent, or nothing if no peer would accept it.
func forwardableMode(agent session.Agent) string {
	if len(agent.Mode) > maxModeBytes {
		return ""
	}
	return agent.Mode
}

// beatRejection returns why the beat of a handle was rejected.
func (r *reply) beatRejection(rejected sessioncontroller.RejectedBeat, shard int, beat Beat) *leasev1.Rejection {
	if rejected.Outcome == session.Unknown && !r.holds(shard) {
		return r.redirect(shard, beat) // the lease has moved with its shard
	}
	r.server.metrics.count(rejected.Outcome, 1)
	return rejectionOf(rejected.Outcome, rejected.RetryAfter)
}

// holds reports whether this replica leads a shard.
func (r *reply) holds(shard int) bool { return r.currentOwners()[shard].Here }

func (r *reply) currentOwners() Owners {
	if r.owners == nil {
		r.owners = r.server.Owners()
	}
	return r.owners
}

// redirect returns a rejection that names the replica that leads a shard, and remembers the beat
// for forward.
func (r *reply) redirect(shard int, beat Beat) *leasev1.Rejection {
	address := r.currentOwners().Address(shard)
	if address == "" {
		r.server.metrics.noLeader.Inc()
		return &leasev1.Rejection{
			Reason: string(rpcerror.NoLeaderReason), Code: code.Code_UNAVAILABLE,
			Message:    fmt.Sprintf("no replica leads shard %d yet; register again after retry_after", shard),
			RetryAfter: durationpb.New(backoff.Jitter(noLeaderRetryAfter)),
		}
	}
	r.server.metrics.notLeader.Inc()
	rejection := &leasev1.Rejection{
		Reason: string(rpcerror.NotLeaderReason), Code: code.Code_FAILED_PRECONDITION,
		Message: sessioncontroller.NotHeldError{Shard: shard}.Error(), RedirectAddress: address,
	}
	if r.forwarded {
		return rejection
	}
	if r.redirected == nil {
		r.redirected = map[string]*redirectedBeats{}
	}
	to := r.redirected[address]
	if to == nil {
		to = &redirectedBeats{}
		r.redirected[address] = to
	}
	to.beats, to.rejections = append(to.beats, beat), append(to.rejections, rejection)
	return rejection
}

// forward offers the redirected beats to the Forwarder, so that no session expires while its holder
// moves. It is called once, after the last rejection.
func (r *reply) forward() {
	if r.server.Forwarder == nil {
		return
	}
	for address, to := range r.redirected {
		if !r.server.Forwarder.Offer(address, to.beats) {
			continue
		}
		for _, rejection := range to.rejections {
			rejection.Forwarded = true
		}
	}
}

// unknownClass counts and rejects a holder of a class that is not served.
func (s *Server) unknownClass(name string) *leasev1.Rejection {
	s.metrics.unknownClass.Inc()
	return &leasev1.Rejection{
		Reason: string(reasonUnknownClass), Code: code.Code_INVALID_ARGUMENT, Message: unknownClassMessage(name),
	}
}

// rejectionOf returns the rejection for an outcome; nil if the outcome is accepted. supersededFor
// is the pause of a Superseded holder.
func rejectionOf(outcome session.Outcome, supersededFor time.Duration) *leasev1.Rejection {
	switch outcome {
	case session.Superseded:
		return &leasev1.Rejection{
			Reason: string(reasonSuperseded), Code: code.Code_ABORTED, Message: sessioncontroller.ErrSuperseded.Error(),
			RetryAfter: durationpb.New(supersededFor),
		}
	case session.Full:
		return &leasev1.Rejection{
			Reason: string(reasonTooManyHolders), Code: code.Code_RESOURCE_EXHAUSTED,
			Message: "this replica keeps no further leases", RetryAfter: durationpb.New(fullRetryAfter),
		}
	case session.Unknown:
		return &leasev1.Rejection{
			Reason: string(reasonLeaseNotFound), Code: code.Code_NOT_FOUND,
			Message: "the lease of this handle is gone; register the holder again", RetryAfter: durationpb.New(0),
		}
	}
	return nil
}

// Owners are the owners of all shards at one moment, by shard number, as this replica sees them.
type Owners []term.ShardStatus

// Address returns the gRPC address of the replica that leads a shard. It is empty if no replica
// leads it, and if this replica has claimed it and does not serve it yet: the caller must not be
// sent to itself.
func (o Owners) Address(shard int) string {
	if o[shard].Here {
		return ""
	}
	return o[shard].GRPCAddress
}

// Any returns the address of a random other replica that holds a shard, so that redirected clients
// spread; empty if there is none.
func (o Owners) Any() string {
	if len(o) == 0 {
		return ""
	}
	first := rand.N(len(o))
	for i := range o {
		if address := o.Address((first + i) % len(o)); address != "" {
			return address
		}
	}
	return ""
}
