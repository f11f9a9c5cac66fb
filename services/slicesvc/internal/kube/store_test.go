package kube

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// recordingStore returns a store of Services, and a function that returns the calls of its
// functions.
func recordingStore(fail error) (*store[corev1.Service, *corev1.Service], func() []string) {
	var calls []string
	record := func(what string, service *corev1.Service) {
		calls = append(calls, what+" "+service.Name+" "+string(service.UID)+" "+service.ResourceVersion)
	}
	services := newStore(
		decodeWith(func(service *corev1.Service) *corev1.Service { return service }),
		func(service *corev1.Service) error {
			record("put", service)
			return fail
		},
		func(service *corev1.Service) { record("remove", service) },
		newKindStatus("Service", services),
		func() { calls = append(calls, "filled") },
	)
	services.listed = func(listed map[types.NamespacedName]struct{}, version string) {
		calls = append(calls, fmt.Sprintf("listed %d at %s", len(listed), version))
	}
	return services, func() []string {
		all := calls
		calls = nil
		slices.Sort(all)
		return all
	}
}

func service(name, uid, version string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uid), ResourceVersion: version}}
}

func TestStore_ReplaceComparesListWithKnownObjects(t *testing.T) {
	t.Parallel()
	services, calls := recordingStore(nil)
	for _, step := range []struct {
		name string
		do   func() error
		want []string
	}{
		{
			name: "the first list",
			do: func() error {
				return services.Replace([]any{service("same", "1", "1"), service("newer", "2", "2"), service("recreated", "3", "3"), service("deleted", "4", "4")}, "5")
			},
			want: []string{"filled", "listed 4 at 5", "put deleted 4 4", "put newer 2 2", "put recreated 3 3", "put same 1 1"},
		},
		{
			name: "events",
			do: func() error {
				return errors.Join(services.Add(service("added", "6", "6")), services.Update(service("newer", "2", "7")), services.Delete(service("added", "6", "8")))
			},
			want: []string{"put added 6 6", "put newer 2 7", "remove added 6 8"},
		},
		{
			name: "a list after an interruption",
			do: func() error {
				return services.Replace([]any{service("same", "1", "1"), service("newer", "2", "9"), service("recreated", "10", "10")}, "11")
			},
			want: []string{"filled", "listed 3 at 11", "put newer 2 9", "put recreated 10 10", "remove deleted 4 4"},
		},
	} {
		if err := step.do(); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		if diff := gocmp.Diff(step.want, calls()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}

// An object that cannot be put stays unknown, and the reflector must list again.
func TestStore_FailedPutDoesNotFill(t *testing.T) {
	t.Parallel()
	bad := errors.New("bad")
	services, calls := recordingStore(bad)
	for range 2 {
		if err := services.Replace([]any{service("a", "1", "1")}, "1"); !errors.Is(err, bad) {
			t.Errorf("error is %v, want %v", err, bad)
		}
		if diff := gocmp.Diff([]string{"put a 1 1"}, calls()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if err := services.Update(&corev1.Pod{}); !errors.Is(err, errKind) {
		t.Errorf("a pod among Services: error is %v, want %v", err, errKind)
	}
}
