package fanout

import (
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trivet-dev/trivet/internal/term"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// Failure tells how asking a member failed, after which time. err must not be nil.
func Failure(member term.Member, err error, after time.Duration) *gatewayv1.SourceStatus {
	return &gatewayv1.SourceStatus{
		Replica: replicaOf(member), Code: codeName(err), Message: explain(err, after), Latency: durationpb.New(after),
	}
}

// explain says for people what an error means. gRPC words a deadline as if the caller had set it.
func explain(err error, after time.Duration) string {
	if status.Code(err) == codes.DeadlineExceeded {
		return fmt.Sprintf("no answer within %s", after.Round(time.Millisecond))
	}
	return status.Convert(err).Message()
}

// codeName gives the canonical name, for example DEADLINE_EXCEEDED; grpc-go's own String is in camel case.
func codeName(err error) string {
	c := int32(status.Code(err))
	if name, ok := code.Code_name[c]; ok {
		return name
	}
	return fmt.Sprintf("CODE_%d", c)
}
