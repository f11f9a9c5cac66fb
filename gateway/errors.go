package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/gateway/internal/watch"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// NoSourceReason says that not one replica answered, or not the one that alone has the answer. The message names each that was
// asked in vain, with its cause.
const NoSourceReason rpcerror.Reason = "NO_SOURCE"

// Reasons of leasesvc that mean something here.
const (
	loopDisabledReason  rpcerror.Reason = "LOOP_DISABLED"
	versionTooOldReason rpcerror.Reason = "VERSION_TOO_OLD"
)

// nobodyAnswered is what noSource says when not one replica did.
const nobodyAnswered = "no replica answered"

// noSource explains that there is no answer: what is the matter, whom it was asked of, and as directory, why the replicas may be
// others by now, or nil.
func noSource(cluster, what string, sources []*gatewayv1.SourceStatus, directory error) error {
	var message strings.Builder
	if len(sources) == 0 {
		message.WriteString("no replica is registered in etcd")
	} else {
		message.WriteString(what)
	}
	for i, source := range sources {
		fmt.Fprintf(&message, "%s %s %s at %s: %s: %s", separator(i),
			source.Replica.GetService(), source.Replica.GetId(), source.Replica.GetGrpcAddress(), source.Code, shorten(source.Message))
	}
	if directory != nil {
		fmt.Fprintf(&message, "; the members may be out of date: %s", directory)
	}
	return rpcerror.New(codes.Unavailable, NoSourceReason, message.String(), rpcerror.WithMetadata("cluster", cluster))
}

// shorten keeps the message of many replicas within what gRPC trailers may carry; rpcerror repairs a character cut in two.
func shorten(cause string) string {
	const enough = 200
	if len(cause) <= enough {
		return cause
	}
	return cause[:enough] + "…"
}

func separator(i int) string {
	if i == 0 {
		return ":"
	}
	return ";"
}

// watchError gives the status with which a watch ends.
func watchError(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, watch.ErrStopped):
		return rpcerror.ShuttingDown()
	case ctx.Err() != nil:
		return context.Cause(ctx) // SHUTTING_DOWN when the server ends its streams
	default:
		return err
	}
}
