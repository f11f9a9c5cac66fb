package rpcserver

import (
	"context"
	"errors"
	"fmt"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// reportedBytes is the size of the largest request of which all violations are found. One violation
// needs a kilobyte, and each two bytes of a request may be one.
const reportedBytes = 512

// requestChecks are the checks of the requests of one method.
type requestChecks struct {
	shape     *messageShape
	validator protovalidate.Validator
	// asOfTime, requestID and validateOnly are the request's fields of these names, or nil.
	asOfTime, requestID, validateOnly protoreflect.FieldDescriptor
}

func newRequestChecks(input protoreflect.MessageDescriptor, validator protovalidate.Validator, shapes map[protoreflect.FullName]*messageShape) *requestChecks {
	return &requestChecks{
		shape:        shapeOf(input, shapes),
		validator:    validator,
		asOfTime:     fieldOf(input, "as_of_time", protoreflect.MessageKind),
		requestID:    fieldOf(input, "request_id", protoreflect.StringKind),
		validateOnly: fieldOf(input, "validate_only", protoreflect.BoolKind),
	}
}

func fieldOf(message protoreflect.MessageDescriptor, name protoreflect.Name, kind protoreflect.Kind) protoreflect.FieldDescriptor {
	field := message.Fields().ByName(name)
	if field == nil || field.Kind() != kind || field.Cardinality() == protoreflect.Repeated {
		return nil
	}
	return field
}

// check returns why a request is refused. What the server does not know comes first: the other
// checks could be about something else then.
func (c *requestChecks) check(request any) error {
	message, ok := request.(proto.Message)
	if !ok {
		return fmt.Errorf("check request: %T is no message", request)
	}
	reflected := message.ProtoReflect()
	if unknown := c.shape.find(reflected); unknown != nil {
		return unknown.status()
	}
	if c.asOfTime != nil && reflected.Has(c.asOfTime) {
		return rpcerror.New(codes.FailedPrecondition, rpcerror.HistoryUnavailableReason,
			"this server keeps no history; omit as_of_time", rpcerror.WithField("as_of_time", "must not be set"))
	}
	var options []protovalidate.ValidationOption
	if proto.Size(message) > reportedBytes {
		options = append(options, protovalidate.WithFailFast())
	}
	err := c.validator.Validate(message, options...)
	var invalid *protovalidate.ValidationError
	if errors.As(err, &invalid) {
		return validationError(invalid.ToProto().GetViolations())
	}
	return err
}

// checkUnary refuses requests that break a rule, and answers repeated requests. Methods that are
// not in c.rules.checks pass: probes, and methods whose handlers check their messages.
func (c chain) checkUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	checks := c.rules.checks[info.FullMethod]
	if checks == nil {
		return handler(ctx, request)
	}
	if err := c.checkCluster(ctx); err != nil {
		return nil, err
	}
	if err := checks.check(request); err != nil {
		return nil, err
	}
	if checks.requestID == nil {
		return handler(ctx, request)
	}
	return c.answers.answer(ctx, checks, request, info.FullMethod, handler)
}

// ClusterKey is the metadata in which a caller names the cluster that it means. It is optional.
const ClusterKey = "trivet-cluster"

// checkCluster refuses a call that is meant for another cluster.
func (c chain) checkCluster(ctx context.Context) error {
	for _, wanted := range metadata.ValueFromIncomingContext(ctx, ClusterKey) {
		if wanted != c.cluster {
			return rpcerror.New(codes.FailedPrecondition, rpcerror.WrongClusterReason,
				fmt.Sprintf("this server is of cluster %q, and the call is for cluster %q", c.cluster, wanted))
		}
	}
	return nil
}

// checkStream refuses messages that break a rule.
func (c chain) checkStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if checks := c.rules.checks[info.FullMethod]; checks != nil {
		if err := c.checkCluster(stream.Context()); err != nil {
			return err
		}
		stream = &checkedStream{ServerStream: stream, checks: checks}
	}
	return handler(service, stream)
}

type checkedStream struct {
	grpc.ServerStream
	checks *requestChecks
}

func (s *checkedStream) RecvMsg(message any) error {
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	return s.checks.check(message)
}
