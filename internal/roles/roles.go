package roles

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// fieldManager owns the fields of applied objects.
const fieldManager = "trivet-roles"

// Namespace is the namespace of the service accounts in deploy/.
const Namespace = "trivet-system"

// User returns the user and the groups of the service account of a server, as kube-apiserver knows
// them.
func User(server string) (name string, groups []string) {
	return "system:serviceaccount:" + Namespace + ":" + server,
		[]string{"system:serviceaccounts", "system:serviceaccounts:" + Namespace}
}

// resources are the kinds that Apply writes.
var resources = map[schema.GroupKind]string{
	{Kind: "Namespace"}:                                   "namespaces",
	{Group: rbacv1.GroupName, Kind: "ClusterRole"}:        "clusterroles",
	{Group: rbacv1.GroupName, Kind: "ClusterRoleBinding"}: "clusterrolebindings",
	{Group: rbacv1.GroupName, Kind: "Role"}:               "roles",
	{Group: rbacv1.GroupName, Kind: "RoleBinding"}:        "rolebindings",
}

// Apply writes the namespaces, roles and bindings of folders with manifests, and no other object.
// config is that of an administrator.
func Apply(ctx context.Context, config *rest.Config, manifests fs.FS, folders ...string) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client of kube-apiserver: %w", err)
	}
	objects, err := Read(manifests, folders...)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := apply(ctx, client, object); err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// Read returns what Apply writes: namespaces first, then the order of the files.
func Read(manifests fs.FS, folders ...string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for _, folder := range folders {
		err := fs.WalkDir(manifests, folder, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || path.Ext(name) != ".yaml" {
				return err
			}
			found, err := readFile(manifests, name)
			objects = append(objects, found...)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
	}
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int { return rank(a) - rank(b) })
	return objects, nil
}

func rank(object *unstructured.Unstructured) int {
	if object.GetKind() == "Namespace" {
		return 0
	}
	return 1
}

func readFile(manifests fs.FS, name string) ([]*unstructured.Unstructured, error) {
	content, err := fs.ReadFile(manifests, name)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		object := &unstructured.Unstructured{}
		switch err := decoder.Decode(object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if resources[object.GroupVersionKind().GroupKind()] != "" {
			objects = append(objects, object)
		}
	}
}

func apply(ctx context.Context, client dynamic.Interface, object *unstructured.Unstructured) error {
	kind := object.GroupVersionKind()
	body, err := object.MarshalJSON()
	if err != nil {
		return err
	}
	force := true
	_, err = client.Resource(kind.GroupVersion().WithResource(resources[kind.GroupKind()])).Namespace(object.GetNamespace()).
		Patch(ctx, object.GetName(), types.ApplyPatchType, body,
			metav1.PatchOptions{FieldManager: fieldManager, FieldValidation: metav1.FieldValidationStrict, Force: &force})
	return err
}
