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

	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// room is a namespace of a real cluster with a client that asks for metadata.
type room struct {
	*kube.SliceClient
	t         *testing.T
	clients   kubernetes.Interface
	namespace string
	managedBy string
}

// inRoom runs a test once for each way in which a kube-apiserver is spoken to.
func inRoom(t *testing.T, test func(room)) {
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
			requests, err := kube.NewMetadataOnlyRequests(config)
			if err != nil {
				t.Fatal(err)
			}
			namespace := testkit.Namespace(t, clients)
			test(room{
				SliceClient: kube.NewSliceClient(requests, namespace),
				t:           t,
				clients:     clients,
				namespace:   namespace,
				managedBy:   namespace, // a label of its own, so that other tests' slices are not listed
			})
		})
	}
}

func (r room) slice(name string) *discoveryv1.EndpointSlice {
	return slicetest.Slice(slicetest.Service("web"), name, slicetest.Pods(0, 3), func(slice *discoveryv1.EndpointSlice) {
		slice.Namespace, slice.UID, slice.ResourceVersion = r.namespace, "", ""
		slice.Labels[discoveryv1.LabelManagedBy] = r.managedBy
	})
}

func (r room) write(verb pack.Verb, slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	r.t.Helper()
	stored, err := r.Write(r.t.Context(), pack.Change{Verb: verb, Slice: slice})
	if err != nil {
		r.t.Fatal(err)
	}
	return stored
}

