package clusterstate

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/roles"
)

// InstallRights returns the rights that an install of deploy/ needs in a namespace. Optional are
// the rights to give others rights that the caller lacks, and those for options of the chart.
func InstallRights(namespace string) []diagnosis.Right {
	var rights []diagnosis.Right
	add := func(group, namespace string, verbs []string, resources ...string) {
		for _, resource := range resources {
			for _, verb := range verbs {
				rights = append(rights, diagnosis.Right{Verb: verb, Group: group, Resource: resource, Namespace: namespace})
			}
		}
	}
	apply := []string{"get", "create", "patch"} // server-side apply
	add("", "", apply, "namespaces")
	add("", namespace, apply, "configmaps", "secrets", "services", "serviceaccounts", "resourcequotas")
	add("apps", namespace, apply, "deployments", "daemonsets")
	add("batch", namespace, apply, "jobs", "cronjobs")
	add("policy", namespace, apply, "poddisruptionbudgets")
	add("networking.k8s.io", namespace, apply, "networkpolicies")
	add("flowcontrol.apiserver.k8s.io", "", apply, "flowschemas", "prioritylevelconfigurations")
	add("admissionregistration.k8s.io", "", apply, "validatingadmissionpolicies", "validatingadmissionpolicybindings")
	add(rbacv1.GroupName, "", apply, "clusterroles", "clusterrolebindings")
	for _, in := range []string{namespace, "default", "kube-node-lease", "kube-system"} {
		add(rbacv1.GroupName, in, apply, "roles", "rolebindings")
	}
	required := len(rights)
	add(rbacv1.GroupName, "", []string{"bind", "escalate"}, "clusterroles")
	add("apps", namespace, apply, "statefulsets") // an etcd of its own
	add("monitoring.coreos.com", namespace, apply, "podmonitors", "servicemonitors", "prometheusrules")
	for i := required; i < len(rights); i++ {
		rights[i].Optional = true
	}
	return rights
}

// ServerRights returns the rights that the roles of folders of deploy/ give the ServiceAccount of a
// server.
func ServerRights(manifests fs.FS, server string, folders ...string) ([]diagnosis.Right, error) {
	objects, err := roles.Read(manifests, folders...)
	if err != nil {
		return nil, err
	}
	var rights []diagnosis.Right
	for _, object := range objects {
		if object.GetKind() != "RoleBinding" && object.GetKind() != "ClusterRoleBinding" {
			continue
		}
		var binding rbacv1.RoleBinding // a ClusterRoleBinding has the same fields
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &binding); err != nil {
			return nil, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
		bound := slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool {
			return s.Kind == rbacv1.ServiceAccountKind && s.Name == server && s.Namespace == roles.Namespace
		})
		if !bound {
			continue
		}
		rules, err := rulesOf(objects, binding)
		if err != nil {
			return nil, err
		}
		for _, rule := range rules {
			rights = append(rights, expand(rule, binding.Namespace)...)
		}
	}
	return distinct(rights), nil
}

// rulesOf returns the rules of the role of a binding. The role of kube-apiserver for servers with
// delegated authorization is in no manifest.
func rulesOf(objects []*unstructured.Unstructured, binding rbacv1.RoleBinding) ([]rbacv1.PolicyRule, error) {
	if binding.RoleRef.Name == "system:auth-delegator" {
		return []rbacv1.PolicyRule{
			{Verbs: []string{"create"}, APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}},
			{Verbs: []string{"create"}, APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}},
		}, nil
	}
	for _, object := range objects {
		isRole := object.GetKind() == binding.RoleRef.Kind && object.GetName() == binding.RoleRef.Name
		if !isRole || object.GetKind() == "Role" && object.GetNamespace() != binding.Namespace {
			continue
		}
		var role rbacv1.Role // a ClusterRole has the same rules
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role); err != nil {
			return nil, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
		return role.Rules, nil
	}
	return nil, fmt.Errorf("there is no %s %s for the binding %s", binding.RoleRef.Kind, binding.RoleRef.Name, binding.Name)
}

func expand(rule rbacv1.PolicyRule, namespace string) []diagnosis.Right {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	var rights []diagnosis.Right
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				for _, name := range names {
					rights = append(rights, diagnosis.Right{Verb: verb, Group: group, Resource: resource, Namespace: namespace, Name: name})
				}
			}
		}
	}
	return rights
}

func distinct(rights []diagnosis.Right) []diagnosis.Right {
	slices.SortFunc(rights, func(a, b diagnosis.Right) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(rights)
}
