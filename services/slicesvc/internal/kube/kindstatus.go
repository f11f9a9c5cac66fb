package kube

import (
	"fmt"
	"sync"
	"time"
)

// KindStatus is how fresh the cache of one kind is.
type KindStatus struct {
	// Kind is the kind of the objects, for example "Pod".
	Kind string
	// ResourceVersion is the newest one that a list or the watch has shown.
	ResourceVersion string
	// Heard is when kube-apiserver last answered a list, opened the watch or sent an event;
	// kube-apiserver sends a bookmark about once a minute. It is zero before the first answer.
	Heard time.Time
	// Failure is why the last list or watch failed; nil if it was heard since.
	Failure error
}

// kindStatus is the current KindStatus of one kind. It is safe for concurrent use.
type kindStatus struct {
	kind string
	// resource is the kind in paths and logs, for example "pods".
	resource string

	mu      sync.Mutex // guards all below
	version string
	heard   time.Time
	failure error
}

// hear records that the watch was heard. version is empty if the answer has none.
func (k *kindStatus) hear(version string, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if version != "" {
		k.version = version
	}
	k.heard, k.failure = now, nil
}

func (k *kindStatus) fail(cause error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failure = fmt.Errorf("list %s: %w", k.resource, cause)
}

func (k *kindStatus) snapshot() KindStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	return KindStatus{Kind: k.kind, ResourceVersion: k.version, Heard: k.heard, Failure: k.failure}
}
