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
	"github.com/trivet-dev/trivet/internal/wording"
)

const (
	// internalMessage replaces the text of an error that no handler chose for the caller.
	internalMessage = "internal error; the server's log has the cause"
	panicMessage    = "the call failed on a defect of the server; its log has the stack"

	// Details are sent in trailers, which many clients limit to 8 KiB. A request may have thousands
	// of violations.
	maxFieldsShown    = 10
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

// translate converts any error of a handler to a status with exactly one ErrorInfo of domain
// trivet.dev. An error with one is returned unchanged.
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

// translateStatus keeps code, message and details of a status. It replaces UNKNOWN and INTERNAL,
// which come from libraries and may have any text.
func translateStatus(st *status.Status, err error) error {
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

// reasonOf returns the name of a code in the gRPC documentation, for failures without a reason.
func reasonOf(code codes.Code) rpcerror.Reason {
	return rpcerror.Reason(codev1.Code(code).String())
}

func codeError(code codes.Code, message string) error {
	return rpcerror.New(code, reasonOf(code), message)
}

// validationError needs at least one violation.
func validationError(violations []*validate.Violation) error {
	shown := violations[:min(len(violations), maxFieldsShown)]
	options := make([]rpcerror.Option, 0, len(shown))
	for _, violation := range shown {
		options = append(options, rpcerror.WithField(pathOf(violation), shorten(violation.GetMessage())))
	}
	message := fmt.Sprintf("invalid request: %s: %s", pathOf(shown[0]), shorten(shown[0].GetMessage()))
	if more := len(violations) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more)", more)
	}
	return rpcerror.New(codes.InvalidArgument, rpcerror.ValidationFailedReason, message, options...)
}

func pathOf(violation *validate.Violation) string {
	return shorten(protovalidate.FieldPathString(violation.GetField()))
}

// hiddenError sends a status to the caller and its cause to the log. It does not unwrap to the
// cause, because the logging interceptor treats an error that wraps io.EOF as success.
type hiddenError struct {
	sent  error
	cause error
	stack string
}

func hide(sent, cause error) error {
	return &hiddenError{sent: sent, cause: cause}
}

func panicError(panicked any, stack string) error {
	return &hiddenError{
		sent:  rpcerror.New(codes.Internal, rpcerror.PanicReason, panicMessage),
		cause: fmt.Errorf("panic: %v", panicked),
		stack: stack,
	}
}

func (e *hiddenError) Error() string { return e.sent.Error() }

// GRPCStatus returns the status that gRPC sends and that status.FromError reads.
func (e *hiddenError) GRPCStatus() *status.Status { return status.Convert(e.sent) }

// shorten cuts text that a caller can influence.
func shorten(text string) string { return wording.Clip(text, maxFieldTextBytes) }
