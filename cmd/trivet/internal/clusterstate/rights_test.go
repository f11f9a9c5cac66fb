package clusterstate

import (
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/deploy"
	"github.com/trivet-dev/trivet/internal/roles"
)

// Each object of deploy/ is among the rights that --pre reviews, except those of cert-manager.
func TestInstallRights_CoverTheManifests(t *testing.T) {
	rights := InstallRights(roles.Namespace)
	objects := 0
	err := fs.WalkDir(deploy.Files(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(name) != ".yaml" || strings.HasPrefix(name, "static-pods") {
			return err
		}
		content, err := fs.ReadFile(deploy.Files(), name)
		if err != nil {
			return err
		}
		decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(string(content)), 4096)
		for {
			object := &unstructured.Unstructured{}
			if decoder.Decode(object) != nil {
				return nil
			}
			group := object.GroupVersionKind().Group
			if object.GetKind() == "" || strings.HasPrefix(group, "cert-manager") || strings.HasPrefix(group, "kustomize") || object.Object["metadata"] == nil {
				continue
			}
			if name := object.GetName(); name == "any" { // a patch
				continue
			}
			objects++
			resource := strings.ToLower(object.GetKind()) + "s"
			resource = strings.NewReplacer("policys", "policies").Replace(resource)
			for _, verb := range []string{"get", "create", "patch"} {
				right := diagnosis.Right{Verb: verb, Group: group, Resource: resource, Namespace: object.GetNamespace()}
				if !slices.Contains(rights, right) {
					t.Errorf("%s: the right to %s is not reviewed", name, right)
				}
			}
		}
	})
	if err != nil || objects < 20 {
		t.Fatalf("%d objects: %v", objects, err)
	}
}

func TestServerRights_AreThoseOfTheRoles(t *testing.T) {
	base, err := ServerRights(deploy.Files(), "leasesvc", "base")
	if err != nil {
		t.Fatal(err)
	}
	health, err := ServerRights(deploy.Files(), "leasesvc", "base", "components/node-health")
	if err != nil {
		t.Fatal(err)
	}
	for text, rights := range map[string][]diagnosis.Right{
		"create leases.coordination.k8s.io in kube-node-lease": base,
		"create tokenreviews.authentication.k8s.io":            base,
		"patch nodes/status":                                   health,
	} {
		if !slices.ContainsFunc(rights, func(r diagnosis.Right) bool { return r.String() == text }) {
			t.Errorf("no right to %s among %v", text, rights)
		}
	}
	if len(health) <= len(base) {
		t.Errorf("the component node-health adds no right: %d, %d", len(base), len(health))
	}
}
