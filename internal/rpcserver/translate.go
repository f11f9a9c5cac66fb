package rpcserver

import (
	"context"
	"errors"
	"fmt"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	codev1 "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

const (
	// internalMessage is all that a caller learns of a failure that nobody chose to tell.
	internalMessage = "internal error; the server's log has the cause"
	panicMessage    = "the call failed on a defect of the server; its log has the stack"

	// Details travel in trailers, which many clients cap at 8 KiB, and a request may break its rules a thousand times.
	maxFieldsTold     = 10
	maxFieldTextBytes = 160
)

func translateUnary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	response, err := handler(ctx, request)
	if err != nil {
		return nil, translate(ctx, err)
	}
	return response, nil
}

func translateStream(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return translate(stream.Context(), handler(service, stream))
}

// translate turns any error of a handler into a status with exactly one ErrorInfo of ours. An error that has one passes
// unchanged.
func translate(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if rpcerror.ReasonOf(err) != "" {
		return err
	}
	if cause := context.Cause(ctx); isCancellation(err) && rpcerror.ReasonOf(cause) == rpcerror.ShuttingDownReason {
		return cause
	}
	if st, ok := status.FromError(err); ok {
		return translateStatus(st, err)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		st := status.FromContextError(err)
		return hide(codeError(st.Code(), "the call ended before its work did"), err)
	}
	return hide(rpcerror.New(codes.Internal, rpcerror.InternalReason, internalMessage), err)
}

// translateStatus keeps code, message and details of a status that somebody chose, except where nobody did: UNKNOWN and
// INTERNAL come from libraries, and their text may say anything.
func translateStatus(st *status.Status, err error) error {
	if violations := violationsIn(st); len(violations) > 0 {
		return validationError(violations)
	}
	switch st.Code() {
	case codes.OK, codes.Unknown, codes.Internal:
		return hide(rpcerror.New(codes.Internal, rpcerror.InternalReason, internalMessage), err)
	default:
		return rpcerror.Complete(st, reasonOf(st.Code()))
	}
}

func isCancellation(err error) bool {
	return errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled
}

// reasonOf names a code as the gRPC documentation writes it, for failures that have no reason of their own.
func reasonOf(code codes.Code) rpcerror.Reason {
	return rpcerror.Reason(codev1.Code(code).String())
}

func codeError(code codes.Code, message string) error {
	return rpcerror.New(code, reasonOf(code), message)
}

func violationsIn(st *status.Status) []*validate.Violation {
	for _, detail := range st.Details() {
		if violations, ok := detail.(*validate.Violations); ok {
			return violations.GetViolations()
		}
	}
	return nil
}

// validationError has one violation or more to tell.
func validationError(violations []*validate.Violation) error {
	told := violations[:min(len(violations), maxFieldsTold)]
	options := make([]rpcerror.Option, 0, len(told))
	for _, violation := range told {
		options = append(options, rpcerror.WithField(pathOf(violation), shorten(violation.GetMessage())))
	}
	message := fmt.Sprintf("invalid request: %s: %s", pathOf(told[0]), shorten(told[0].GetMessage()))
	if more := len(violations) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more)", more)
	}
	return rpcerror.New(codes.InvalidArgument, rpcerror.ValidationFailedReason, message, options...)
}

func pathOf(violation *validate.Violation) string {
	return shorten(protovalidate.FieldPathString(violation.GetField()))
}

// shorten cuts text that callers have a hand in; rpcerror repairs a character cut in two.
func shorten(text string) string {
	if len(text) <= maxFieldTextBytes {
		return text
	}
	return text[:maxFieldTextBytes] + "…"
}

// hiddenError is told to the caller as its status and to the log with its cause. It does not unwrap to the cause: the
// logging interceptor takes whatever wraps io.EOF for success.
type hiddenError struct {
	told  error
	cause error
	stack string
}

func hide(told, cause error) error {
	return &hiddenError{told: told, cause: cause}
}

func panicError(panicked any, stack string) error {
	return &hiddenError{
		told:  rpcerror.New(codes.Internal, rpcerror.PanicReason, panicMessage),
		cause: fmt.Errorf("panic: %v", panicked),
		stack: stack,
	}
}

func (e *hiddenError) Error() string { return e.told.Error() }

// GRPCStatus is what gRPC sends and what status.FromError reads.
func (e *hiddenError) GRPCStatus() *status.Status { return status.Convert(e.told) }
