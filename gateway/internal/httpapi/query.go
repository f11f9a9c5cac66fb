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

// parameters are the names of the query parameters that each path takes, by its pattern.
type parameters map[string][]string

// parametersOf are the fields of the requests of all RPCs that HTTP reaches, but for those that are in the path.
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
		if path := binding.GetGet(); path != "" { // nothing else is served
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

// check refuses requests with other parameters, which grpc-gateway passes over: of a filter that is misspelt, it would answer
// with everything.
func (p parameters) check(next runtime.HandlerFunc) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, inPath map[string]string) {
		pattern, _ := runtime.HTTPPattern(r.Context())
		for name := range r.URL.Query() {
			if !slices.Contains(p[pattern.String()], name) {
				write(w, r, http.StatusBadRequest, rpcerror.New(codes.InvalidArgument, rpcerror.ValidationFailedReason,
					fmt.Sprintf("%q takes no parameter %q", r.URL.Path, name)))
				return
			}
		}
		next(w, r, inPath)
	}
}
