package api

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// fresh is an answer that says how new it is.
type fresh interface {
	comparable
	GetFreshness() *statusv1.Freshness
}

// reply is the answer of one replica, or its failure.
type reply[Answer fresh] struct {
	answer  Answer
	failure fanout.Failure
}

// askNewest asks all replicas at once. It returns the answer of the holder of the shard as soon as
// it is there. Without a holder it returns the answer from the newest cache.
//
// NOT_FOUND is an answer, too. But a cache that lags does not have a new object: without a holder
// every replica must have answered. The error is an answer of a replica, or NO_SOURCE.
func askNewest[Answer fresh](ctx context.Context, s *service, call fanout.Call[Answer]) (Answer, error) {
	asking, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	members := s.members()
	replies := make(chan reply[Answer], len(members)) // buffered: late replies are not read
	for _, member := range members {
		go func() {
			started := time.Now()
			answer, err := fanout.CallMember(asking, s.connections, member, call)
			replies <- reply[Answer]{answer: answer, failure: fanout.Failure{Member: member, Err: err, After: time.Since(started)}}
		}()
	}
	var found newest[Answer]
	for range members {
		if next := <-replies; found.add(next) {
			return next.answer, next.failure.Err
		}
	}
	return found.result(ctx, s)
}

// newest is the best of the replies that do not come from the holder.
type newest[Answer fresh] struct {
	// answer is from the newest cache that has the object; notFound from the newest one that has it
	// not.
	answer   Answer
	notFound error
	failures []fanout.Failure // all errors, also notFound
	// unknown counts replicas whose error is not about the object.
	unknown int
}

// add takes a reply and reports whether it comes from the holder, so that no other one matters.
func (n *newest[Answer]) add(next reply[Answer]) (fromHolder bool) {
	var none Answer
	err := next.failure.Err
	freshness := next.answer.GetFreshness()
	if err != nil {
		n.failures = append(n.failures, next.failure)
		freshness = freshnessOf(err)
	}
	switch {
	case freshness.GetEpoch() != 0:
		return true
	case status.Code(err) == codes.NotFound:
		if n.notFound == nil || newer(freshness, freshnessOf(n.notFound)) {
			n.notFound = err
		}
	case err != nil:
		if !isAboutObject(err) {
			n.unknown++
		}
	case n.answer == none || newer(freshness, n.answer.GetFreshness()):
		n.answer = next.answer
	}
	return false
}

// result returns the best reply. A replica that did not answer may have an object that the others
// have not seen yet.
func (n *newest[Answer]) result(ctx context.Context, s *service) (Answer, error) {
	var none Answer
	gone := n.notFound != nil && n.unknown == 0
	switch {
	case n.answer != none && (!gone || !newer(freshnessOf(n.notFound), n.answer.GetFreshness())):
		return n.answer, nil
	case ctx.Err() != nil:
		return none, context.Cause(ctx) // the replicas did not fail: the caller left
	case gone:
		return none, n.notFound
	}
	for _, failure := range n.failures {
		if status.Code(failure.Err) != codes.NotFound && isAboutObject(failure.Err) {
			return none, failure.Err
		}
	}
	return none, s.allFailed(n.failures)
}

// freshnessOf returns how new the cache is that an error comes from. The epoch is 0 without a
// holder.
func freshnessOf(err error) *statusv1.Freshness {
	epoch, _ := strconv.ParseInt(rpcerror.MetadataOf(err, "epoch"), 10, 64)
	return &statusv1.Freshness{Epoch: epoch, ResourceVersion: rpcerror.MetadataOf(err, "resource_version")}
}

// newer reports whether cache a has seen more than cache b. Resource versions are numbers without
// leading zeros.
func newer(a, b *statusv1.Freshness) bool {
	of, than := a.GetResourceVersion(), b.GetResourceVersion()
	return cmp.Or(cmp.Compare(len(of), len(than)), cmp.Compare(of, than)) > 0
}

// isAboutObject reports whether an error is about the object, not about the replica.
func isAboutObject(err error) bool {
	code, reason := status.Code(err), rpcerror.ReasonOf(err)
	return reason != "" && reason != rpcerror.UnknownMethodReason && code != codes.Unavailable && code != codes.DeadlineExceeded
}
