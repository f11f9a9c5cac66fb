package slicesvc

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// Reasons of slicesvc's own errors.
const (
	// ServiceNotFoundReason: the cluster has no such Service.
	ServiceNotFoundReason rpcerror.Reason = "SERVICE_NOT_FOUND"
	// CacheNotSyncedReason: this replica has not read the whole cluster yet.
	CacheNotSyncedReason rpcerror.Reason = "CACHE_NOT_SYNCED"
)

// retryWhileFilling is how soon to ask a replica again whose caches are being filled.
const retryWhileFilling = time.Second

var (
	errStopping  = errors.New("this replica is stopping")
	errPageToken = errors.New("page_token does not come from a list with the same parent")
)

// cacheError says that the caches are not filled.
type cacheError struct{ cause error }

func (e *cacheError) Error() string { return e.cause.Error() }
func (e *cacheError) Unwrap() error { return e.cause }

// notFoundError names a Service that does not exist.
type notFoundError struct{ name string }

func (e *notFoundError) Error() string { return fmt.Sprintf("no service %q", e.name) }

func notFound(name string) error { return &notFoundError{name: name} }

// toStatus is the one table from errors to what the API says.
func toStatus(err error) error {
	var missing *notFoundError
	var cache *cacheError
	switch {
	case errors.Is(err, errStopping):
		return rpcerror.ShuttingDown()
	case errors.As(err, &missing):
		return rpcerror.New(codes.NotFound, ServiceNotFoundReason, err.Error(), rpcerror.WithMetadata("name", missing.name))
	case errors.As(err, &cache):
		return rpcerror.New(codes.Unavailable, CacheNotSyncedReason, err.Error(), rpcerror.WithRetryAfter(retryWhileFilling))
	case errors.Is(err, errPageToken):
		return rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error(), rpcerror.WithField("page_token", err.Error()))
	default:
		return err
	}
}
