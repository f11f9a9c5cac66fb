package httpapi

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// parameters has the names of the query parameters of each path, by pattern.
type parameters map[string][]string

// parametersOf returns the fields of all requests that HTTP reaches, except those in the path.
func parametersOf(files ...protoreflect.FileDescriptor) parameters {
	all := parameters{}
	for _, file := range files {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				all.add(methods.Get(j))
			}
		}
	}
	return all
}

func (p parameters) add(method protoreflect.MethodDescriptor) {
	rule, _ := proto.GetExtension(method.Options(), annotations.E_Http).(*annotations.HttpRule)
	for _, binding := range slices.Concat([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()) {
		if path := binding.GetGet(); path != "" { // the other methods are not served
			p[path] = namesOf(method.Input().Fields(), path)
		}
	}
}

func namesOf(fields protoreflect.FieldDescriptors, path string) []string {
	names := []string{}
	for i := range fields.Len() {
		field := fields.Get(i)
		inPath := strings.Contains(path, "{"+field.TextName()+"=") || strings.Contains(path, "{"+field.TextName()+"}")
		if !inPath {
			names = append(names, field.TextName(), field.JSONName())
		}
	}
	return names
}

// check rejects other parameters. grpc-gateway ignores them, and would answer a misspelt filter
// with everything.
func (p parameters) check(next runtime.HandlerFunc) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, inPath map[string]string) {
		pattern, _ := runtime.HTTPPattern(r.Context())
		for name := range r.URL.Query() {
			if !slices.Contains(p[pattern.String()], name) {
				write(w, r, http.StatusBadRequest, rpcerror.New(codes.InvalidArgument, rpcerror.ValidationFailedReason,
					fmt.Sprintf("%q has no parameter %q", r.URL.Path, name)))
				return
			}
		}
		next(w, r, inPath)
	}
}
