package kube

import (
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// errKind is returned for an object that is not of an intake's kind, as far as it
// can be read.
var errKind = errors.New("object is not of the kind that is watched, or cannot be decoded")

// intake takes the objects of one kind from a reflector and passes them on; what
// it remembers of them are names and versions. One goroutine uses it.
type intake[T metav1.Object] struct {
	// read makes what is passed on of what a client returned; false for another kind,
	// and for what cannot be decoded.
	read func(object any) (T, bool)
	// last makes an object of which no more is known than it was.
	last func(metav1.ObjectMeta) T
	put  func(T) error
	drop func(T)
	// known has what was put and not dropped.
	known map[types.NamespacedName]version
	// listed, if set, is told of every list that was taken in.
	listed func(there map[types.NamespacedName]struct{}, resourceVersion string)
	// filled is called once the cluster's objects have been put.
	filled func()
}

// version is one state of an object.
type version struct {
	uid             types.UID
	resourceVersion string
}

var _ cache.ReflectorStore = &intake[*sighting]{}

// Add puts an object.
func (t *intake[T]) Add(object any) error { return t.Update(object) }

// Update puts an object.
func (t *intake[T]) Update(object any) error {
	typed, ok := t.read(object)
	if !ok {
		return errKind
	}
	return t.take(typed)
}

// take puts an object. One that could not be put counts as not seen.
func (t *intake[T]) take(object T) error {
	if err := t.put(object); err != nil {
		return err
	}
	t.known[keyOf(object)] = versionOf(object)
	return nil
}

// Delete drops an object.
func (t *intake[T]) Delete(object any) error {
	typed, ok := t.read(object)
	if !ok {
		return errKind
	}
	delete(t.known, keyOf(typed))
	t.drop(typed)
	return nil
}

// Replace takes in all objects there are: those that are new are put, and those
// that are not there any more are dropped.
func (t *intake[T]) Replace(objects []any, resourceVersion string) error {
	var problems []error
	there := make(map[types.NamespacedName]struct{}, len(objects))
	for i, object := range objects {
		objects[i] = nil // so that it does not stay until all have been put
		typed, ok := t.read(object)
		if !ok {
			problems = append(problems, errKind)
			continue
		}
		key := keyOf(typed)
		there[key] = struct{}{}
		if known, ok := t.known[key]; !ok || known != versionOf(typed) {
			problems = append(problems, t.take(typed))
		}
	}
	for key, known := range t.known {
		if _, ok := there[key]; !ok {
			delete(t.known, key)
			t.drop(t.last(metav1.ObjectMeta{
				Namespace:       key.Namespace,
				Name:            key.Name,
				UID:             known.uid,
				ResourceVersion: known.resourceVersion,
			}))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	if t.listed != nil {
		t.listed(there, resourceVersion)
	}
	t.filled()
	return nil
}

// Resync is asked for by nobody: nothing here forgets.
func (t *intake[T]) Resync() error { return nil }

func versionOf(object metav1.Object) version {
	return version{uid: object.GetUID(), resourceVersion: object.GetResourceVersion()}
}

func keyOf(object metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
}
