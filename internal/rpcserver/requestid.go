package rpcserver

import (
	"container/list"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

const (
	// answerAge is how long an answer is kept.
	answerAge = 10 * time.Minute
	// maxAnswers and maxAnswerBytes bound what is kept; the oldest answers leave first.
	maxAnswers     = 10_000
	maxAnswerBytes = 32 << 20
)

// answers keeps the first answer to each request with a request_id, so that a retry of a call whose
// answer was lost does nothing twice. Answers do not survive the process.
type answers struct {
	mu    sync.Mutex // guards all below, but not the fields of an answer after it is done
	byKey map[answerKey]*answer
	kept  list.List // of *answer, oldest first: those that are done
	bytes int
}

// answerKey is what identifies a call. Callers cannot see the answers of other callers.
type answerKey struct{ method, caller, requestID string }

// answer is a call in progress or, when done is closed, its result.
type answer struct {
	key      answerKey
	request  [sha256.Size]byte
	done     chan struct{}
	final    bool // the result is kept
	response any
	err      error
	time     time.Time
	bytes    int
}

func newAnswers() *answers { return &answers{byKey: map[answerKey]*answer{}} }

// answer calls handler or returns the first answer to the same request. It waits for a call that is
// in progress. If that ends without a final answer, this call becomes the first.
func (a *answers) answer(ctx context.Context, checks *requestChecks, request any, method string, handler grpc.UnaryHandler) (any, error) {
	message, _ := request.(proto.Message)
	reflected := message.ProtoReflect()
	id := reflected.Get(checks.requestID).String()
	if id == "" || checks.validateOnly != nil && reflected.Get(checks.validateOnly).Bool() {
		return handler(ctx, request)
	}
	sum, err := digest(message)
	if err != nil {
		return nil, err
	}
	key := answerKey{method: method, caller: callerOf(ctx), requestID: id}
	for {
		mine, first := a.begin(key, sum)
		if mine.request != sum {
			return nil, reused(checks.requestID)
		}
		if first {
			return a.run(ctx, mine, func() (any, error) { return handler(ctx, request) })
		}
		select {
		case <-mine.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if mine.final {
			return mine.response, mine.err
		}
	}
}

func reused(field protoreflect.FieldDescriptor) error {
	return rpcerror.New(codes.InvalidArgument, rpcerror.RequestIDReusedReason,
		"an earlier request with other content had the same request_id; use a new UUID for each request",
		rpcerror.WithField(string(field.Name()), "must be new for other content"))
}

// digest identifies the content of a request.
func digest(message proto.Message) (sum [sha256.Size]byte, err error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return sum, fmt.Errorf("compare requests: %w", err)
	}
	return sha256.Sum256(raw), nil
}

// begin returns the answer of key, and whether the caller is the first and has to make it.
func (a *answers) begin(key answerKey, sum [sha256.Size]byte) (known *answer, first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(time.Now())
	if known := a.byKey[key]; known != nil {
		return known, false
	}
	mine := &answer{key: key, request: sum, done: make(chan struct{})}
	a.byKey[key] = mine
	return mine, true
}

// run makes the answer. A handler that panics leaves none.
func (a *answers) run(ctx context.Context, mine *answer, handler func() (any, error)) (any, error) {
	defer a.end(mine)
	response, err := handler()
	if isFinal(translate(ctx, err)) {
		mine.final, mine.response, mine.err = true, response, err
	}
	return response, err
}

func (a *answers) end(mine *answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer close(mine.done)
	if !mine.final {
		delete(a.byKey, mine.key)
		return
	}
	mine.time, mine.bytes = time.Now(), sizeOf(mine.response)
	a.bytes += mine.bytes
	a.kept.PushBack(mine)
	a.drop(mine.time)
}

// drop needs a.mu. It drops answers that are too old or too many.
func (a *answers) drop(now time.Time) {
	for front := a.kept.Front(); front != nil; front = a.kept.Front() {
		oldest, _ := front.Value.(*answer)
		if a.kept.Len() <= maxAnswers && a.bytes <= maxAnswerBytes && now.Sub(oldest.time) < answerAge {
			return
		}
		a.kept.Remove(front)
		a.bytes -= oldest.bytes
		delete(a.byKey, oldest.key)
	}
}

func sizeOf(response any) int {
	if message, ok := response.(proto.Message); ok {
		return proto.Size(message)
	}
	return 0
}

// isFinal says whether a retry of the call must get the same result. Not final are failures that a
// retry is for, also where this replica or the cause of a defect may be another one then.
func isFinal(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.ResourceExhausted, codes.Internal, codes.Unknown:
		return false
	default:
		return rpcerror.ReasonOf(err) != rpcerror.NotLeaderReason
	}
}

// callerOf identifies on whose behalf a call is made. It is the same after a credential was
// renewed, and for each gateway that forwards the call.
func callerOf(ctx context.Context) string {
	user := authn.FromContext(ctx).User
	return fmt.Sprintf("%q %q %q", user.Name, user.UID, slices.Sorted(slices.Values(user.Groups)))
}
