package slicesvc

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
)

// Reasons of slicesvc's own errors.
const (
	// ServiceNotFoundReason: the cluster has no such Service.
	ServiceNotFoundReason rpcerror.Reason = "SERVICE_NOT_FOUND"
	// PodNotFoundReason: the Service's namespace has no such pod.
	PodNotFoundReason rpcerror.Reason = "POD_NOT_FOUND"
	// ServiceUnmanagedReason: the Service's slices are not kept here, because it has no selector or is ExternalName.
	ServiceUnmanagedReason rpcerror.Reason = "SERVICE_UNMANAGED"
	// ConflictReason: a slice changed while it was being written, and what others wrote stands.
	ConflictReason rpcerror.Reason = "CONFLICT"
	// APIServerUnreachableReason: the kube-apiserver asks to be left alone for a while.
	APIServerUnreachableReason rpcerror.Reason = "APISERVER_UNREACHABLE"
	// CacheNotSyncedReason: this replica has not read the whole cluster yet.
	CacheNotSyncedReason rpcerror.Reason = "CACHE_NOT_SYNCED"
)

// retryWhileFilling is how soon to ask a replica again whose caches are being filled.
const retryWhileFilling = time.Second

// retryAfterConflict is how soon a Service is planned again after a conflict.
const retryAfterConflict = time.Second

// retryAfterThrottle is how soon a Service is planned again at the earliest after the
// kube-apiserver has refused a write as one too many.
const retryAfterThrottle = time.Second

// serviceName is what this service is called among others.
const serviceName = "slicesvc"

var (
	errStopping  = errors.New("this replica is stopping")
	errPageToken = errors.New("page_token does not come from a list with the same parent")
)

// cacheError says that the caches are not filled.
type cacheError struct{ cause error }

func (e *cacheError) Error() string { return e.cause.Error() }
func (e *cacheError) Unwrap() error { return e.cause }

// notFoundError names a Service that does not exist, as far as seen goes; nil for
// one that cannot exist.
type notFoundError struct {
	name string
	seen *statusv1.Freshness
}

func (e *notFoundError) Error() string { return fmt.Sprintf("no service %q", e.name) }

// podNotFoundError names a pod that does not exist, as far as seen goes.
type podNotFoundError struct {
	namespace, name string
	seen            *statusv1.Freshness
}

func (e *podNotFoundError) Error() string {
	return fmt.Sprintf("no pod %q in namespace %q", e.name, e.namespace)
}

// unmanagedError names a Service whose slices are not kept here.
type unmanagedError struct{ name, reason string }

func (e *unmanagedError) Error() string {
	return fmt.Sprintf("service %q gets no slices: %s", e.name, e.reason)
}

// elsewhereError says that somebody else, if anybody, holds the shard.
type elsewhereError struct {
	shard   int
	address string // where the holder's gRPC server is; empty when unknown
}

func (e *elsewhereError) Error() string { return fmt.Sprintf("shard %d is not held here", e.shard) }

// toStatus is the one table from errors to what the API says.
func toStatus(err error) error {
	var missing *notFoundError
	var pod *podNotFoundError
	var cache *cacheError
	var unmanaged *unmanagedError
	var elsewhere *elsewhereError
	switch {
	case errors.Is(err, errStopping):
		return rpcerror.ShuttingDown()
	case errors.As(err, &missing):
		return rpcerror.New(codes.NotFound, ServiceNotFoundReason, err.Error(), append(seenIn(missing.seen), rpcerror.WithMetadata("name", missing.name))...)
	case errors.As(err, &pod):
		return rpcerror.New(codes.NotFound, PodNotFoundReason, err.Error(), append(seenIn(pod.seen), rpcerror.WithMetadata("pod", pod.name))...)
	case errors.As(err, &unmanaged):
		return rpcerror.New(codes.FailedPrecondition, ServiceUnmanagedReason, err.Error(), rpcerror.WithMetadata("unmanaged_reason", unmanaged.reason))
	case errors.As(err, &elsewhere):
		return rpcerror.NotLeader(serviceName, elsewhere.address)
	case errors.Is(err, kube.ErrConflict):
		return rpcerror.New(codes.Aborted, ConflictReason, err.Error(), rpcerror.WithRetryAfter(retryAfterConflict))
	case throttled(err):
		pause, _ := kube.RetryAfter(err)
		return rpcerror.New(codes.Unavailable, APIServerUnreachableReason, err.Error(), rpcerror.WithRetryAfter(max(pause, retryAfterThrottle)))
	case errors.As(err, &cache):
		return rpcerror.New(codes.Unavailable, CacheNotSyncedReason, err.Error(), rpcerror.WithRetryAfter(retryWhileFilling))
	case errors.Is(err, errPageToken):
		return rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error(), rpcerror.WithField("page_token", err.Error()))
	default:
		return err
	}
}

// throttled reports whether the kube-apiserver asks to be left alone.
func throttled(err error) bool {
	_, asked := kube.RetryAfter(err)
	return asked
}

// seenIn says how much of the cluster an answer was made from that is an error: a
// replica whose watch lags misses what others know.
func seenIn(freshness *statusv1.Freshness) []rpcerror.Option {
	if freshness == nil {
		return nil
	}
	return []rpcerror.Option{
		rpcerror.WithMetadata("epoch", strconv.FormatInt(freshness.GetEpoch(), 10)),
		rpcerror.WithMetadata("resource_version", freshness.GetResourceVersion()),
	}
}
