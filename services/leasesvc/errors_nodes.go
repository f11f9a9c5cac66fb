package leasesvc

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// Reasons of the RPCs about node health.
const (
	reasonLoopDisabled   rpcerror.Reason = "LOOP_DISABLED"
	reasonNodeNotFound   rpcerror.Reason = "NODE_NOT_FOUND"
	reasonCacheNotSynced rpcerror.Reason = "CACHE_NOT_SYNCED"
)

// retryWhileFilling is how soon to ask a replica again that has not seen the cluster yet.
const retryWhileFilling = time.Second

var (
	errLoopDisabled = fmt.Errorf("the loop %s does not run on this replica; name it in --loops of every replica", NodeHealthLoop)
	errNotSynced    = errors.New("this replica has not looked at all Nodes yet; ask again in a second")
)

// elsewhereError says that a shard is not held here.
type elsewhereError struct{ shard int }

func (e elsewhereError) Error() string { return fmt.Sprintf("shard %d is not held here", e.shard) }

// nodeNotFoundError is a Node that does not exist.
type nodeNotFoundError struct{ name string }

func (e nodeNotFoundError) Error() string { return fmt.Sprintf("no node %q", e.name) }

// problem is the table of what the RPCs about node health can fail with.
func (s *nodeServer) problem(err error) error {
	var (
		elsewhere elsewhereError
		missing   nodeNotFoundError
	)
	switch {
	case errors.Is(err, errLoopDisabled):
		return rpcerror.New(codes.FailedPrecondition, reasonLoopDisabled, err.Error())
	case errors.Is(err, errNotSynced):
		return rpcerror.New(codes.Unavailable, reasonCacheNotSynced, err.Error(), rpcerror.WithRetryAfter(retryWhileFilling))
	case errors.As(err, &elsewhere):
		return rpcerror.NotLeader(ServiceName, s.service.server.shards().owner(elsewhere.shard))
	case errors.As(err, &missing):
		return rpcerror.New(codes.NotFound, reasonNodeNotFound, err.Error(), rpcerror.WithMetadata("name", missing.name))
	case errors.Is(err, errPageToken):
		return rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error(), rpcerror.WithField("page_token", err.Error()))
	}
	return err
}
