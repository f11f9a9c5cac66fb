package gateway

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// fresh is an answer that says what it was made from.
type fresh interface {
	comparable
	GetFreshness() *statusv1.Freshness
}

// reply is how one replica answered.
type reply[Answer fresh] struct {
	answer Answer
	err    error
	member term.Member
	took   time.Duration
}

// best asks all replicas at once and takes the answer of the one that made it under a term, as soon as it is there; without one,
// the answer from the newest cache. That something does not exist is an answer, too, but a cache that lags misses what is new:
// without a term every replica must have been heard for it. The error is what replicas said that could be asked, or NO_SOURCE.
func best[Answer fresh](ctx context.Context, s *replicas, call func(context.Context, grpc.ClientConnInterface) (Answer, error)) (Answer, error) {
	asking, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	members := s.members()
	replies := make(chan reply[Answer], len(members)) // nobody waits for who is not needed any more
	for _, member := range members {
		go func() {
			started := time.Now()
			answer, err := askOne(asking, s, member, call)
			replies <- reply[Answer]{answer: answer, err: err, member: member, took: time.Since(started)}
		}()
	}
	var heard poll[Answer]
	for range members {
		if next := <-replies; heard.take(next) {
			return next.answer, next.err
		}
	}
	return heard.outcome(ctx, s)
}

func askOne[Answer any](ctx context.Context, s *replicas, member term.Member, call func(context.Context, grpc.ClientConnInterface) (Answer, error)) (Answer, error) {
	conn, err := s.pool.Connection(member)
	if err != nil {
		var none Answer
		return none, err
	}
	return call(ctx, conn)
}

// poll is what replicas have answered of which none works on what was asked for.
type poll[Answer fresh] struct {
	// found is the answer from the newest cache; missing says of the newest cache without it that it does not exist.
	found   Answer
	missing error
	// failures are all errors, and deaf counts those of replicas that said nothing about what was asked for.
	failures []fanin.Failure
	deaf     int
}

// take takes an answer in, and reports whether it was made under a term, so that no other counts.
func (p *poll[Answer]) take(next reply[Answer]) (final bool) {
	var none Answer
	seen := next.answer.GetFreshness()
	if next.err != nil {
		p.failures = append(p.failures, fanin.Failure{Err: next.err, Status: fanout.Failure(next.member, next.err, next.took)})
		seen = seenBy(next.err)
	}
	switch {
	case seen.GetEpoch() != 0:
		return true
	case status.Code(next.err) == codes.NotFound:
		if p.missing == nil || newer(seen, seenBy(p.missing)) {
			p.missing = next.err
		}
	case next.err != nil:
		if !tells(next.err) {
			p.deaf++
		}
	case p.found == none || newer(seen, p.found.GetFreshness()):
		p.found = next.answer
	}
	return false
}

// outcome is the best of what was taken in. Who could not be asked may know what the others have not seen yet.
func (p *poll[Answer]) outcome(ctx context.Context, s *replicas) (Answer, error) {
	var none Answer
	gone := p.missing != nil && p.deaf == 0
	switch {
	case p.found != none && (!gone || !newer(seenBy(p.missing), p.found.GetFreshness())):
		return p.found, nil
	case ctx.Err() != nil:
		return none, context.Cause(ctx) // else a caller that left would be told that nobody answered
	case gone:
		return none, p.missing
	}
	for _, failure := range p.failures {
		if status.Code(failure.Err) != codes.NotFound && tells(failure.Err) {
			return none, failure.Err
		}
	}
	return none, s.noneTells(p.failures)
}

// seenBy is how much of the cluster had been seen by the replica that says that something does not exist.
func seenBy(err error) *statusv1.Freshness {
	epoch, _ := strconv.ParseInt(rpcerror.MetadataOf(err, "epoch"), 10, 64) // 0 where it does not say
	return &statusv1.Freshness{Epoch: epoch, ResourceVersion: rpcerror.MetadataOf(err, "resource_version")}
}

// newer says whether a cache has seen more than another one. Resource versions are numbers without leading zeros.
func newer(a, b *statusv1.Freshness) bool {
	of, than := a.GetResourceVersion(), b.GetResourceVersion()
	return cmp.Or(cmp.Compare(len(of), len(than)), cmp.Compare(of, than)) > 0
}

// tells says of an error that it is about what was asked for, and not about who was asked.
func tells(err error) bool {
	code, reason := status.Code(err), rpcerror.ReasonOf(err)
	return reason != "" && reason != rpcerror.UnknownMethodReason && code != codes.Unavailable && code != codes.DeadlineExceeded
}
