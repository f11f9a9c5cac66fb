package roles_test

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/trivet-dev/trivet/deploy"
	"github.com/trivet-dev/trivet/internal/roles"
)

func TestRead_ReturnsNamespacesThenRolesAndNothingElse(t *testing.T) {
	manifests := fstest.MapFS{
		"base/a.yaml":      {Data: []byte("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: a}\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: b}\n")},
		"base/z/c.yaml":    {Data: []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: c}\n")},
		"base/readme.txt":  {Data: []byte("kind: ClusterRole")},
		"other/roles.yaml": {Data: []byte("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: d}\n")},
	}
	objects, err := roles.Read(manifests, "base")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, object := range objects {
		names = append(names, object.GetName())
	}
	if want := []string{"c", "a"}; !slices.Equal(names, want) {
		t.Errorf("objects %v, want %v", names, want)
	}
}

func TestRead_BrokenManifestIsNamed(t *testing.T) {
	_, err := roles.Read(fstest.MapFS{"base/a.yaml": {Data: []byte("kind: [")}}, "base")
	if err == nil {
		t.Error("a broken manifest was read")
	}
}

// Each binding of deploy/ that Apply writes names a role that Apply writes, or one of Kubernetes.
func TestRead_ShippedBindingsHaveTheirRoles(t *testing.T) {
	objects, err := roles.Read(deploy.Files(), "base", "components")
	if err != nil {
		t.Fatal(err)
	}
	var bindings int
	for _, object := range objects {
		role, bound := object.Object["roleRef"].(map[string]any)
		if !bound {
			continue
		}
		bindings++
		name, _ := role["name"].(string)
		found := !strings.HasPrefix(name, "trivet") || slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool {
			return o.GetKind() == role["kind"] && o.GetName() == name && (o.GetKind() == "ClusterRole" || o.GetNamespace() == object.GetNamespace())
		})
		if !found {
			t.Errorf("%s %s: no manifest has %s %s", object.GetKind(), object.GetName(), role["kind"], role["name"])
		}
	}
	if bindings == 0 {
		t.Error("deploy/ has no bindings")
	}
}