// stored gives a slice as everybody sees it.
func (r room) stored(name string) *discoveryv1.EndpointSlice {
	r.t.Helper()
	slice, err := r.clients.DiscoveryV1().EndpointSlices(r.namespace).Get(r.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return slice
}

// Of the answer only the metadata was sent, and yet it is the whole slice.
func TestClient_KnowsWhatIsStored(t *testing.T) {
	inRoom(t, func(r room) {
		same := cmpopts.IgnoreFields(metav1.ObjectMeta{}, "ManagedFields")
		created := r.write(pack.Create, r.slice("web-1"))
		if diff := gocmp.Diff(r.stored("web-1"), created, same); diff != "" {
			r.t.Errorf("created (-stored +returned):\n%s", diff)
		}
		next := created.DeepCopy()
		next.Endpoints = next.Endpoints[:1]
		next.Labels["team"] = "a"
		updated := r.write(pack.Update, next)
		if diff := gocmp.Diff(r.stored("web-1"), updated, same); diff != "" {
			r.t.Errorf("updated (-stored +returned):\n%s", diff)
		}
		if updated.Generation != 2 || updated.ResourceVersion == created.ResourceVersion {
			r.t.Errorf("generation %d and version %s follow version %s, want generation 2 of another version", updated.Generation, updated.ResourceVersion, created.ResourceVersion)
		}
		manager := r.stored("web-1").ManagedFields[0].Manager
		if got := updated.ManagedFields; len(got) != 1 || got[0].Manager != manager || got[0].FieldsV1 != nil {
			r.t.Errorf("managed fields are %v, want %q alone without its fields", got, manager)
		}
		got, err := r.Get(r.t.Context(), types.NamespacedName{Namespace: r.namespace, Name: "web-1"})
		if err != nil {
			r.t.Fatal(err)
		}
		if diff := gocmp.Diff(updated, got, cmpopts.IgnoreTypes(metav1.TypeMeta{})); diff != "" {
			r.t.Errorf("read (-updated +read):\n%s", diff)
		}
		r.write(pack.Delete, updated)
		r.write(pack.Delete, updated) // again: gone is gone
		if got, err := r.Get(r.t.Context(), types.NamespacedName{Namespace: r.namespace, Name: "web-1"}); got != nil || err != nil {
			r.t.Errorf("the deleted slice is %v (%v), want nothing", got, err)
		}
	})
}

func TestClient_OldPlansAreRefused(t *testing.T) {
	inRoom(t, func(r room) {
		old := r.write(pack.Create, r.slice("web-1"))
		edited := old.DeepCopy()
		edited.Annotations = map[string]string{"by": "hand"}
		if _, err := r.clients.DiscoveryV1().EndpointSlices(r.namespace).Update(r.t.Context(), edited, metav1.UpdateOptions{}); err != nil {
			r.t.Fatal(err)
		}
		gone := r.slice("web-2")
		gone.UID, gone.ResourceVersion = "gone", old.ResourceVersion
		madeAgain := r.stored("web-1")
		madeAgain.UID = "an-earlier-one"
		for name, change := range map[string]pack.Change{
			"create what is there":       {Verb: pack.Create, Slice: r.slice("web-1")},
			"update an old version":      {Verb: pack.Update, Slice: old},
			"update what is gone":        {Verb: pack.Update, Slice: gone},
			"delete an old version":      {Verb: pack.Delete, Slice: old},
			"delete another of the name": {Verb: pack.Delete, Slice: madeAgain},
		} {
			if _, err := r.Write(r.t.Context(), change); !errors.Is(err, kube.ErrConflict) {
				r.t.Errorf("%s: error is %v, want %v", name, err, kube.ErrConflict)
			}
		}
		if got := r.stored("web-1"); got.Annotations["by"] != "hand" || len(got.Endpoints) != 3 {
			r.t.Errorf("the slice is %v, want it as it was edited", got)
		}
	})
}

func TestClient_TerminatingNamespaceIsNamed(t *testing.T) {
	inRoom(t, func(r room) {
		if err := r.clients.CoreV1().Namespaces().Delete(r.t.Context(), r.namespace, metav1.DeleteOptions{}); err != nil {
			r.t.Fatal(err)
		}
		testkit.Eventually(r.t, 30*time.Second, func() error {
			namespace, err := r.clients.CoreV1().Namespaces().Get(r.t.Context(), r.namespace, metav1.GetOptions{})
			if err == nil && namespace.Status.Phase != corev1.NamespaceTerminating {
				err = errors.New("not terminating yet")
			}
			return err
		})
		_, err := r.Write(r.t.Context(), pack.Change{Verb: pack.Create, Slice: r.slice("web-1")})
		if !errors.Is(err, kube.ErrNamespaceTerminating) {
			r.t.Errorf("error is %v, want %v", err, kube.ErrNamespaceTerminating)
		}
	})
}

func TestClient_ListsTheMetadataOfOurSlicesOverPages(t *testing.T) {
	const count = 501 // a page and a slice
	inRoom(t, func(r room) {
		want := map[string]string{}
		for i := range count {
			empty := r.slice(fmt.Sprintf("web-%03d", i))
			empty.Endpoints = []discoveryv1.Endpoint{}
			want[empty.Name] = r.write(pack.Create, empty).ResourceVersion
		}
		foreign := r.slice("foreign")
		foreign.Labels[discoveryv1.LabelManagedBy] = "somebody"
		r.write(pack.Create, foreign)

		listed, version, err := r.List(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		got := map[string]string{}
		for _, meta := range listed {
			got[meta.Name] = meta.ResourceVersion
			if slices.ContainsFunc(meta.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool { return entry.FieldsV1 != nil }) {
				r.t.Fatalf("managed fields are kept: %v", meta.ManagedFields)
			}
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			r.t.Errorf("slices (-want +listed):\n%s", diff)
		}
		if version == "" {
			r.t.Error("the list has no resourceVersion")
		}
	})
}

func TestClient_EndsWithItsContext(t *testing.T) {
	inRoom(t, func(r room) {
		ctx, cancel := context.WithCancel(r.t.Context())
		cancel()
		if _, err := r.Write(ctx, pack.Change{Verb: pack.Create, Slice: r.slice("web-1")}); !errors.Is(err, context.Canceled) {
			r.t.Errorf("error is %v, want %v", err, context.Canceled)
		}
		if _, _, err := r.List(ctx); !errors.Is(err, context.Canceled) {
			r.t.Errorf("error is %v, want %v", err, context.Canceled)
		}
	})
}
