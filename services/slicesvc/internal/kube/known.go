package kube

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// knownObjects has the names and versions of the objects of one kind that the Handler has. It is
// safe for concurrent use.
type knownObjects struct {
	mu       sync.Mutex // guards versions
	versions map[types.NamespacedName]version
}

type version struct {
	uid             types.UID
	resourceVersion string
}

func newKnownObjects() *knownObjects {
	return &knownObjects{versions: map[types.NamespacedName]version{}}
}

func (o *knownObjects) has(key types.NamespacedName, is version) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	known, ok := o.versions[key]
	return ok && known == is
}

func (o *knownObjects) set(key types.NamespacedName, is version) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.versions[key] = is
}

func (o *knownObjects) remove(key types.NamespacedName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.versions, key)
}

// removeUnlisted removes and returns the objects that a list does not have.
func (o *knownObjects) removeUnlisted(listed map[types.NamespacedName]struct{}) map[types.NamespacedName]version {
	o.mu.Lock()
	defer o.mu.Unlock()
	gone := map[types.NamespacedName]version{}
	for key, known := range o.versions {
		if _, ok := listed[key]; !ok {
			gone[key] = known
			delete(o.versions, key)
		}
	}
	return gone
}

func (o *knownObjects) size() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.versions)
}

// coverList returns whether the Handler has every object of a list in that version or a newer one,
// and no object that was deleted before the list.
func (o *knownObjects) coverList(list *metav1.PartialObjectMetadataList) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	listed := make(map[types.NamespacedName]struct{}, len(list.Items))
	for i := range list.Items {
		item := &list.Items[i]
		known, ok := o.versions[keyOf(item)]
		if !ok || known.uid != item.UID || index.CompareVersions(known.resourceVersion, item.ResourceVersion) < 0 {
			return false
		}
		listed[keyOf(item)] = struct{}{}
	}
	for key, known := range o.versions {
		if _, ok := listed[key]; !ok && index.CompareVersions(known.resourceVersion, list.ResourceVersion) <= 0 {
			return false
		}
	}
	return true
}
