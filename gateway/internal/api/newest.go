package api

import (
	"cmp"
	"context"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// freshness says how new an answer is: the epoch under which it was made, or 0 if its replica does
// not lead, and the resource version of the cache that says whether the object exists.
type freshness struct {
	epoch   int64
	version string
}

// reply is the answer of one replica, or its failure.
type reply struct {
	answer  proto.Message
	failure fanout.Failure
}

// newest asks all replicas at once. It returns the answer of the leader of the shard as soon as it
// is there. Without a leader it returns the answer from the newest cache.
//
// A replica that does not know yet that its term has ended answers as a leader, too. Its epoch is
// lower than that of its successor: an answer with a lower epoch than an earlier answer about the
// same name counts only if no other one comes.
//
// NOT_FOUND is an answer, too. But a cache that lags does not have a new object: without a leader
// every replica must have answered. The error is an answer of a replica, or REPLICAS_UNREACHABLE.
func (s *service) newest() unary {
	terms := &terms{}
	return func(ctx context.Context, m method, request proto.Message) (proto.Message, error) {
		asking, cancel := context.WithTimeout(ctx, s.timeout)
		defer cancel()
		members := s.members()
		replies := make(chan reply, len(members)) // buffered: late replies are not read
		for _, member := range members {
			go func() {
				started := time.Now()
				answer, err := fanout.CallMember(asking, s.connections, member, call(m, request))
				replies <- reply{answer: answer, failure: fanout.Failure{Member: member, Err: err, After: time.Since(started)}}
			}()
		}
		var found best
		name := text(request, "name")
		for range members {
			next := <-replies
			if !found.add(next) {
				continue
			}
			if terms.isCurrent(name, freshnessOf(next).epoch) {
				return next.answer, next.failure.Err
			}
			found.addFormer(next)
		}
		if former := found.former; former != nil && ctx.Err() == nil {
			terms.set(name, freshnessOf(*former).epoch) // epochs begin again after etcd was restored
			return former.answer, former.failure.Err
		}
		return found.result(ctx, s)
	}
}

// best is the best of the replies that do not come from the leader.
type best struct {
	// answer is from the newest cache that has the object; notFound from the newest one that has it
	// not.
	answer   proto.Message
	notFound error
	failures []fanout.Failure // all errors, also notFound
	// unknown counts replicas whose error is not about the object.
	unknown int
	// former is the reply with the highest epoch of those with an epoch that is not current.
	former *reply
}

// addFormer takes a reply of a leader whose term has ended.
func (b *best) addFormer(next reply) {
	if b.former == nil || freshnessOf(next).epoch > freshnessOf(*b.former).epoch {
		b.former = &next
	}
}

// maxTerms bounds the memory of epochs. A full memory is emptied: the next answer counts again.
const maxTerms = 4096

// terms remembers the highest epoch of answers about each name.
type terms struct {
	mu     sync.Mutex // guards epochs
	epochs map[string]int64
}

// isCurrent reports whether no answer about the name had a higher epoch, and remembers the epoch.
func (t *terms) isCurrent(name string, epoch int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if epoch < t.epochs[name] {
		return false
	}
	t.store(name, epoch)
	return true
}

// set replaces what is remembered of a name.
func (t *terms) set(name string, epoch int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.store(name, epoch)
}

// store needs t.mu.
func (t *terms) store(name string, epoch int64) {
	if t.epochs == nil || len(t.epochs) >= maxTerms {
		t.epochs = map[string]int64{}
	}
	t.epochs[name] = epoch
}

// add takes a reply and reports whether it comes from the leader, so that no other one matters.
func (b *best) add(next reply) (fromLeader bool) {
	err := next.failure.Err
	fresh := freshnessOf(next)
	if err != nil {
		b.failures = append(b.failures, next.failure)
	}
	switch {
	case fresh.epoch != 0:
		return true
	case status.Code(err) == codes.NotFound:
		if b.notFound == nil || newer(fresh, freshnessOfError(b.notFound)) {
			b.notFound = err
		}
	case err != nil:
		if !isAboutObject(err) {
			b.unknown++
		}
	case b.answer == nil || newer(fresh, freshnessOfAnswer(b.answer, serviceKind)):
		b.answer = next.answer
	}
	return false
}

// result returns the best reply. A replica that did not answer may have an object that the others
// have not seen yet.
func (b *best) result(ctx context.Context, s *service) (proto.Message, error) {
	gone := b.notFound != nil && b.unknown == 0
	switch {
	case b.answer != nil && (!gone || !newer(freshnessOfError(b.notFound), freshnessOfAnswer(b.answer, kindOf(b.notFound)))):
		return b.answer, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx) // the replicas did not fail: the caller left
	case refusalIn(b.failures) != nil:
		return nil, refusalIn(b.failures)
	case gone:
		return nil, b.notFound
	}
	for _, failure := range b.failures {
		if status.Code(failure.Err) != codes.NotFound && isAboutObject(failure.Err) {
			return nil, failure.Err
		}
	}
	return nil, s.allFailed(b.failures)
}

func freshnessOf(next reply) freshness {
	if next.failure.Err != nil {
		return freshnessOfError(next.failure.Err)
	}
	return freshnessOfAnswer(next.answer, serviceKind)
}

// The caches that say whether the object of a question exists. A cache of another kind may be ahead
// of them or behind.
const (
	serviceKind = "Service"
	podKind     = "Pod"
)

// kindOf returns the kind of the cache that NOT_FOUND comes from.
func kindOf(notFound error) string {
	if rpcerror.ReasonOf(notFound) == "POD_NOT_FOUND" {
		return podKind
	}
	return serviceKind
}

// freshnessOfAnswer returns how new the cache of a kind is that an answer comes from.
func freshnessOfAnswer(answer proto.Message, kind string) freshness {
	var found freshness
	for _, source := range sourcesOf(answer) {
		found.epoch = source.GetEpoch()
		for _, cache := range source.GetCaches() {
			if cache.GetKind() == kind {
				found.version = cache.GetResourceVersion()
			}
		}
	}
	return found
}

func freshnessOfError(err error) freshness {
	epoch, _ := strconv.ParseInt(rpcerror.MetadataOf(err, "epoch"), 10, 64)
	return freshness{epoch: epoch, version: rpcerror.MetadataOf(err, "resource_version")}
}

// newer reports whether cache a has seen more than cache b. Resource versions are numbers without
// leading zeros.
func newer(a, b freshness) bool {
	return cmp.Or(cmp.Compare(len(a.version), len(b.version)), cmp.Compare(a.version, b.version)) > 0
}

// isAboutObject reports whether an error is about the object, not about the replica.
func isAboutObject(err error) bool {
	code, reason := status.Code(err), rpcerror.ReasonOf(err)
	return reason != "" && reason != rpcerror.UnknownMethodReason && code != codes.Unavailable && code != codes.DeadlineExceeded
}
