package rpcerror

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trivet-dev/trivet/internal/wording"
)

// Option adds a detail to a new error.
type Option func(*details)

type details struct {
	metadata   map[string]string
	retryAfter time.Duration
	violations []*errdetails.BadRequest_FieldViolation
}

// WithMetadata adds a key and a value to the ErrorInfo. The last value of a repeated key wins.
func WithMetadata(key, value string) Option {
	return func(d *details) { d.metadata[wording.Valid(key)] = printable(value) }
}

// WithRetryAfter adds a RetryInfo: a retry after pause may succeed. A pause of 0 or less adds
// nothing.
func WithRetryAfter(pause time.Duration) Option {
	return func(d *details) { d.retryAfter = pause }
}

// WithField adds a field violation to the BadRequest detail. The path is as protovalidate writes
// it, for example "beats[3].holder.name". May be given many times; order is kept.
func WithField(path, description string) Option {
	violation := &errdetails.BadRequest_FieldViolation{Field: printable(path), Description: printable(description)}
	return func(d *details) { d.violations = append(d.violations, violation) }
}

// New returns a status error with exactly one ErrorInfo and the details of the options. The code OK
// becomes INTERNAL, because a status with OK is not an error. The caller receives the message, so
// it must not contain internal causes. It may quote a request: characters that control a terminal
// or the direction of a line are escaped, here and in the details.
func New(code codes.Code, reason Reason, message string, options ...Option) error {
	if code == codes.OK {
		code = codes.Internal
	}
	return Complete(status.New(code, message), reason, options...)
}

// NotLeader returns the error of a replica that does not lead the shard. leaderAddress is the
// host:port of the leader: NOT_LEADER has it as [RedirectAddressKey]. It is empty if no leader is
// known: then the reason is NO_LEADER.
func NotLeader(service, leaderAddress string) error {
	if leaderAddress == "" {
		return New(codes.Unavailable, NoLeaderReason,
			fmt.Sprintf("this replica of %s does not lead, and knows of no replica that does; try again", service))
	}
	return New(codes.FailedPrecondition, NotLeaderReason, fmt.Sprintf("this replica of %s does not lead; ask %s", service, leaderAddress),
		WithMetadata(RedirectAddressKey, leaderAddress))
}

// ShuttingDown returns the error of a replica that stops.
func ShuttingDown() error {
	return New(codes.Unavailable, ShuttingDownReason, "this replica is shutting down; try another one")
}

// Complete returns a status of another library as an error, with an added ErrorInfo and the details
// of the options. st must have no ErrorInfo of [Domain] and a code other than OK. Its message is
// escaped as that of [New].
func Complete(st *status.Status, reason Reason, options ...Option) error {
	encoded := st.Proto() // a copy
	encoded.Message = printable(encoded.GetMessage())
	st = status.FromProto(encoded)
	d := details{metadata: map[string]string{}}
	for _, option := range options {
		option(&d)
	}
	detailed, err := st.WithDetails(d.messages(reason)...)
	if err != nil {
		// Unreachable: only an OK status or invalid UTF-8 fails, and both are excluded above.
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

// printable returns a text with escapes for all characters that are not graphic, except breaks of
// lines and tabs.
func printable(text string) string {
	controls := func(r rune) bool { return !unicode.IsGraphic(r) && r != '\n' && r != '\t' }
	text = wording.Valid(text)
	if strings.IndexFunc(text, controls) < 0 {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		if controls(r) {
			out.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		} else {
			out.WriteRune(r)
		}
	}
	return out.String()
}
