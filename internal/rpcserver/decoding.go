package rpcserver

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec
	"google.golang.org/grpc/mem"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// received is a request that its codec decodes, with the failure to do so. gRPC answers such a
// failure at once, with INTERNAL and without an ErrorInfo, as if the server were defective.
type received struct {
	message any
	err     error
}

// malformed returns the error of a caller whose bytes are not the message of the method.
func (r *received) malformed() error {
	// protobuf varies the space of its messages, so that programs do not compare them.
	cause := strings.ReplaceAll(r.err.Error(), "\u00a0", " ")
	return rpcerror.New(codes.InvalidArgument, rpcerror.MalformedMessageReason, "the request cannot be decoded: "+shorten(cause))
}

type malformedKey struct{}

// malformedIn returns why the request of a unary call could not be decoded, or nil.
func malformedIn(ctx context.Context) error {
	err, _ := ctx.Value(malformedKey{}).(error)
	return err
}

// codec is the codec of protobuf, which keeps the failure to decode a received.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

func (c codec) Unmarshal(data mem.BufferSlice, message any) error {
	into, ok := message.(*received)
	if !ok {
		return c.CodecV2.Unmarshal(data, message)
	}
	into.err = c.CodecV2.Unmarshal(data, into.message)
	return nil
}

// decodingStream refuses messages that cannot be decoded. It receives from one goroutine at a time,
// as every stream does.
type decodingStream struct {
	grpc.ServerStream
	ctx  context.Context
	next received
}

func (s *decodingStream) Context() context.Context { return s.ctx }

func (s *decodingStream) RecvMsg(message any) error {
	s.next = received{message: message}
	if err := s.ServerStream.RecvMsg(&s.next); err != nil {
		return err
	}
	if s.next.err != nil {
		return s.next.malformed()
	}
	return nil
}
