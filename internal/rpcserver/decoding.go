package rpcserver

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// HolderAccess decides about calls whose right depends on the holders in their messages, before a
// message is decoded. These are the methods with the access rule node_binding. It is safe for
// concurrent use.
type HolderAccess interface {
	// Begin admits a call within the limits of its caller, or returns a gRPC status. A caller that
	// may beat for no holder is refused. The context is that of the call, and end ends the call.
	Begin(ctx context.Context, caller *authn.Caller, method string) (of context.Context, end func(), err error)
	// Batches returns nil if a caller may send messages above the limit of their method, for many
	// holders. It may ask the kube-apiserver. If no answer comes, the error is a status with
	// UNAVAILABLE.
	Batches(ctx context.Context, caller *authn.Caller) error
}

// encoded is a message as it was received.
type encoded struct{ data mem.BufferSlice }

func (e *encoded) free() {
	e.data.Free()
	e.data = nil
}

// codec is the codec of protobuf, which only keeps the bytes of an encoded.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

func (c codec) Unmarshal(data mem.BufferSlice, message any) error {
	into, ok := message.(*encoded)
	if !ok {
		return c.CodecV2.Unmarshal(data, message)
	}
	into.free() // gRPC looks for a second message, which a unary call must not have
	data.Ref()
	into.data = data
	return nil
}

// reader reads the messages of one call. No message is decoded before the right of its caller, its
// length and the number of its items are known. It is for one goroutine at a time.
type reader struct {
	chain  chain
	caller *authn.Caller
	method string
	next   encoded
	// batches says that the caller may send large messages. A call that began keeps this, so that a
	// kube-apiserver that does not answer delays no later message.
	batches bool
}

// read receives a message, decides about it and decodes it. It returns what the request asks for,
// also with an error if the bytes were received.
func (r *reader) read(ctx context.Context, receive func(any) error, message any) (wanted, error) {
	defer r.next.free()
	if err := receive(&r.next); err != nil {
		return wanted{}, err
	}
	limit, err := r.admitSize(ctx, r.next.data.Len())
	if err != nil {
		return wanted{}, err
	}
	// The default pool would give 1 MiB for each message above 32 KiB.
	whole := r.next.data.MaterializeToBuffer(mem.NopBufferPool{})
	defer whole.Free()
	raw := whole.ReadOnlyData()
	access := r.chain.rules.access[r.method]
	asked := access.wanted(raw)
	if err := r.chain.authorizeRequest(ctx, r.caller, r.method, asked); err != nil {
		return asked, err
	}
	if shape := r.chain.rules.shapes[r.method]; shape != nil {
		if excess := shape.check(raw, limit); excess != nil {
			return asked, r.chain.excessive(r.method, excess, len(raw), limit)
		}
	}
	return asked, decode(raw, message, access, asked)
}

// decode refuses bytes that are not the message of the method, or have another name than the one
// that the caller was authorized for.
func decode(raw []byte, message any, access *methodAccess, asked wanted) error {
	into, ok := message.(proto.Message)
	if !ok {
		return malformed("its type is unknown")
	}
	if err := proto.Unmarshal(raw, into); err != nil {
		// protobuf varies the space of its messages, so that programs do not compare them.
		return malformed(strings.ReplaceAll(err.Error(), "\u00a0", " "))
	}
	if access != nil && stringOf(message, access.name) != asked.object {
		return malformed("its name is ambiguous")
	}
	return nil
}

// malformed returns the error of a caller whose bytes are not the message of the method.
func malformed(cause string) error {
	return rpcerror.New(codes.InvalidArgument, rpcerror.MalformedMessageReason, "the request cannot be decoded: "+shorten(cause))
}

// admitSize returns the limit of a message in bytes, or why a message is too large for its method
// and its caller.
func (r *reader) admitSize(ctx context.Context, size int) (limit int, err error) {
	c := r.chain
	limit, batched := c.quota.MaxBytes(r.method)
	if limit == 0 {
		return c.maxRecvBytes, nil
	}
	if size <= limit {
		return limit, nil
	}
	if batched && !r.batches && c.bindsHolders(r.method) {
		err := c.holders.Batches(ctx, r.caller)
		if status.Code(err) == codes.Unavailable {
			return limit, err
		}
		r.batches = err == nil
	}
	if r.batches {
		return c.maxRecvBytes, nil
	}
	return limit, c.quota.TooLarge(r.method, size, limit)
}

// bindsHolders says whether HolderAccess decides about a method.
func (c chain) bindsHolders(method string) bool {
	access := c.rules.access[method]
	return c.holders != nil && access != nil && access.rule.GetNodeBinding() != nil
}

// begin begins a call of which HolderAccess decides; it changes nothing for other methods.
func (c chain) begin(ctx context.Context, caller *authn.Caller, method string) (of context.Context, end func(), err error) {
	if !c.bindsHolders(method) {
		return ctx, func() {}, nil
	}
	return c.holders.Begin(ctx, caller, method)
}

type receiveKey struct{}

// receiverIn returns the function that receives the request of a unary call.
func receiverIn(ctx context.Context) func(any) error {
	receive, _ := ctx.Value(receiveKey{}).(func(any) error)
	return receive
}

// identifyBeforeDecoding returns a copy of a service whose unary methods find the caller first, for
// the log, and leave their requests to the guard. gRPC would decode a request before the first
// interceptor.
func (c chain) identifyBeforeDecoding(service *grpc.ServiceDesc) *grpc.ServiceDesc {
	guarded := *service
	guarded.Methods = make([]grpc.MethodDesc, len(service.Methods))
	for i, method := range service.Methods {
		inner, name := method.Handler, "/"+service.ServiceName+"/"+method.MethodName
		method.Handler = func(srv any, ctx context.Context, receive func(any) error, chained grpc.UnaryServerInterceptor) (any, error) {
			ctx, _, _ = c.identify(context.WithValue(ctx, receiveKey{}, receive), name)
			return inner(srv, ctx, func(any) error { return nil }, chained)
		}
		guarded.Methods[i] = method
	}
	return &guarded
}

func (c chain) identifyStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, _, _ := c.identify(stream.Context(), info.FullMethod)
	return handler(service, &streamWithContext{ServerStream: stream, ctx: ctx})
}

// readingStream reads the messages of a stream without a right of its own.
type readingStream struct {
	grpc.ServerStream
	ctx    context.Context
	reader reader
}

func (s *readingStream) Context() context.Context { return s.ctx }

func (s *readingStream) RecvMsg(message any) error {
	_, err := s.reader.read(s.ctx, s.ServerStream.RecvMsg, message)
	return err
}
