package api

import (
	"context"
	"fmt"
	"path"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// route is a service with a handler for each of its RPCs.
type route struct {
	service  protoreflect.FullName
	handlers handlers
}

type handlers map[protoreflect.Name]handler

// handler answers the calls of a method: unary or streaming.
type handler interface {
	add(desc *grpc.ServiceDesc, m method, replicaID string)
}

// unary answers a call of a method with one response. Calls with its context are for the caller;
// authn.NotForwarded makes one of the gateway. The request must not be changed.
type unary func(ctx context.Context, m method, request proto.Message) (proto.Message, error)

// streaming answers a call of a method with a stream of responses.
type streaming func(m method, request proto.Message, stream grpc.ServerStream) error

// method is an RPC.
type method struct {
	path              string // "/package.Service/Method"
	request, response protoreflect.MessageType
}

func methodOf(desc protoreflect.MethodDescriptor) method {
	return method{
		path:    fmt.Sprintf("/%s/%s", desc.Parent().FullName(), desc.Name()),
		request: messageType(desc.Input()), response: messageType(desc.Output()),
	}
}

// messageType panics if the Go type of a message is not linked, as methodNamed for a method.
func messageType(desc protoreflect.MessageDescriptor) protoreflect.MessageType {
	found, err := protoregistry.GlobalTypes.FindMessageByName(desc.FullName())
	if err != nil {
		panic(err)
	}
	return found
}

func methodNamed(name protoreflect.FullName) method {
	desc, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		panic(err)
	}
	found, ok := desc.(protoreflect.MethodDescriptor)
	if !ok {
		panic(fmt.Sprintf("%s is no method", name))
	}
	return methodOf(found)
}

// name returns the name of the method in its service.
func (m method) name() string { return path.Base(m.path) }

// register adds the service of a replica of the gateway. It panics if a method has no handler.
func (r route) register(registrar grpc.ServiceRegistrar, replicaID string) {
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(r.service)
	if err != nil {
		panic(err)
	}
	service, ok := found.(protoreflect.ServiceDescriptor)
	if !ok {
		panic(fmt.Sprintf("%s is no service", r.service))
	}
	desc := &grpc.ServiceDesc{ServiceName: string(r.service), HandlerType: (*any)(nil), Metadata: service.ParentFile().Path()}
	methods := service.Methods()
	for i := range methods.Len() {
		handler := r.handlers[methods.Get(i).Name()]
		if handler == nil {
			panic(fmt.Sprintf("no handler for %s", methods.Get(i).FullName()))
		}
		handler.add(desc, methodOf(methods.Get(i)), replicaID)
	}
	registrar.RegisterService(desc, struct{}{})
}

func (h unary) add(desc *grpc.ServiceDesc, m method, replicaID string) {
	answer := func(ctx context.Context, request any) (any, error) {
		message, ok := request.(proto.Message)
		if !ok {
			return nil, fmt.Errorf("%T is no message", request)
		}
		response, err := h(onBehalf(ctx, replicaID), m, message)
		if err != nil {
			return nil, err
		}
		return response, nil
	}
	desc.Methods = append(desc.Methods, grpc.MethodDesc{
		MethodName: m.name(),
		Handler: func(server any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			request := m.request.New().Interface()
			if err := decode(request); err != nil {
				return nil, err
			}
			if interceptor == nil {
				return answer(ctx, request)
			}
			return interceptor(ctx, request, &grpc.UnaryServerInfo{Server: server, FullMethod: m.path}, answer)
		},
	})
}

func (h streaming) add(desc *grpc.ServiceDesc, m method, _ string) {
	desc.Streams = append(desc.Streams, grpc.StreamDesc{
		StreamName: m.name(), ServerStreams: true,
		Handler: func(_ any, stream grpc.ServerStream) error {
			request := m.request.New().Interface()
			if err := stream.RecvMsg(request); err != nil {
				return err
			}
			return h(m, request, stream)
		},
	})
}
