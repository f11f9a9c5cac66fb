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

// hand is an intake of Services that notes what it passes on.
func hand(fail error) (*intake[*corev1.Service], func() []string) {
	var notes []string
	note := func(what string, service *corev1.Service) {
		notes = append(notes, what+" "+service.Name+" "+string(service.UID)+" "+service.ResourceVersion)
	}
	in := &intake[*corev1.Service]{
		read: stripped(func(service *corev1.Service) *corev1.Service { return service }),
		last: func(meta metav1.ObjectMeta) *corev1.Service { return &corev1.Service{ObjectMeta: meta} },
		put: func(service *corev1.Service) error {
			note("put", service)
			return fail
		},
		drop:  func(service *corev1.Service) { note("drop", service) },
		known: map[types.NamespacedName]version{},
		listed: func(there map[types.NamespacedName]struct{}, version string) {
			notes = append(notes, fmt.Sprintf("listed %d at %s", len(there), version))
		},
		filled: func() { notes = append(notes, "filled") },
	}
	return in, func() []string {
		all := notes
		notes = nil
		slices.Sort(all)
		return all
	}
}

func service(name, uid, version string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uid), ResourceVersion: version}}
}

func TestIntake_ListsAreComparedWithWhatIsKnown(t *testing.T) {
	in, notes := hand(nil)
	for _, step := range []struct {
		name string
		do   func() error
		want []string
	}{
		{
			name: "the first list",
			do: func() error {
				return in.Replace([]any{service("same", "1", "1"), service("newer", "2", "2"), service("again", "3", "3"), service("gone", "4", "4")}, "5")
			},
			want: []string{"filled", "listed 4 at 5", "put again 3 3", "put gone 4 4", "put newer 2 2", "put same 1 1"},
		},
		{
			name: "events",
			do: func() error {
				return errors.Join(in.Add(service("came", "6", "6")), in.Update(service("newer", "2", "7")), in.Delete(service("came", "6", "8")))
			},
			want: []string{"drop came 6 8", "put came 6 6", "put newer 2 7"},
		},
		{
			name: "the list after an interruption",
			do: func() error {
				return in.Replace([]any{service("same", "1", "1"), service("newer", "2", "9"), service("again", "10", "10")}, "11")
			},
			want: []string{"drop gone 4 4", "filled", "listed 3 at 11", "put again 10 10", "put newer 2 9"},
		},
	} {
		if err := step.do(); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		if diff := gocmp.Diff(step.want, notes()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}

// What cannot be put is not there yet: the list is to be asked for again.
func TestIntake_IsNotFilledByWhatCannotBePut(t *testing.T) {
	bad := errors.New("bad")
	in, notes := hand(bad)
	for range 2 {
		if err := in.Replace([]any{service("a", "1", "1")}, "1"); !errors.Is(err, bad) {
			t.Errorf("error is %v, want %v", err, bad)
		}
		if diff := gocmp.Diff([]string{"put a 1 1"}, notes()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if err := in.Update(&corev1.Pod{}); !errors.Is(err, errKind) {
		t.Errorf("a pod among Services: error is %v, want %v", err, errKind)
	}
}
