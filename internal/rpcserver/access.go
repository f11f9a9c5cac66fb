package rpcserver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	authv1 "github.com/trivet-dev/trivet/proto/trivet/auth/v1"
)

// accessVerbs are the verbs that ResourceAccess may have.
var accessVerbs = []string{"get", "list", "watch", "create", "update"}

// checkAccess returns the methods of Trivet without a valid access rule. Without a rule, a new
// method would be open to every caller, or to none.
func checkAccess(methods map[string]protoreflect.MethodDescriptor) error {
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		if problem := accessProblem(methods[name]); problem != "" {
			problems = append(problems, fmt.Errorf("option (trivet.auth.v1.access) of %s: %s", name, problem))
		}
	}
	return errors.Join(problems...)
}

func accessProblem(method protoreflect.MethodDescriptor) string {
	access, _ := proto.GetExtension(method.Options(), authv1.E_Access).(*authv1.Access)
	switch {
	case access == nil:
		return "is missing"
	case access.GetRule() == nil:
		return "has no rule"
	case access.GetResource() != nil:
		return resourceProblem(access.GetResource(), method.Input())
	default:
		return ""
	}
}

func resourceProblem(access *authv1.ResourceAccess, request protoreflect.MessageDescriptor) string {
	switch {
	case !slices.Contains(accessVerbs, access.GetVerb()):
		return fmt.Sprintf("verb %q is none of %s", access.GetVerb(), strings.Join(accessVerbs, ", "))
	case access.GetResource() == "":
		return "has no resource"
	case access.GetNameField() != "" && fieldOf(request, protoreflect.Name(access.GetNameField()), protoreflect.StringKind) == nil:
		return fmt.Sprintf("name_field %q is no string field of %s", access.GetNameField(), request.FullName())
	default:
		return ""
	}
}
