package rpcserver

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	authv1 "github.com/trivet-dev/trivet/proto/trivet/auth/v1"
)

// maxNameBytes bounds the name that a review is asked for. The right to a longer one is that to the
// whole collection.
const maxNameBytes = 512

// methodAccess is the access rule of one method, ready for calls.
type methodAccess struct {
	rule *authv1.Access
	// name is the field with the name of the object; nil for the whole collection.
	name protoreflect.FieldDescriptor
}

func newMethodAccess(method protoreflect.MethodDescriptor) *methodAccess {
	rule, _ := proto.GetExtension(method.Options(), authv1.E_Access).(*authv1.Access)
	access := &methodAccess{rule: rule}
	if field := rule.GetResource().GetNameField(); field != "" {
		access.name = fieldOf(method.Input(), protoreflect.Name(field), protoreflect.StringKind)
	}
	return access
}

// asked returns what a request asks for.
func (m *methodAccess) asked(request any) authz.Attributes {
	asked := authz.Attributes{Verb: m.rule.GetResource().GetVerb(), Resource: m.rule.GetResource().GetResource()}
	message, ok := request.(proto.Message)
	if m.name == nil || !ok {
		return asked
	}
	asked.Namespace, asked.Name = objectOf(message.ProtoReflect().Get(m.name).String())
	return asked
}

// objectOf splits "namespaces/{namespace}/{collection}/{name}", "namespaces/{namespace}" and
// "{collection}/{name}". A name of another form is not validated yet: it needs the right to the
// whole collection.
func objectOf(name string) (namespace, object string) {
	if len(name) > maxNameBytes {
		return "", ""
	}
	parts := strings.Split(name, "/")
	if parts[0] == "namespaces" && len(parts) >= 2 {
		if namespace = parts[1]; namespace == "-" {
			namespace = ""
		}
		parts = parts[2:]
	}
	if len(parts) == 2 {
		object = parts[1]
	}
	return namespace, object
}

// identify finds the caller and puts it into the context. It removes the metadata in which a
// gateway names an original caller, so that nothing behind it can read what is not verified.
func (c chain) identify(ctx context.Context) (context.Context, error) {
	request := authn.Request{Values: func(key string) []string { return metadata.ValueFromIncomingContext(ctx, key) }}
	if from, ok := peer.FromContext(ctx); ok {
		if from.Addr != nil {
			request.Address = from.Addr.String()
		}
		if info, ok := from.AuthInfo.(credentials.TLSInfo); ok {
			request.TLS = &info.State
		}
	}
	if c.authenticator == nil {
		return authn.NewContext(ctx, &authn.Caller{User: authn.Anonymous(), Peer: authn.Anonymous(), Address: request.Address, Unchecked: true}), nil
	}
	caller, err := c.authenticator.Authenticate(ctx, request)
	if err != nil {
		return ctx, err
	}
	return authn.NewContext(authn.WithoutRemote(ctx), caller), nil
}

// authorize decides about one request, by the rule of its method.
func (c chain) authorize(ctx context.Context, method string, request any) error {
	caller := authn.FromContext(ctx)
	access := c.rules.access[method]
	if access == nil || caller.Unchecked {
		return nil // decided by authorizeMethod
	}
	if access.rule.GetResource() == nil {
		return nil
	}
	return c.authorizer.Authorize(ctx, caller, access.asked(request))
}

// authorizeMethod decides what needs no request: rules without a resource, and methods that are no
// part of Trivet's API.
func (c chain) authorizeMethod(ctx context.Context, method string) error {
	caller := authn.FromContext(ctx)
	if caller.Unchecked || strings.HasPrefix(method, "/grpc.health.") {
		return nil
	}
	access := c.rules.access[method]
	switch {
	case access != nil && access.rule.GetPublic() != nil:
		return nil
	case caller.Anonymous():
		return authn.NotAuthenticated("this call needs a client certificate or a bearer token")
	case access != nil && access.rule.GetPeer() != nil && !caller.IsPeer(authn.Server):
		return authz.NotAuthorized(caller.User, authz.Attributes{Verb: "call", Path: method},
			"only a replica of a service may, by its certificate")
	default:
		return nil
	}
}

func (c chain) authorizeUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, err := c.identify(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.authorizeMethod(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	if err := c.authorize(ctx, info.FullMethod, request); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

func (c chain) authorizeStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, err := c.identify(stream.Context())
	if err != nil {
		return err
	}
	if err := c.authorizeMethod(ctx, info.FullMethod); err != nil {
		return err
	}
	stream = &streamWithContext{ServerStream: stream, ctx: ctx}
	if access := c.rules.access[info.FullMethod]; access != nil && access.rule.GetResource() != nil {
		stream = &authorizedStream{ServerStream: stream, authorize: func(request any) error { return c.authorize(ctx, info.FullMethod, request) }}
	}
	return handler(service, stream)
}

// authorizedStream decides about each request of a stream before the handler sees it.
type authorizedStream struct {
	grpc.ServerStream
	authorize func(request any) error
}

func (s *authorizedStream) RecvMsg(message any) error {
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	return s.authorize(message)
}
