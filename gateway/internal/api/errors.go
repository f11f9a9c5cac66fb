package api

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/leader"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
)

// ReplicasUnreachableReason means that no replica answered, or not the only one that has the
// answer. The message names each replica that was asked, with the cause.
const ReplicasUnreachableReason rpcerror.Reason = "REPLICAS_UNREACHABLE"

// noAnswer is the summary of unreachable if no replica answered.
const noAnswer = "no replica answered"

// maxCause bounds the cause of one replica in a message, because all of them go into gRPC trailers.
// rpcerror repairs a character that is cut in two.
const maxCause = 200

// unreachable returns the error for an answer without a source. outdated is why the list of
// replicas may be out of date, or nil.
func unreachable(cluster, summary string, causes []string, outdated error, options ...rpcerror.Option) error {
	message := summary
	if len(causes) > 0 {
		message += ": " + strings.Join(causes, "; ")
	}
	if outdated != nil {
		message += fmt.Sprintf("; the members may be out of date: %s", outdated)
	}
	return rpcerror.New(codes.Unavailable, ReplicasUnreachableReason, message, append(options, rpcerror.WithMetadata("cluster", cluster))...)
}

func (s *service) unreachable(summary string, failures []fanout.Failure, options ...rpcerror.Option) error {
	var causes []string
	for _, failure := range failures {
		causes = append(causes, failure.Text(maxCause))
	}
	if len(causes) == 0 {
		summary = s.absent()
	}
	return unreachable(s.cluster, summary, causes, s.directory.Check(), append(options, rpcerror.WithMetadata("service", strings.Join(s.names, ",")))...)
}

// absent says that no replica of the service is registered, and what is.
func (s *service) absent() string {
	return fmt.Sprintf("no replica of %s is registered in etcd; %s", strings.Join(s.names, ", "), registered(s.directory.Members()))
}

// registered says how many replicas of each service are registered.
func registered(members []term.Member) string {
	counts := map[string]int{}
	for _, member := range members {
		counts[member.Service]++
	}
	if len(counts) == 0 {
		return "neither is one of another service"
	}
	var services []string
	for _, service := range slices.Sorted(maps.Keys(counts)) {
		services = append(services, fmt.Sprintf("%s (%d)", service, counts[service]))
	}
	return "registered are " + strings.Join(services, ", ")
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
	return s.unreachable(noAnswer, failures)
}

// leaderFailed converts the failure of the one source of a watch. A refusal is one of the gateway,
// which opens the watches by its own identity, and not one of the caller.
func (s *service) leaderFailed(failures []fanout.Failure) error {
	err := failures[0].Err
	var unreached leader.UnreachableError
	switch {
	case errors.As(err, &unreached):
		return s.unreachable(unreached.Error(), unreached.Failures)
	case rpcerror.ReasonOf(err) != "" && !isRefusal(err) && status.Code(err) != codes.Unauthenticated:
		return err
	}
	return s.unreachable(noAnswer, failures)
}

// watchEnded converts an error of a watch. The cause of a context is SHUTTING_DOWN when the server
// ends its streams.
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
