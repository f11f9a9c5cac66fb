package kube

import (
	"fmt"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// KindStatus is how fresh the cache of one kind is.
type KindStatus struct {
	answer.Cache
	// Failure is why the last list or watch failed; nil if it was answered since.
	Failure error
	// Wanted is the version that the watch must show before a term goes on; empty if it has shown
	// it.
	Wanted string
	// SilentReopens and LateReopens count how often the watch was reopened because nothing came,
	// and because it had not shown the wanted version.
	SilentReopens, LateReopens int
}

// kindStatus is the current KindStatus of one kind. It is safe for concurrent use.
type kindStatus struct {
	// resource is the kind in paths and logs, for example "pods".
	resource string
	// wanted has a value if a newer version is wanted.
	wanted chan struct{}
	known  *knownObjects

	mu     sync.Mutex // guards all below
	status KindStatus
	// reached is closed when the watch has shown the wanted version; nil if it has.
	reached chan struct{}
}

func newKindStatus(kind, resource string) *kindStatus {
	return &kindStatus{resource: resource, wanted: make(chan struct{}, 1), known: newKnownObjects(), status: KindStatus{Cache: answer.Cache{Kind: kind}}}
}

// hear records that the cache has everything up to a version. version is empty if the answer has
// none.
func (k *kindStatus) hear(version string, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status.Heard, k.status.Failure = now, nil
	k.show(version)
}

// prove records that the Handler has everything up to a version, as a list has shown. The watch
// itself was not heard.
func (k *kindStatus) prove(version string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.show(version)
}

// show needs k.mu.
func (k *kindStatus) show(version string) {
	if version != "" && !k.hasShown(version) {
		k.status.ResourceVersion = version
	}
	if k.reached != nil && k.hasShown(k.status.Wanted) {
		close(k.reached)
		k.reached, k.status.Wanted = nil, ""
	}
}

// answered records that kube-apiserver accepted a request. It says nothing about events.
func (k *kindStatus) answered() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status.Failure = nil
}

func (k *kindStatus) fail(cause error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status.Failure = fmt.Errorf("list and watch %s: %w", k.resource, cause)
}

// want returns a channel that is closed when the watch has shown a version; nil if it has. A stream
// that is late is reopened.
func (k *kindStatus) want(version string) (reached <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if version == "" || k.hasShown(version) {
		return nil
	}
	if k.reached == nil {
		k.reached, k.status.Wanted = make(chan struct{}), version
	} else if index.CompareVersions(version, k.status.Wanted) > 0 {
		k.status.Wanted = version
	}
	select {
	case k.wanted <- struct{}{}:
	default:
	}
	return k.reached
}

// hasShown needs k.mu.
func (k *kindStatus) hasShown(version string) bool {
	shown := k.status.ResourceVersion
	return shown != "" && index.CompareVersions(shown, version) >= 0
}

func (k *kindStatus) isLate() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.reached != nil
}

func (k *kindStatus) countReopen(cause reopenCause) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch cause {
	case reopenedSilent:
		k.status.SilentReopens++
	case reopenedLate:
		k.status.LateReopens++
	}
}

func (k *kindStatus) snapshot() KindStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}
