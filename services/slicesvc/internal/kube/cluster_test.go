package kube_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// fixture is a namespace of a real cluster with a client of slices.
type fixture struct {
	*kube.SliceClient
	t         *testing.T
	clients   kubernetes.Interface
	namespace string
	managedBy string
}

// forEachEncoding runs a test with protobuf and with JSON requests.
func forEachEncoding(t *testing.T, test func(fixture)) {
	for name, contentType := range map[string]string{
		"protobuf": runtime.ContentTypeProtobuf,
		"JSON":     runtime.ContentTypeJSON,
	} {
		t.Run(name, func(t *testing.T) {
			config := testkit.Cluster(t).RESTConfig()
			config.ContentType, config.WarningHandler = contentType, rest.NoWarnings{}
			config.QPS = -1
			clients, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			requests, err := kube.NewSliceRequests(config)
			if err != nil {
				t.Fatal(err)
			}
			namespace := testkit.Namespace(t, clients)
			test(fixture{
				SliceClient: kube.NewSliceClient(requests, namespace),
				t:           t,
				clients:     clients,
				namespace:   namespace,
				managedBy:   namespace, // lists must not have slices of other tests
			})
		})
	}
}

func (f fixture) slice(name string) *discoveryv1.EndpointSlice {
	return slicetest.Slice(slicetest.Service("web"), name, slicetest.Pods(0, 3), func(slice *discoveryv1.EndpointSlice) {
		slice.Namespace, slice.UID, slice.ResourceVersion = f.namespace, "", ""
		slice.Labels[discoveryv1.LabelManagedBy] = f.managedBy
	})
}

func (f fixture) write(verb planned.Verb, slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	f.t.Helper()
	stored, err := f.Write(f.t.Context(), pack.Change{Verb: verb, Slice: slice})
	if err != nil {
		f.t.Fatal(err)
	}
	return stored
}

