package api

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/wording"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// Reasons of findings and repairs beside the common ones.
const (
	// FindingNotFound: no finding has this name, or it is not open.
	FindingNotFound rpcerror.Reason = "FINDING_NOT_FOUND"
	// PlanNotFound: no repair plan has this name.
	PlanNotFound rpcerror.Reason = "PLAN_NOT_FOUND"
	// PlanExpired: the plan is too old.
	PlanExpired rpcerror.Reason = "PLAN_EXPIRED"
	// PlanDrifted: the plan would differ now from the one that was read.
	PlanDrifted rpcerror.Reason = "PLAN_DRIFTED"
	// RepairNotFound: no repair has this name.
	RepairNotFound rpcerror.Reason = "REPAIR_NOT_FOUND"
	// RepairRunning: another repair has not ended.
	RepairRunning rpcerror.Reason = "REPAIR_RUNNING"
	// RepairNotCancellable: the repair has no steps left.
	RepairNotCancellable rpcerror.Reason = "REPAIR_NOT_CANCELLABLE"
)

const (
	// maxPageBytes keeps a page below the default message limit of gRPC clients.
	maxPageBytes = 3 << 20
	// watchPause is the shortest time between two reads of a watch.
	watchPause = 100 * time.Millisecond
)

// AllocationConfig has what the handlers of findings and repairs need. All fields but
// AllocationDisabled are required.
type AllocationConfig struct {
	// Service and ReplicaID are the names of this service and replica in answers.
	Service, ReplicaID string
	Leadership         Leadership
	Allocation         *allocationcontroller.Controller
	// AllocationDisabled names the audit's loop if --loops disables it; empty otherwise.
	AllocationDisabled string
}

// allocationServer has what the servers of findings and repairs share.
type allocationServer struct{ AllocationConfig }

func (s *allocationServer) isStopping() bool {
	select {
	case <-s.Leadership.Stopping():
		return true
	default:
		return false
	}
}

// snapshot returns what the audit knows. Only the leader has it.
func (s *allocationServer) snapshot() (*allocationcontroller.Snapshot, error) {
	switch {
	case s.isStopping():
		return nil, errStopping
	case s.Leadership.Term() == nil:
		return nil, errNotLeading
	case s.AllocationDisabled != "":
		return nil, fmt.Errorf("%w: loop %s is disabled", allocationcontroller.ErrNotSynced, s.AllocationDisabled)
	default:
		return s.Allocation.Snapshot()
	}
}

