package rpcerror

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Option adds a detail to an error under construction.
type Option func(*details)

type details struct {
	metadata   map[string]string
	retryAfter time.Duration
	violations []*errdetails.BadRequest_FieldViolation
}

// WithMetadata adds a key and a value for programs to the ErrorInfo. The last value of a repeated key wins.
func WithMetadata(key, value string) Option {
	return func(d *details) { d.metadata[valid(key)] = valid(value) }
}

// WithRetryAfter adds a RetryInfo: trying again after pause may succeed. A pause that is not positive adds nothing.
func WithRetryAfter(pause time.Duration) Option {
	return func(d *details) { d.retryAfter = pause }
}

// WithField adds a field violation to the BadRequest detail. The path is as protovalidate writes it, for example
// "beats[3].holder.name". May be given many times; order is kept.
func WithField(path, description string) Option {
	violation := &errdetails.BadRequest_FieldViolation{Field: valid(path), Description: valid(description)}
	return func(d *details) { d.violations = append(d.violations, violation) }
}

// New returns a status error with exactly one ErrorInfo and the details of the options.
//
// The code must not be OK: a status with code OK is no error, so New turns it into INTERNAL rather than lose the failure.
// Message is for people and reaches the caller as it is; what the caller must not learn belongs in the log.
func New(code codes.Code, reason Reason, message string, options ...Option) error {
	if code == codes.OK {
		code = codes.Internal
	}
	return Complete(status.New(code, valid(message)), reason, options...)
}

// NotLeader says that another replica of service holds the term. holderGRPCAddress, host:port, says which; it is empty
// while nobody leads.
func NotLeader(service, holderGRPCAddress string) error {
	message := fmt.Sprintf("this replica of %s does not lead, and nobody does yet; try again", service)
	if holderGRPCAddress != "" {
		message = fmt.Sprintf("this replica of %s does not lead; ask %s", service, holderGRPCAddress)
	}
	return New(codes.Unavailable, NotLeaderReason, message, WithMetadata(GRPCAddressKey, holderGRPCAddress))
}

// ShuttingDown says that this replica is stopping and that another one will answer.
func ShuttingDown() error {
	return New(codes.Unavailable, ShuttingDownReason, "this replica is shutting down; try another one")
}

// Complete returns st as an error with an ErrorInfo and the details of the options behind the details it has. It is for a
// status that somebody else made; st must have no ErrorInfo of [Domain] and a code other than OK.
func Complete(st *status.Status, reason Reason, options ...Option) error {
	d := details{metadata: map[string]string{}}
	for _, option := range options {
		option(&d)
	}
	detailed, err := st.WithDetails(d.messages(reason)...)
	if err != nil {
		// Only an OK status or text that is not UTF-8 gets here, and both are excluded above. Should one slip through, an
		// error without details still says more than a failure to build it.
		return st.Err()
	}
	return detailed.Err()
}

func (d *details) messages(reason Reason) []protoadapt.MessageV1 {
	info := &errdetails.ErrorInfo{Reason: string(reason), Domain: Domain}
	if len(d.metadata) > 0 {
		info.Metadata = d.metadata
	}
	messages := []protoadapt.MessageV1{info}
	if len(d.violations) > 0 {
		messages = append(messages, &errdetails.BadRequest{FieldViolations: d.violations})
	}
	if d.retryAfter > 0 {
		messages = append(messages, &errdetails.RetryInfo{RetryDelay: durationpb.New(d.retryAfter)})
	}
	return messages
}

// valid replaces bytes that are not UTF-8: protobuf refuses to encode them, and gRPC would then drop all details of the
// status. They come from callers, whose bad input is quoted in messages.
func valid(text string) string {
	return strings.ToValidUTF8(text, "\uFFFD")
}
