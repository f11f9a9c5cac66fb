package httpapi

import (
	"bytes"
	"context"
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
	"github.com/trivet-dev/trivet/internal/rpcserver"
	authv1 "github.com/trivet-dev/trivet/proto/trivet/auth/v1"
)

// binding is one HTTP path of an RPC.
type binding struct {
	name protoreflect.FullName
	// parameters are the fields that query parameters set, by each of their names.
	parameters map[string]protoreflect.FieldDescriptor
	// reads is whether the RPC changes nothing, whatever the request says; streams is whether it is
	// a watch.
	reads, streams bool
	request        protoreflect.MessageType
}

// bindings has the bindings of all RPCs that HTTP reaches, by HTTP method and pattern.
type bindings map[string]binding

// fullMethod returns the name of the RPC in gRPC.
func (b binding) fullMethod() string {
	return fmt.Sprintf("/%s/%s", b.name.Parent(), b.name.Name())
}

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
		found := binding{name: method.FullName(), reads: isRead(method), streams: method.IsStreamingServer(), request: request}
		switch {
		case one.GetGet() != "":
			found.parameters = parametersOf(method.Input().Fields(), one.GetGet())
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

func parametersOf(fields protoreflect.FieldDescriptors, path string) map[string]protoreflect.FieldDescriptor {
	parameters := map[string]protoreflect.FieldDescriptor{}
	for i := range fields.Len() {
		field := fields.Get(i)
		inPath := strings.Contains(path, "{"+field.TextName()+"=") || strings.Contains(path, "{"+field.TextName()+"}")
		if !inPath {
			parameters[field.TextName()], parameters[field.JSONName()] = field, field
		}
	}
	return parameters
}

// admission decides about calls before their bodies are decoded, as *rpcserver.Server does.
type admission interface {
	Admit(ctx context.Context, fullMethod string, given map[string]string) (release func(), err error)
	MaxBytes(fullMethod string) int
}

// check admits calls, and rejects requests with unknown parameters or fields, which grpc-gateway
// would ignore: it would answer a misspelt filter with everything. With readOnly it rejects
// requests that change something, too.
func (b bindings) check(calls admission, readOnly bool) runtime.Middleware {
	return func(next runtime.HandlerFunc) runtime.HandlerFunc { return b.checked(next, calls, readOnly) }
}

func (b bindings) checked(next runtime.HandlerFunc, calls admission, readOnly bool) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, inPath map[string]string) {
		if found, probes := r.Context().Value(probeKey{}).(*bool); probes {
			*found = true
			return
		}
		pattern, _ := runtime.HTTPPattern(r.Context())
		found := b[r.Method+" "+pattern.String()]
		release, err := calls.Admit(r.Context(), found.fullMethod(), inPath)
		if err != nil {
			writeRefusal(w, r, err)
			return
		}
		defer release()
		if err := found.checkQuery(r.URL); err != nil {
			write(w, r, http.StatusBadRequest, rpcerror.New(codes.InvalidArgument, rpcerror.ValidationFailedReason, err.Error()))
			return
		}
		changes := readOnly && !found.reads
		if r.Method == http.MethodPost {
			request, err := readBody(w, r, found.request, calls.MaxBytes(found.fullMethod()))
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
		if found.streams {
			markStream(w.Header())
			if isHead(r) {
				w.Header().Set("Content-Type", "application/json")
				return // a watch has no end
			}
			w = &streamWriter{ResponseWriter: w}
		}
		next(w, r, inPath)
	}
}

// streamWriter gives the error of a watch that did not begin the form of all other errors:
// grpc-gateway writes it as a line of the watch.
type streamWriter struct {
	http.ResponseWriter
	failed bool
}

func (w *streamWriter) WriteHeader(code int) {
	w.failed = code != http.StatusOK
	w.ResponseWriter.WriteHeader(code)
}

func (w *streamWriter) Write(data []byte) (int, error) {
	if body, is := bytes.CutPrefix(data, []byte(errorPrefix)); is && w.failed {
		if _, err := w.ResponseWriter.Write(bytes.TrimSuffix(body, []byte("}"))); err != nil {
			return 0, err
		}
		return len(data), nil
	}
	return w.ResponseWriter.Write(data)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *streamWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// readBody decodes a body and replaces it by what was understood, so that the RPC gets what was
// checked.
func readBody(w http.ResponseWriter, r *http.Request, kind protoreflect.MessageType, limit int) (proto.Message, error) {
	if r.ContentLength > int64(limit) {
		return nil, &http.MaxBytesError{Limit: int64(limit)}
	}
	var received bytes.Buffer
	received.Grow(int(max(r.ContentLength, 0)) + bytes.MinRead)
	if _, err := received.ReadFrom(http.MaxBytesReader(w, r.Body, int64(limit))); err != nil {
		return nil, err
	}
	content := received.Bytes()
	if err := rpcserver.CheckValues(content, kind.Descriptor()); err != nil {
		return nil, err
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // or it would end a call that takes longer
	request := kind.New().Interface()
	if len(bytes.TrimSpace(content)) > 0 {
		if err := protojson.Unmarshal(content, request); err != nil {
			return nil, err
		}
	}
	content, err := protojson.Marshal(request)
	if err != nil {
		return nil, err
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(content)), int64(len(content))
	return request, nil
}

func writeBodyError(w http.ResponseWriter, r *http.Request, err error) {
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		dropBody(w)
		writeError(w, r, http.StatusRequestEntityTooLarge)
		return
	}
	if rpcerror.ReasonOf(err) != "" {
		write(w, r, http.StatusBadRequest, err)
		return
	}
	reason, text := rpcerror.ValidationFailedReason, err.Error() // it may repeat the whole body
	if strings.Contains(text, "unknown field") {
		reason = rpcerror.UnknownFieldReason
	}
	write(w, r, http.StatusBadRequest, rpcerror.New(codes.InvalidArgument, reason, fmt.Sprintf("the body is not a request: %.300s", text)))
}

func validatesOnly(request proto.Message) bool {
	only, has := request.(interface{ GetValidateOnly() bool })
	return has && only.GetValidateOnly()
}