// underTerm returns a context that ends with the term that is held here and with the service. It
// fails until there is a snapshot, because requests are not served before.
func (s *allocationServer) underTerm(ctx context.Context) (context.Context, func(), error) {
	if _, err := s.snapshot(); err != nil {
		return nil, nil, err
	}
	held := s.Leadership.Term()
	if held == nil {
		return nil, nil, errNotLeading
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(held.Context(), func() { cancel(held.Check()) })
	stopWaiting := s.endWithService(ctx, cancel)
	return ctx, func() {
		stop()
		cancel(nil)
		stopWaiting()
	}, nil
}

// endWithService calls cancel when the service begins to stop before ctx ends. The caller calls
// wait after ctx has ended.
func (s *allocationServer) endWithService(ctx context.Context, cancel context.CancelCauseFunc) (wait func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-s.Leadership.Stopping():
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()
	return func() { <-ended }
}

// orNotLeading marks an error that came with the end of the term.
func (s *allocationServer) orNotLeading(err error) error {
	if err != nil && s.Leadership.Term() == nil {
		return errors.Join(errNotLeading, err)
	}
	return err
}

// statusOf is the one table from errors of findings and repairs to statuses. ctx is that of the
// call: once it has ended, its own error counts. An error that is not in the table stays as it is;
// unless it is a status, it becomes INTERNAL, and its text stays in the log.
//
// An error may wrap several of the targets, so the order matters. The reason of a repair counts
// before that of the dependency that caused it.
func (s *allocationServer) statusOf(ctx context.Context, err error) error {
	is := func(targets ...error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
	retry := rpcerror.WithRetryAfter(time.Second)
	switch {
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case is(errStopping):
		return rpcerror.ShuttingDown()
	case is(errNotLeading, term.ErrEnded, term.ErrNone):
		return rpcerror.NotLeader(s.Service, s.Leadership.LeaderAddress())
	case is(pagetoken.ErrInvalid):
		return rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error(), rpcerror.WithField("page_token", err.Error()))
	case is(allocationcontroller.ErrFindingNotFound):
		return rpcerror.New(codes.NotFound, FindingNotFound, err.Error())
	case is(allocationcontroller.ErrPlanNotFound):
		return rpcerror.New(codes.NotFound, PlanNotFound, err.Error())
	case is(allocationcontroller.ErrRepairNotFound):
		return rpcerror.New(codes.NotFound, RepairNotFound, err.Error())
	case is(allocationcontroller.ErrEtagMismatch):
		return rpcerror.New(codes.Aborted, rpcerror.ETagMismatchReason, err.Error(), rpcerror.WithField("etag", err.Error()))
	case is(allocationcontroller.ErrPlanExpired):
		return rpcerror.New(codes.FailedPrecondition, PlanExpired, err.Error()+"; plan again")
	case is(allocationcontroller.ErrPlanDrifted):
		return rpcerror.New(codes.Aborted, PlanDrifted, err.Error()+"; plan again")
	case is(allocationcontroller.ErrRepairRunning):
		return rpcerror.New(codes.Aborted, RepairRunning, err.Error(), retry)
	case is(allocationcontroller.ErrRepairNotCancellable):
		return rpcerror.New(codes.FailedPrecondition, RepairNotCancellable, err.Error())
	case is(allocationcontroller.ErrNotSynced):
		return rpcerror.New(codes.Unavailable, rpcerror.CacheNotSyncedReason, err.Error(), retry)
	case is(guarded.ErrEtcdDenied):
		return rpcerror.New(codes.FailedPrecondition, EtcdDenied, wording.Valid(err.Error()))
	case is(guarded.ErrUnavailable):
		return rpcerror.New(codes.Unavailable, rpcerror.APIServerUnreachableReason, "the kube-apiserver did not answer in time", retry)
	case is(rangestore.ErrUnavailable, repairstore.ErrUnavailable):
		return rpcerror.New(codes.Unavailable, rpcerror.EtcdUnreachableReason, "etcd did not answer in time", retry)
	case is(guarded.ErrConflict, rangestore.ErrConflict, repairstore.ErrExists):
		return rpcerror.New(codes.Aborted, rpcerror.ConflictReason, "an object changed between read and write; earlier writes are kept; call again", retry)
	default:
		return err
	}
}

// fromSnapshot returns the source of an answer that was made from a snapshot.
func (s *allocationServer) fromSnapshot(snapshot *allocationcontroller.Snapshot) []*metav1.Source {
	return []*metav1.Source{answer.Replica{Service: s.Service, ID: s.ReplicaID}.Source(s.epoch(), []int{0}, snapshot.Caches()...)}
}

// fromLeader returns the source of an answer that needed the term.
func (s *allocationServer) fromLeader() []*metav1.Source {
	return []*metav1.Source{answer.Replica{Service: s.Service, ID: s.ReplicaID}.Source(s.epoch(), []int{0})}
}

// fromEtcd returns the source of an answer that was read from etcd, without a term.
func (s *allocationServer) fromEtcd() []*metav1.Source {
	return []*metav1.Source{answer.Replica{Service: s.Service, ID: s.ReplicaID}.Source(0, nil)}
}

func (s *allocationServer) epoch() int64 {
	if held := s.Leadership.Term(); held != nil {
		return held.Epoch()
	}
	return 0
}

// pageOf converts the items of a page: those that come after the position of the page token, as
// many as fit. more reports that there are further items after last.
func pageOf[T any, M proto.Message](items []T, size int, after func(T) bool, convert func(T) M) (page []M, last T, more bool) {
	bytes := 0
	for _, item := range items {
		if !after(item) {
			continue
		}
		converted := convert(item)
		bytes += proto.Size(converted)
		if n := len(page); n == size || n > 0 && bytes > maxPageBytes {
			return page, last, true
		}
		page, last = append(page, converted), item
	}
	return page, last, false
}
