package rpcserver

import (
	"context"
	"strings"

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
	// requestID is the field request_id, or nil.
	requestID protoreflect.FieldDescriptor
}

func newMethodAccess(method protoreflect.MethodDescriptor) *methodAccess {
	rule, _ := proto.GetExtension(method.Options(), authv1.E_Access).(*authv1.Access)
	access := &methodAccess{rule: rule, requestID: fieldOf(method.Input(), "request_id", protoreflect.StringKind)}
	if field := rule.GetResource().GetNameField(); field != "" {
		access.name = fieldOf(method.Input(), protoreflect.Name(field), protoreflect.StringKind)
	}
	return access
}

// wanted is what a request asks for, and what its audit record names.
type wanted struct {
	asked             authz.Attributes
	object, requestID string
}

// wanted reads what an encoded request asks for. A nil rule asks for nothing.
func (m *methodAccess) wanted(request []byte) wanted {
	if m == nil {
		return wanted{}
	}
	found := wanted{object: lastString(request, m.name), requestID: lastString(request, m.requestID)}
	found.asked = m.asked(found.object)
	return found
}

// asked returns what a request for an object asks for.
func (m *methodAccess) asked(object string) authz.Attributes {
	asked := authz.Attributes{Verb: m.rule.GetResource().GetVerb(), Resource: m.rule.GetResource().GetResource()}
	if m.name != nil {
		asked.Namespace, asked.Name = objectOf(object)
	}
	return asked
}

// changes says whether the method changes something by a right.
func (m *methodAccess) changes() bool {
	return m.rule.GetResource() != nil && !authz.Attributes{Verb: m.rule.GetResource().GetVerb()}.IsRead()
}

// stringOf returns the value of a field of a request; "" without the field.
func stringOf(request any, field protoreflect.FieldDescriptor) string {
	message, ok := request.(proto.Message)
	if !ok || field == nil {
		return ""
	}
	return message.ProtoReflect().Get(field).String()
}

// objectOf splits "namespaces/{namespace}/{collection}/{name}", "namespaces/{namespace}" and
// "{collection}/{name}". A name of another form is not validated yet: it needs the right to the
// whole collection.
func objectOf(name string) (namespace, object string) {
	if len(name) > maxNameBytes {
		return "", ""
	}
	rest := name
	if inNamespace, found := strings.CutPrefix(name, "namespaces/"); found {
		if namespace, rest, _ = strings.Cut(inNamespace, "/"); namespace == "-" {
			namespace = ""
		}
	}
	if _, object, _ = strings.Cut(rest, "/"); strings.Contains(object, "/") {
		object = ""
	}
	return namespace, object
}

// authorizeMethod decides what needs no request: rules without a resource, and methods that are no
// part of Trivet's API.
func (c chain) authorizeMethod(caller *authn.Caller, method string) error {
	if caller.Unchecked || c.isPublic(method) {
		return nil
	}
	access := c.rules.access[method]
	switch {
	case caller.Anonymous():
		return authn.NotAuthenticated("this call needs a client certificate or a bearer token")
	case access != nil && access.rule.GetPeer() != nil && !caller.IsPeer(authn.Server):
		return authz.NotAuthorized(caller.User, authz.Attributes{Verb: "call", Path: method},
			"only a replica of a service may, by its certificate")
	default:
		return nil
	}
}

// isPublic says whether every caller may call a method.
func (c chain) isPublic(method string) bool {
	access := c.rules.access[method]
	return access != nil && access.rule.GetPublic() != nil || strings.HasPrefix(method, "/grpc.health.")
}

// authorizeRequest decides about one request, by the right that the method needs.
func (c chain) authorizeRequest(ctx context.Context, caller *authn.Caller, method string, request wanted) error {
	access := c.rules.access[method]
	if access == nil || access.rule.GetResource() == nil || caller.Unchecked {
		return nil // decided by authorizeMethod, or for each item
	}
	return c.authorizer.Authorize(ctx, caller, request.asked)
}
