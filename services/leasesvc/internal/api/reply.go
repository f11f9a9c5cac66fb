package api

import (
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// fullRetryAfter is when a holder may try again that was refused because of MaxSessions.
const fullRetryAfter = time.Minute

// reply makes the refusals of one message, counts its results, and forwards the beats of holders
// whose shards other replicas hold. It asks for the owners of the shards once for a message, and
// only if a holder is redirected.
type reply struct {
	server *Server
	// keepBeats is set for a message from a peer, whose beats are not forwarded again.
	keepBeats  bool
	owners     Owners                      // nil until needed
	redirected map[string]*redirectedBeats // by the address of the replica
}

type redirectedBeats struct {
	beats    []Beat
	refusals []*leasev1.Refusal
}

func newReply(server *Server) *reply { return &reply{server: server} }

// registrationRefusal returns why a registration was refused; nil if it was accepted.
func (r *reply) registrationRefusal(result *sessioncontroller.RegisterResult, registration *sessioncontroller.Registration) *leasev1.Refusal {
	if result.NotHeld {
		h := registration.Holder
		return r.redirect(registration.Shard, Beat{
			Class: r.server.Catalog.Get(h.Key.Class).Name, Name: h.Key.Name, Boot: h.Boot, Sequence: registration.Sequence,
		})
	}
	if result.Deferred {
		r.server.metrics.deferred.Inc()
		// Each holder returns at another time, and before its next beat is due.
		interval := r.server.Catalog.Get(registration.Holder.Key.Class).HeartbeatInterval
		pause := jitter(min(2*r.server.registrations.retryAfter(time.Now()), interval))
		return &leasev1.Refusal{
			Reason: string(reasonPaced), Message: "registrations are rate-limited; register again after retry_after", RetryAfter: durationpb.New(pause),
		}
	}
	r.server.metrics.count(result.Outcome, 1)
	return refusalOf(result.Outcome)
}

// beatRefusal returns why the beat of a handle was refused.
func (r *reply) beatRefusal(outcome session.Outcome, shard int, beat Beat) *leasev1.Refusal {
	if outcome == session.Unknown && !r.holds(shard) {
		return r.redirect(shard, beat) // the session has moved with its shard
	}
	r.server.metrics.count(outcome, 1)
	return refusalOf(outcome)
}

// holds reports whether this replica holds a shard.
func (r *reply) holds(shard int) bool { return r.currentOwners()[shard].Here }

func (r *reply) currentOwners() Owners {
	if r.owners == nil {
		r.owners = r.server.Owners()
	}
	return r.owners
}

// redirect returns a refusal that names the replica of a shard, and remembers the beat for forward.
func (r *reply) redirect(shard int, beat Beat) *leasev1.Refusal {
	r.server.metrics.notLeader.Inc()
	address := r.currentOwners().Address(shard)
	refusal := &leasev1.Refusal{
		Reason: string(rpcerror.NotLeaderReason), Message: sessioncontroller.NotHeldError{Shard: shard}.Error(), MoveTo: address,
	}
	if r.keepBeats || address == "" {
		return refusal
	}
	if r.redirected == nil {
		r.redirected = map[string]*redirectedBeats{}
	}
	to := r.redirected[address]
	if to == nil {
		to = &redirectedBeats{}
		r.redirected[address] = to
	}
	to.beats, to.refusals = append(to.beats, beat), append(to.refusals, refusal)
	return refusal
}

// forward offers the redirected beats to the Forwarder, so that no session expires while its holder
// moves. It is called once, after the last refusal.
func (r *reply) forward() {
	if r.server.Forwarder == nil {
		return
	}
	for address, to := range r.redirected {
		if !r.server.Forwarder.Offer(address, to.beats) {
			continue
		}
		for _, refusal := range to.refusals {
			refusal.Forwarded = true
		}
	}
}

// unknownClass counts and refuses a holder of a class that is not served.
func (s *Server) unknownClass(name string) *leasev1.Refusal {
	s.metrics.unknownClass.Inc()
	return &leasev1.Refusal{Reason: string(reasonUnknownClass), Message: fmt.Sprintf("class %q is not served here", name)}
}

// refusalOf returns the refusal for an outcome; nil if the outcome is accepted.
func refusalOf(outcome session.Outcome) *leasev1.Refusal {
	switch outcome {
	case session.Superseded:
		return &leasev1.Refusal{Reason: string(reasonSuperseded), Message: sessioncontroller.ErrSuperseded.Error()}
	case session.Full:
		return &leasev1.Refusal{
			Reason: string(reasonTooManyHolders), Message: "this replica keeps no further sessions", RetryAfter: durationpb.New(fullRetryAfter),
		}
	case session.Unknown:
		return &leasev1.Refusal{
			Reason: string(reasonUnknownHandle), Message: "the session of this handle is gone; register the holder again",
		}
	}
	return nil
}

// Owners are the owners of all shards at one moment, by shard number, as this replica sees them.
type Owners []term.ShardStatus

// Address returns the gRPC address of the replica that holds a shard. It is empty if no replica
// holds it, and if this replica has claimed it and does not serve it yet: the caller must not be
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
