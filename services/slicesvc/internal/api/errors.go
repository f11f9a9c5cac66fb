package api

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
)

// Reasons of slicesvc's own errors.
const (
	// ServiceNotFoundReason means that the cluster has no such Service.
	ServiceNotFoundReason rpcerror.Reason = "SERVICE_NOT_FOUND"
	// PodNotFoundReason means that the Service's namespace has no such Pod.
	PodNotFoundReason rpcerror.Reason = "POD_NOT_FOUND"
	// ServiceUnmanagedReason means that slicesvc writes no slices for the Service: it has no
	// selector or is ExternalName.
	ServiceUnmanagedReason rpcerror.Reason = "SERVICE_UNMANAGED"
	// ConflictReason means that a slice changed while it was being written. The other write stands.
	ConflictReason rpcerror.Reason = "CONFLICT"
	// APIServerUnreachableReason means that kube-apiserver refused a write with a Retry-After.
	APIServerUnreachableReason rpcerror.Reason = "APISERVER_UNREACHABLE"
	// CacheNotSyncedReason means that this replica has not read the whole cluster yet.
	CacheNotSyncedReason rpcerror.Reason = "CACHE_NOT_SYNCED"
)

// retryDelay is the RetryInfo of errors that a later call may not meet.
const retryDelay = time.Second

// serviceName is the name by which a NOT_LEADER error names this service.
const serviceName = "slicesvc"

var (
	errStopping = errors.New("this replica is stopping")
)

type cacheNotSyncedError struct{ cause error }

func (e *cacheNotSyncedError) Error() string { return e.cause.Error() }
func (e *cacheNotSyncedError) Unwrap() error { return e.cause }

// serviceNotFoundError names a Service that does not exist as of freshness. freshness is nil if the
// name is not a valid name.
type serviceNotFoundError struct {
	name      string
	freshness *statusv1.Freshness
}

func (e *serviceNotFoundError) Error() string { return fmt.Sprintf("no service %q", e.name) }

type podNotFoundError struct {
	namespace, name string
	freshness       *statusv1.Freshness
}

func (e *podNotFoundError) Error() string {
	return fmt.Sprintf("no pod %q in namespace %q", e.name, e.namespace)
}

type unmanagedError struct{ name, reason string }

func (e *unmanagedError) Error() string {
	return fmt.Sprintf("service %q gets no slices: %s", e.name, e.reason)
}

type shardNotHeldError struct {
	shard         int
	leaderAddress string // gRPC address of the holder; empty if unknown
}

func (e *shardNotHeldError) Error() string { return fmt.Sprintf("shard %d is not held here", e.shard) }

// toStatus maps every error of the handlers to a gRPC status.
func toStatus(err error) error {
	var service *serviceNotFoundError
	var pod *podNotFoundError
	var unsynced *cacheNotSyncedError
	var unmanaged *unmanagedError
	var notHeld *shardNotHeldError
	retryAfter, throttled := kube.RetryAfter(err)
	switch {
	case errors.Is(err, errStopping):
		return rpcerror.ShuttingDown()
	case errors.As(err, &service):
		return rpcerror.New(codes.NotFound, ServiceNotFoundReason, err.Error(), append(freshnessMetadata(service.freshness), rpcerror.WithMetadata("name", service.name))...)
	case errors.As(err, &pod):
		return rpcerror.New(codes.NotFound, PodNotFoundReason, err.Error(), append(freshnessMetadata(pod.freshness), rpcerror.WithMetadata("pod", pod.name))...)
	case errors.As(err, &unmanaged):
		return rpcerror.New(codes.FailedPrecondition, ServiceUnmanagedReason, err.Error(), rpcerror.WithMetadata("unmanaged_reason", unmanaged.reason))
	case errors.As(err, &notHeld):
		return rpcerror.NotLeader(serviceName, notHeld.leaderAddress)
	case errors.Is(err, kube.ErrConflict):
		return rpcerror.New(codes.Aborted, ConflictReason, err.Error(), rpcerror.WithRetryAfter(retryDelay))
	case throttled:
		return rpcerror.New(codes.Unavailable, APIServerUnreachableReason, err.Error(), rpcerror.WithRetryAfter(max(retryAfter, retryDelay)))
	case errors.As(err, &unsynced):
		return rpcerror.New(codes.Unavailable, CacheNotSyncedReason, err.Error(), rpcerror.WithRetryAfter(retryDelay))
	case errors.Is(err, pagetoken.ErrInvalid):
		return rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error(), rpcerror.WithField("page_token", err.Error()))
	default:
		return err
	}
}

// freshnessMetadata lets a client weigh a NOT_FOUND: a replica whose watch lags misses objects that
// another replica knows.
func freshnessMetadata(freshness *statusv1.Freshness) []rpcerror.Option {
	if freshness == nil {
		return nil
	}
	return []rpcerror.Option{
		rpcerror.WithMetadata("epoch", strconv.FormatInt(freshness.GetEpoch(), 10)),
		rpcerror.WithMetadata("resource_version", freshness.GetResourceVersion()),
	}
}
