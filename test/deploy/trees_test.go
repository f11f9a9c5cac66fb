package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// everything is the base with all components.
const everything = "../test/deploy/testdata/everything"

// certManager is the base with certificates by cert-manager.
const certManager = "../test/deploy/testdata/cert-manager"

// withAgent is the base with the agent on every node, staticEverything all that goes with static
// Pods.
const (
	withAgent        = "../test/deploy/testdata/agent"
	staticEverything = "../test/deploy/testdata/static-everything"
)

// trees are all that can be rendered, seen from deploy/.
func trees() []string {
	clusters := []string{
		"base", "overlays/standalone", "overlays/sidecar", "overlays/static-pods", everything, certManager, withAgent, staticEverything,
	}
	return slices.Concat(clusters, serverPods(), agentPods(), []string{sharedPod})
}

// rendered has the output of kustomize for each tree.
var rendered = struct {
	sync.Mutex
	of map[string][]byte
}{of: map[string][]byte{}}

// output returns what kustomize makes of a tree. It runs once for each tree.
func output(t *testing.T, tree string) []byte {
	t.Helper()
	rendered.Lock()
	defer rendered.Unlock()
	if rendered.of[tree] == nil {
		path, err := filepath.Abs(filepath.Join("..", "..", "deploy", tree))
		if err != nil {
			t.Fatal(err)
		}
		tellCache(t, filepath.Join("..", "..", "deploy"))
		var complaints bytes.Buffer
		kustomize := exec.CommandContext(context.WithoutCancel(t.Context()), "go", "-C", "../../tools/kustomize", "tool", "kustomize", "build", path)
		if *otherKustomize != "" {
			kustomize = exec.CommandContext(context.WithoutCancel(t.Context()), *otherKustomize, "build", path)
		}
		kustomize.Stderr = &complaints
		if rendered.of[tree], err = kustomize.Output(); err != nil {
			t.Fatalf("render %s: %v\n%s", tree, err, complaints.String())
		}
	}
	return rendered.of[tree]
}

// render returns the objects of a tree, in kustomize's order.
func render(t *testing.T, tree string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(output(t, tree)), 4096)
	for {
		object := &unstructured.Unstructured{}
		switch err := decoder.Decode(object); {
		case errors.Is(err, io.EOF):
			return objects
		case err != nil:
			t.Fatalf("read what %s renders to: %v", tree, err)
		}
		objects = append(objects, object)
	}
}

// tellCache opens every file of a folder, for `go test` repeats a result until a file changes that
// the test itself opened, and does not see those that kustomize opens.
func tellCache(t *testing.T, folder string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		_, err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// ofKind returns the objects of one kind as their Go type.
func ofKind[T any](t *testing.T, objects []*unstructured.Unstructured, kind string) []*T {
	t.Helper()
	var found []*T
	for _, object := range objects {
		if object.GetKind() != kind {
			continue
		}
		typed := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
			t.Fatalf("%s %s: %v", kind, object.GetName(), err)
		}
		found = append(found, typed)
	}
	return found
}

// applier writes objects of any kind by server-side apply, strictly: an unknown or repeated field
// is an error.
type applier struct {
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func newApplier(t *testing.T, config *rest.Config) *applier {
	t.Helper()
	config.WarningHandler = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	known, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &applier{client: client, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(known))}
}

// apply writes the object; with dryRun the apiserver does everything but store it.
func (a *applier) apply(ctx context.Context, object *unstructured.Unstructured, dryRun bool) error {
	kind := object.GroupVersionKind()
	mapping, err := a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return err
	}
	body, err := object.MarshalJSON()
	if err != nil {
		return err
	}
	options := metav1.PatchOptions{FieldManager: "trivet-test", FieldValidation: metav1.FieldValidationStrict, Force: new(true)}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	_, err = a.client.Resource(mapping.Resource).Namespace(object.GetNamespace()).
		Patch(ctx, object.GetName(), types.ApplyPatchType, body, options)
	return err
}

// applyNamespaces really makes a tree's namespaces, without which nothing in them is accepted, not
// even as a dry run.
func (a *applier) applyNamespaces(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	for _, object := range objects {
		if object.GetKind() != "Namespace" {
			continue
		}
		if err := a.apply(t.Context(), object, false); err != nil {
			t.Fatalf("make namespace %s: %v", object.GetName(), err)
		}
	}
}

// restore gives the namespaces the labels of the base again, after a test has ended.
func (a *applier) restore(t *testing.T) {
	t.Helper()
	for _, object := range render(t, "base") {
		if object.GetKind() != "Namespace" {
			continue
		}
		if err := a.apply(context.Background(), object, false); err != nil {
			t.Error(err)
		}
	}
}

func TestTrees_ARealAPIServerAcceptsEveryObject(t *testing.T) {
	server := newApplier(t, testkit.Cluster(t).RESTConfig())
	for _, tree := range trees() {
		t.Run(tree, func(t *testing.T) {
			objects := render(t, tree)
			if len(objects) == 0 {
				t.Fatal("renders to nothing")
			}
			server.applyNamespaces(t, objects)
			if strings.HasPrefix(tree, "static-pods/") { // their namespace is that of component host-access
				server.applyNamespaces(t, render(t, withAgent))
			}
			t.Cleanup(func() { server.restore(t) })
			for _, object := range objects {
				if object.GroupVersionKind().Group == certManagerGroup {
					continue // not a part of Kubernetes; see certificates_test.go
				}
				testkit.Eventually(t, settled, func() error { // admission knows the new labels of a namespace a moment later
					err := server.apply(t.Context(), object, true)
					if err != nil && !apierrors.IsForbidden(err) {
						t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
						return nil
					}
					return err
				})
			}
		})
	}
}

// Each patch is one document: kubectl kustomize 1.32 panics on a patch with several documents of
// which one deletes an object.
func TestTrees_EachPatchIsOneDocument(t *testing.T) {
	seen := 0
	err := filepath.WalkDir(filepath.Join("..", "..", "deploy"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "kustomization.yaml" {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var found struct {
			Patches []struct{ Path, Patch string }
		}
		if err := yaml.Unmarshal(content, &found); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, patch := range found.Patches {
			text := []byte(patch.Patch)
			if patch.Path != "" {
				if text, err = os.ReadFile(filepath.Join(filepath.Dir(path), patch.Path)); err != nil {
					return err
				}
			}
			seen++
			if bytes.Contains(text, []byte("\n---\n")) {
				t.Errorf("%s: a patch has several documents:\n%s", path, text)
			}
		}
		return nil
	})
	if err != nil || seen < 20 {
		t.Errorf("found %d patches, %v", seen, err)
	}
}

func TestTrees_AMisspeltFieldIsRefused(t *testing.T) {
	server := newApplier(t, testkit.Cluster(t).RESTConfig())
	objects := render(t, "base")
	server.applyNamespaces(t, objects)
	for _, object := range objects {
		if object.GetKind() != "Deployment" {
			continue
		}
		if err := unstructured.SetNestedField(object.Object, int64(2), "spec", "replica"); err != nil {
			t.Fatal(err)
		}
		if err := server.apply(t.Context(), object, true); err == nil {
			t.Errorf("Deployment %s with spec.replica was accepted, so the test above proves little", object.GetName())
		}
	}
}
