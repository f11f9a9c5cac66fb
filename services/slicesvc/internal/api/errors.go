package api

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// Reasons of slicesvc's own errors.
const (
	// ServiceNotFoundReason means that the cluster has no Service of the name.
	ServiceNotFoundReason rpcerror.Reason = "SERVICE_NOT_FOUND"
	// PodNotFoundReason means that the Service's namespace has no Pod of the name.
	PodNotFoundReason rpcerror.Reason = "POD_NOT_FOUND"
	// ServiceUnmanagedReason means that slicesvc writes no slices for the Service: it has no
	// selector or is ExternalName.
	ServiceUnmanagedReason rpcerror.Reason = "SERVICE_UNMANAGED"
	// LoopDryRunReason means that a loop plans and writes nothing.
	LoopDryRunReason rpcerror.Reason = "LOOP_DRY_RUN"
)

// retryDelay is the RetryInfo of errors that a later call may not meet.
const retryDelay = time.Second

// serviceName is the name of this service in Sources, Problems and NOT_LEADER errors.
const serviceName = "slicesvc"

var (
	errStopping = errors.New("this replica is stopping")
	errDryRun   = errors.New("the loop that would write these slices is in dry run")
)

type cacheNotSyncedError struct{ cause error }

func (e *cacheNotSyncedError) Error() string { return e.cause.Error() }
func (e *cacheNotSyncedError) Unwrap() error { return e.cause }

// serviceNotFoundError names a Service that does not exist as of source. source is nil if the name
// is not a valid name.
type serviceNotFoundError struct {
	name   string
	source *metav1.Source
	// orphan says that there is an Endpoints object of the name.
	orphan bool
}

func (e *serviceNotFoundError) Error() string {
	if e.orphan {
		return fmt.Sprintf("no service %q; the Endpoints object of its name is not mirrored without one", e.name)
	}
	return fmt.Sprintf("no service %q", e.name)
}

func (e *serviceNotFoundError) metadata() []rpcerror.Option {
	options := append(cacheMetadata(e.source, "Service"), rpcerror.WithMetadata("name", e.name))
	if e.orphan {
		options = append(options, rpcerror.WithMetadata("mirror_reason", string(mirror.NoService)))
	}
	return options
}

type podNotFoundError struct {
	namespace, name string
	source          *metav1.Source
}

func (e *podNotFoundError) Error() string {
	return fmt.Sprintf("no pod %q in namespace %q", e.name, e.namespace)
}

type unmanagedError struct{ name, reason string }

func (e *unmanagedError) Error() string {
	return fmt.Sprintf("service %q gets no slices: %s", e.name, e.reason)
}

type notLeaderError struct {
	shard         int
	leaderAddress string // gRPC address of the leader; empty if unknown
}

func (e *notLeaderError) Error() string {
	return fmt.Sprintf("this replica does not lead shard %d", e.shard)
}

// toStatus maps every error of the handlers to a gRPC status. Other errors have no status of this
// API and stay as they are.
func toStatus(err error) error {
	var service *serviceNotFoundError
	var pod *podNotFoundError
	var unsynced *cacheNotSyncedError
	var unmanaged *unmanagedError
	var notLeader *notLeaderError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errStopping):
		return rpcerror.ShuttingDown()
	case errors.Is(err, errDryRun):
		return rpcerror.New(codes.FailedPrecondition, LoopDryRunReason, err.Error())
	case errors.As(err, &service):
		return rpcerror.New(codes.NotFound, ServiceNotFoundReason, err.Error(), service.metadata()...)
	case errors.As(err, &pod):
		return rpcerror.New(codes.NotFound, PodNotFoundReason, err.Error(), append(cacheMetadata(pod.source, "Pod"), rpcerror.WithMetadata("pod", pod.name))...)
	case errors.As(err, &unmanaged):
		return rpcerror.New(codes.FailedPrecondition, ServiceUnmanagedReason, err.Error(), rpcerror.WithMetadata("unmanaged_reason", unmanaged.reason))
	case errors.As(err, &notLeader):
		return rpcerror.NotLeader(serviceName, notLeader.leaderAddress)
	case errors.Is(err, slicecontroller.ErrPlanChanged):
		return rpcerror.New(codes.Aborted, rpcerror.ETagMismatchReason, "the plan has changed since it was read; nothing was written")
	case errors.Is(err, kube.ErrConflict):
		return rpcerror.New(codes.Aborted, rpcerror.ConflictReason, err.Error(), rpcerror.WithRetryAfter(retryDelay))
	case kube.Unreachable(err):
		pause, _ := kube.RetryAfter(err)
		return rpcerror.New(codes.Unavailable, rpcerror.APIServerUnreachableReason, err.Error(), rpcerror.WithRetryAfter(max(pause, retryDelay)))
	case errors.As(err, &unsynced):
		return rpcerror.New(codes.Unavailable, rpcerror.CacheNotSyncedReason, err.Error(), rpcerror.WithRetryAfter(retryDelay))
	case errors.Is(err, pagetoken.ErrInvalid):
		return rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error(), rpcerror.WithField("page_token", err.Error()))
	default:
		return err
	}
}

// cacheMetadata lets a client weigh a NOT_FOUND: a replica whose watch lags misses objects that
// another replica knows.
func cacheMetadata(source *metav1.Source, kind string) []rpcerror.Option {
	if source == nil {
		return nil
	}
	options := []rpcerror.Option{rpcerror.WithMetadata("epoch", strconv.FormatInt(source.GetEpoch(), 10))}
	for _, cache := range source.GetCaches() {
		if cache.GetKind() == kind {
			options = append(options, rpcerror.WithMetadata("resource_version", cache.GetResourceVersion()))
		}
	}
	return options
}

// withPlan adds what was planned and done to the status of a failed call.
func withPlan(err error, plan *metav1.Plan) error {
	failed, ok := status.FromError(err)
	if !ok || len(plan.GetChanges()) == 0 {
		return err
	}
	for _, change := range plan.GetChanges() {
		change.FieldChanges = nil // a status must fit into trailers
	}
	detailed, detailErr := failed.WithDetails(plan)
	if detailErr != nil {
		return err
	}
	return detailed.Err()
}
