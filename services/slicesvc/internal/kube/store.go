package kube

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// errKind is returned for an object of another kind, or one that cannot be decoded.
var errKind = errors.New("object is not of the kind that is watched, or cannot be decoded")

// store passes the objects of one kind from a reflector to the Handler. It keeps only their names
// and versions. One goroutine uses it.
type store[S any, T object[S]] struct {
	// decode returns false for an object of another kind, or one that cannot be decoded.
	decode func(object any) (T, bool)
	put    func(T) error
	remove func(T)
	// known has the objects that were put and not removed.
	known *knownObjects
	// listed is called after each list; nil for kinds that do not need it.
	listed func(keys map[types.NamespacedName]struct{}, resourceVersion string)
	// status records which resourceVersion the Handler has.
	status *kindStatus
	// filled is called after each list that was put without an error.
	filled func()
}

// object is a pointer to the struct of a kind.
type object[S any] interface {
	*S
	metav1.Object
}

var (
	_ cache.ReflectorStore         = &store[corev1.Pod, *corev1.Pod]{}
	_ cache.ResourceVersionUpdater = &store[corev1.Pod, *corev1.Pod]{}
)

func newStore[S any, T object[S]](decode func(object any) (T, bool), put func(T) error, remove func(T), status *kindStatus, filled func()) *store[S, T] {
	return &store[S, T]{
		decode: decode,
		put:    put,
		remove: remove,
		known:  status.known,
		status: status,
		filled: filled,
	}
}

func (s *store[S, T]) Add(object any) error { return s.Update(object) }

func (s *store[S, T]) Update(object any) error {
	decoded, ok := s.decode(object)
	if !ok {
		return errKind
	}
	return s.putKnown(decoded)
}

// putKnown leaves an object that could not be put unknown, so that the next list puts it again.
func (s *store[S, T]) putKnown(object T) error {
	if err := s.put(object); err != nil {
		return err
	}
	s.known.set(keyOf(object), versionOf(object))
	return nil
}

func (s *store[S, T]) Delete(object any) error {
	decoded, ok := s.decode(object)
	if !ok {
		return errKind
	}
	s.known.remove(keyOf(decoded))
	s.remove(decoded)
	return nil
}

// Replace compares a list with the known objects: it puts what is new and removes what is gone.
func (s *store[S, T]) Replace(objects []any, resourceVersion string) error {
	var problems []error
	listed := make(map[types.NamespacedName]struct{}, len(objects))
	for i, object := range objects {
		objects[i] = nil // lets the object be freed before all are put
		decoded, ok := s.decode(object)
		if !ok {
			problems = append(problems, errKind)
			continue
		}
		key := keyOf(decoded)
		listed[key] = struct{}{}
		if !s.known.has(key, versionOf(decoded)) {
			problems = append(problems, s.putKnown(decoded))
		}
	}
	for key, last := range s.known.removeUnlisted(listed) {
		gone := T(new(S))
		gone.SetNamespace(key.Namespace)
		gone.SetName(key.Name)
		gone.SetUID(last.uid)
		gone.SetResourceVersion(last.resourceVersion)
		s.remove(gone)
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	if s.listed != nil {
		s.listed(listed, resourceVersion)
	}
	s.status.hear(resourceVersion, time.Now())
	s.filled()
	return nil
}

// UpdateResourceVersion is called after each event, bookmarks included.
func (s *store[S, T]) UpdateResourceVersion(resourceVersion string) {
	s.status.hear(resourceVersion, time.Now())
}

// Resync does nothing: the Handler keeps every object.
func (s *store[S, T]) Resync() error { return nil }

func versionOf(object metav1.Object) version {
	return version{uid: object.GetUID(), resourceVersion: object.GetResourceVersion()}
}

func keyOf(object metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
}
