package api

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/leader"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1alpha1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// NoSourceReason means that no replica answered, or not the only one that has the answer. The
// message names each replica that was asked, with the cause.
const NoSourceReason rpcerror.Reason = "NO_SOURCE"

// versionTooOldReason means that leasesvc cannot resume a watch.
const versionTooOldReason rpcerror.Reason = "VERSION_TOO_OLD"

// noAnswer is the summary of noSource if no replica answered.
const noAnswer = "no replica answered"

// maxCause bounds the cause of one replica in a message, because all of them go into gRPC trailers.
// rpcerror repairs a character that is cut in two.
const maxCause = 200

// noSource returns the error for an answer without a source. outdated is why the list of replicas
// may be out of date, or nil.
func noSource(cluster, summary string, sources []*gatewayv1.SourceStatus, outdated error) error {
	var causes []string
	for _, source := range sources {
		cause := source.Message
		if len(cause) > maxCause {
			cause = cause[:maxCause] + "…"
		}
		causes = append(causes, fmt.Sprintf("%s %s at %s: %s: %s",
			source.Replica.GetService(), source.Replica.GetId(), source.Replica.GetGrpcAddress(), source.Code, cause))
	}
	message := "no replica is registered in etcd"
	if len(causes) > 0 {
		message = summary + ": " + strings.Join(causes, "; ")
	}
	if outdated != nil {
		message += fmt.Sprintf("; the members may be out of date: %s", outdated)
	}
	return rpcerror.New(codes.Unavailable, NoSourceReason, message, rpcerror.WithMetadata("cluster", cluster))
}

// unreachable returns the error for an answer without a source.
func unreachable(cluster, summary string, missing []*metav1.MissingPart, outdated error) error {
	var sources []*gatewayv1.SourceStatus
	for _, part := range missing {
		sources = append(sources, &gatewayv1.SourceStatus{
			Replica: &statusv1.Replica{Service: part.Service, Id: part.ReplicaId}, Code: part.Code.String(), Message: part.Message,
		})
	}
	return noSource(cluster, summary, sources, outdated)
}

func (s *service) noSource(summary string, sources []*gatewayv1.SourceStatus) error {
	return noSource(s.cluster, summary, sources, s.directory.Check())
}

// askFailed converts an error of package leader.
func (s *service) askFailed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx) // the replicas did not fail: the caller left
	}
	var unreachable leader.UnreachableError
	if errors.As(err, &unreachable) {
		return s.noSource(unreachable.Error(), sourceStatuses(unreachable.Failures))
	}
	return err
}

// allFailed converts the failures of all replicas. It returns LOOP_DISABLED if each replica that
// answered gives this reason. A failure without a reason is a replica that did not answer.
func (s *service) allFailed(failures []fanout.Failure) error {
	var disabled, other error
	for _, failure := range failures {
		switch rpcerror.ReasonOf(failure.Err) {
		case leader.LoopDisabledReason:
			disabled = failure.Err
		case "":
		default:
			other = failure.Err
		}
	}
	if disabled != nil && other == nil {
		return disabled
	}
	return s.noSource(noAnswer, sourceStatuses(failures))
}

func sourceStatuses(failures []fanout.Failure) []*gatewayv1.SourceStatus {
	var statuses []*gatewayv1.SourceStatus
	for _, failure := range failures {
		statuses = append(statuses, failure.Status())
	}
	return statuses
}

// watchEnded converts an error of a reader's Next. The cause of a context is SHUTTING_DOWN when the
// server ends its streams.
func watchEnded(err error) error {
	if errors.Is(err, fanin.ErrStopped) {
		return rpcerror.ShuttingDown()
	}
	return err
}

func pageTokenError(err error) error {
	if !errors.Is(err, merge.ErrToken) {
		return err
	}
	return rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error(), rpcerror.WithField("page_token", err.Error()))
}
