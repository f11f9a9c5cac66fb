package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	authv1 "github.com/trivet-dev/trivet/proto/trivet/auth/v1"
)

// binding is one HTTP path of an RPC.
type binding struct {
	name protoreflect.FullName
	// parameters has the names of the query parameters.
	parameters []string
	// reads is whether the RPC changes nothing, whatever the request says.
	reads   bool
	request protoreflect.MessageType
}

// bindings has the bindings of all RPCs that HTTP reaches, by HTTP method and pattern.
type bindings map[string]binding

func bindingsOf(files ...protoreflect.FileDescriptor) (bindings, error) {
	all := bindings{}
	for _, file := range files {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				if err := all.add(methods.Get(j)); err != nil {
					return nil, err
				}
			}
		}
	}
	return all, nil
}

func (b bindings) add(method protoreflect.MethodDescriptor) error {
	request, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	if err != nil {
		return fmt.Errorf("find the request of %s: %w", method.FullName(), err)
	}
	rule, _ := proto.GetExtension(method.Options(), annotations.E_Http).(*annotations.HttpRule)
	for _, one := range slices.Concat([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()) {
		found := binding{name: method.FullName(), reads: isRead(method), request: request}
		switch {
		case one.GetGet() != "":
			found.parameters = namesOf(method.Input().Fields(), one.GetGet())
			b[http.MethodGet+" "+one.GetGet()] = found
		case one.GetPost() != "" && one.GetBody() == "*":
			b[http.MethodPost+" "+one.GetPost()] = found
		}
	}
	return nil
}

// isRead reports whether the access rule of an RPC allows only to look.
func isRead(method protoreflect.MethodDescriptor) bool {
	access, _ := proto.GetExtension(method.Options(), authv1.E_Access).(*authv1.Access)
	switch rule := access.GetRule().(type) {
	case *authv1.Access_Resource:
		return slices.Contains([]string{"get", "list", "watch"}, rule.Resource.GetVerb())
	case *authv1.Access_Public:
		return true
	default:
		return false
	}
}

func namesOf(fields protoreflect.FieldDescriptors, path string) []string {
	var names []string
	for i := range fields.Len() {
		field := fields.Get(i)
		inPath := strings.Contains(path, "{"+field.TextName()+"=") || strings.Contains(path, "{"+field.TextName()+"}")
		if !inPath {
			names = append(names, field.TextName(), field.JSONName())
		}
	}
	return names
}

// check rejects requests with unknown parameters or fields, which grpc-gateway would ignore: it
// would answer a misspelt filter with everything. With readOnly it rejects requests that change
// something, too.
func (b bindings) check(readOnly bool) runtime.Middleware {
	return func(next runtime.HandlerFunc) runtime.HandlerFunc { return b.checked(next, readOnly) }
}

func (b bindings) checked(next runtime.HandlerFunc, readOnly bool) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, inPath map[string]string) {
		pattern, _ := runtime.HTTPPattern(r.Context())
		found, known := b[r.Method+" "+pattern.String()]
		if !known {
			writeError(w, r, http.StatusMethodNotAllowed)
			return
		}
		for name := range r.URL.Query() {
			if !slices.Contains(found.parameters, name) {
				write(w, r, http.StatusBadRequest, rpcerror.New(codes.InvalidArgument, rpcerror.ValidationFailedReason,
					fmt.Sprintf("%q has no parameter %q", r.URL.Path, name)))
				return
			}
		}
		changes := readOnly && !found.reads
		if r.Method == http.MethodPost {
			request, err := readBody(w, r, found.request)
			if err != nil {
				writeBodyError(w, r, err)
				return
			}
			changes = changes && !validatesOnly(request)
		}
		if changes {
			instead := "use gRPC"
			if found.request.Descriptor().Fields().ByName("validate_only") != nil {
				instead += ", or set validateOnly"
			}
			write(w, r, http.StatusMethodNotAllowed, rpcerror.New(codes.Unimplemented, methodNotAllowedReason, fmt.Sprintf(
				"%s is no read, and a server with --insecure does not know its HTTP callers: %s", found.name.Name(), instead)))
			return
		}
		next(w, r, inPath)
	}
}

// readBody decodes a body and replaces it by what was understood, so that the RPC gets what was
// checked.
func readBody(w http.ResponseWriter, r *http.Request, kind protoreflect.MessageType) (proto.Message, error) {
	content, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, err
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // or it would end a call that takes longer
	request := kind.New().Interface()
	if len(bytes.TrimSpace(content)) > 0 {
		if err := protojson.Unmarshal(content, request); err != nil {
			return nil, err
		}
	}
	if content, err = protojson.Marshal(request); err != nil {
		return nil, err
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(content)), int64(len(content))
	return request, nil
}

func writeBodyError(w http.ResponseWriter, r *http.Request, err error) {
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		w.Header().Set("Connection", "close")
		writeError(w, r, http.StatusRequestEntityTooLarge)
		return
	}
	reason := rpcerror.ValidationFailedReason
	if strings.Contains(err.Error(), "unknown field") {
		reason = rpcerror.UnknownFieldReason
	}
	write(w, r, http.StatusBadRequest, rpcerror.New(codes.InvalidArgument, reason, fmt.Sprintf("the body is not a request: %s", err)))
}

func validatesOnly(request proto.Message) bool {
	only, has := request.(interface{ GetValidateOnly() bool })
	return has && only.GetValidateOnly()
}
