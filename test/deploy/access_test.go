package deploy

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	rbacv1 "k8s.io/api/rbac/v1"

	authv1 "github.com/trivet-dev/trivet/proto/trivet/auth/v1"
	_ "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	_ "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	_ "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

// right is a verb on a virtual resource, and whether its objects belong to namespaces.
type right struct {
	verb, resource string
	namespaced     bool
}

// rights are those that the methods of all services declare.
func rights() []right {
	var all []right
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				options := methods.Get(j).Options()
				access, _ := proto.GetExtension(options, authv1.E_Access).(*authv1.Access)
				resource := access.GetResource()
				if resource == nil {
					continue
				}
				http, _ := proto.GetExtension(options, annotations.E_Http).(*annotations.HttpRule)
				namespaced := resource.GetNameField() != "" && strings.Contains(http.String(), "namespaces/*")
				if r := (right{resource.GetVerb(), resource.GetResource(), namespaced}); !slices.Contains(all, r) {
					all = append(all, r)
				}
			}
		}
		return true
	})
	return all
}

// The roles for people hold exactly what the methods declare, in the API group that the servers ask
// about and in the form that kubectl auth can-i asks about.
func TestRoles_PeopleMayDoWhatTheMethodsDeclare(t *testing.T) {
	declared := rights()
	reads := func(r right) bool { return slices.Contains([]string{"get", "list", "watch"}, r.verb) }
	roles := map[string]*rbacv1.ClusterRole{}
	for _, role := range ofKind[rbacv1.ClusterRole](t, render(t, "base"), "ClusterRole") {
		roles[role.Name] = role
	}
	for name, c := range map[string]struct {
		label string
		needs func(right) bool
	}{
		"trivet-viewer":           {label: "rbac.authorization.k8s.io/aggregate-to-view", needs: reads},
		"trivet-operator":         {needs: func(right) bool { return true }},
		"trivet-service-operator": {label: "rbac.authorization.k8s.io/aggregate-to-admin", needs: func(r right) bool { return !reads(r) && r.namespaced }},
	} {
		t.Run(name, func(t *testing.T) {
			role := roles[name]
			if role == nil {
				t.Fatal("is missing")
			}
			for label := range role.Labels {
				if strings.Contains(label, "aggregate-to") && label != c.label {
					t.Errorf("is aggregated by %s", label)
				}
			}
			if c.label != "" && role.Labels[c.label] != "true" {
				t.Errorf("lacks label %s", c.label)
			}
			got := grants("", role.Rules)
			for _, r := range declared {
				own := grant{verb: r.verb, group: "trivet.dev", resource: r.resource}
				if want := c.needs(r); slices.Contains(got, own) != want {
					t.Errorf("has %v: %v, want %v", own, !want, want)
				}
			}
			for _, g := range got {
				known := slices.ContainsFunc(declared, func(r right) bool { return r.resource == strings.TrimSuffix(g.resource, ".trivet.dev") })
				twin := grant{verb: g.verb, group: "", resource: g.resource + ".trivet.dev"}
				if g.group == "" {
					twin = grant{verb: g.verb, group: "trivet.dev", resource: strings.TrimSuffix(g.resource, ".trivet.dev")}
				}
				if !known || !slices.Contains(got, twin) {
					t.Errorf("grants %v: declared %v, with its twin for kubectl %v", g, known, slices.Contains(got, twin))
				}
			}
		})
	}
}

// No role for people is bound to a subject, and every server may have callers reviewed.
func TestRoles_NoSubjectIsBoundAndServersReview(t *testing.T) {
	reviewers := []string{}
	for _, binding := range ofKind[rbacv1.ClusterRoleBinding](t, render(t, everything), "ClusterRoleBinding") {
		if strings.HasPrefix(binding.RoleRef.Name, "trivet-") {
			t.Errorf("%s binds %s", binding.Name, binding.RoleRef.Name)
		}
		if binding.RoleRef.Name == "system:auth-delegator" {
			for _, subject := range binding.Subjects {
				reviewers = append(reviewers, subject.Name)
			}
		}
	}
	slices.Sort(reviewers)
	if want := []string{"bootstrapsvc", "gateway", "leasesvc", "slicesvc"}; !slices.Equal(reviewers, want) {
		t.Errorf("%v may have callers reviewed, want %v", reviewers, want)
	}
}