// stored reads a slice with another client.
func (f fixture) stored(name string) *discoveryv1.EndpointSlice {
	f.t.Helper()
	slice, err := f.clients.DiscoveryV1().EndpointSlices(f.namespace).Get(f.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return slice
}

// The answer has only the metadata; the result is the whole slice.
func TestSliceClient_ReturnsTheStoredSlice(t *testing.T) {
	t.Parallel()
	forEachEncoding(t, func(f fixture) {
		same := cmpopts.IgnoreFields(metav1.ObjectMeta{}, "ManagedFields")
		created := f.write(planned.Create, f.slice("web-1"))
		if diff := gocmp.Diff(f.stored("web-1"), created, same); diff != "" {
			f.t.Errorf("created (-stored +returned):\n%s", diff)
		}
		next := created.DeepCopy()
		next.Endpoints = next.Endpoints[:1]
		next.Labels["team"] = "a"
		updated := f.write(planned.Update, next)
		if diff := gocmp.Diff(f.stored("web-1"), updated, same); diff != "" {
			f.t.Errorf("updated (-stored +returned):\n%s", diff)
		}
		if updated.Generation != 2 || updated.ResourceVersion == created.ResourceVersion {
			f.t.Errorf("generation %d and version %s follow version %s, want generation 2 of another version", updated.Generation, updated.ResourceVersion, created.ResourceVersion)
		}
		manager := f.stored("web-1").ManagedFields[0].Manager
		if got := updated.ManagedFields; len(got) != 1 || got[0].Manager != manager || got[0].FieldsV1 != nil {
			f.t.Errorf("managed fields are %v, want %q alone without its fields", got, manager)
		}
		got, err := f.Get(f.t.Context(), types.NamespacedName{Namespace: f.namespace, Name: "web-1"})
		if err != nil {
			f.t.Fatal(err)
		}
		if diff := gocmp.Diff(updated, got, cmpopts.IgnoreTypes(metav1.TypeMeta{})); diff != "" {
			f.t.Errorf("read (-updated +read):\n%s", diff)
		}
		f.write(planned.Delete, updated)
		f.write(planned.Delete, updated) // a second deletion succeeds
		if got, err := f.Get(f.t.Context(), types.NamespacedName{Namespace: f.namespace, Name: "web-1"}); got != nil || err != nil {
			f.t.Errorf("the deleted slice is %v (%v), want nothing", got, err)
		}
	})
}

func TestSliceClient_RefusesOldPlans(t *testing.T) {
	t.Parallel()
	forEachEncoding(t, func(f fixture) {
		old := f.write(planned.Create, f.slice("web-1"))
		edited := old.DeepCopy()
		edited.Annotations = map[string]string{"edited": "yes"}
		if _, err := f.clients.DiscoveryV1().EndpointSlices(f.namespace).Update(f.t.Context(), edited, metav1.UpdateOptions{}); err != nil {
			f.t.Fatal(err)
		}
		deleted := f.slice("web-2")
		deleted.UID, deleted.ResourceVersion = "deleted", old.ResourceVersion
		recreated := f.stored("web-1")
		recreated.UID = "uid-of-an-earlier-slice"
		for name, change := range map[string]pack.Change{
			"create an existing slice": {Verb: planned.Create, Slice: f.slice("web-1")},
			"update an old version":    {Verb: planned.Update, Slice: old},
			"update a deleted slice":   {Verb: planned.Update, Slice: deleted},
			"delete an old version":    {Verb: planned.Delete, Slice: old},
			"delete with another UID":  {Verb: planned.Delete, Slice: recreated},
		} {
			if _, err := f.Write(f.t.Context(), change); !errors.Is(err, kube.ErrConflict) {
				f.t.Errorf("%s: error is %v, want %v", name, err, kube.ErrConflict)
			}
		}
		if got := f.stored("web-1"); got.Annotations["edited"] != "yes" || len(got.Endpoints) != 3 {
			f.t.Errorf("the slice is %v, want the edited slice", got)
		}
	})
}

func TestSliceClient_ClassifiesTerminatingNamespace(t *testing.T) {
	t.Parallel()
	forEachEncoding(t, func(f fixture) {
		if err := f.clients.CoreV1().Namespaces().Delete(f.t.Context(), f.namespace, metav1.DeleteOptions{}); err != nil {
			f.t.Fatal(err)
		}
		testkit.Eventually(f.t, 30*time.Second, func() error {
			namespace, err := f.clients.CoreV1().Namespaces().Get(f.t.Context(), f.namespace, metav1.GetOptions{})
			if err == nil && namespace.Status.Phase != corev1.NamespaceTerminating {
				err = errors.New("not terminating yet")
			}
			return err
		})
		_, err := f.Write(f.t.Context(), pack.Change{Verb: planned.Create, Slice: f.slice("web-1")})
		if !errors.Is(err, kube.ErrNamespaceTerminating) {
			f.t.Errorf("error is %v, want %v", err, kube.ErrNamespaceTerminating)
		}
	})
}

func TestSliceClient_ListsOurSlicesOverPages(t *testing.T) {
	t.Parallel()
	const count = 501 // a page and a slice
	forEachEncoding(t, func(f fixture) {
		want := map[string]string{}
		for i := range count {
			empty := f.slice(fmt.Sprintf("web-%03d", i))
			empty.Endpoints = []discoveryv1.Endpoint{}
			want[empty.Name] = f.write(planned.Create, empty).ResourceVersion
		}
		foreign := f.slice("foreign")
		foreign.Labels[discoveryv1.LabelManagedBy] = "another-manager"
		f.write(planned.Create, foreign)

		listed, version, err := f.List(f.t.Context())
		if err != nil {
			f.t.Fatal(err)
		}
		got := map[string]string{}
		for _, meta := range listed {
			got[meta.Name] = meta.ResourceVersion
			if slices.ContainsFunc(meta.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool { return entry.FieldsV1 != nil }) {
				f.t.Fatalf("managed fields are kept: %v", meta.ManagedFields)
			}
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			f.t.Errorf("slices (-want +listed):\n%s", diff)
		}
		if version == "" {
			f.t.Error("the list has no resourceVersion")
		}
	})
}

func TestSliceClient_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	forEachEncoding(t, func(f fixture) {
		ctx, cancel := context.WithCancel(f.t.Context())
		cancel()
		if _, err := f.Write(ctx, pack.Change{Verb: planned.Create, Slice: f.slice("web-1")}); !errors.Is(err, context.Canceled) {
			f.t.Errorf("error is %v, want %v", err, context.Canceled)
		}
		if _, _, err := f.List(ctx); !errors.Is(err, context.Canceled) {
			f.t.Errorf("error is %v, want %v", err, context.Canceled)
		}
	})
}
