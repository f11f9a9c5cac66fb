package nodestore

import (
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
)

// Latest is the Watch of the moment, for others in the process who want to know Nodes, so that they are watched once. When one
// Watch follows another, the old one answers until the new one has listed all Nodes. It is safe for concurrent use.
type Latest struct{ watch atomic.Pointer[Cache] }

// Follow has w answer from when it has listed all Nodes. It blocks until then, or until ended is closed.
func (l *Latest) Follow(w *Cache, ended <-chan struct{}) {
	select {
	case <-w.listed:
		l.watch.Store(w)
	case <-ended:
	}
}

// Watch returns the Watch that answers; nil before the first one has listed all Nodes.
func (l *Latest) Cache() *Cache { return l.watch.Load() }

// Listed tells whether all Nodes have been listed.
func (l *Latest) Listed() bool { return l.watch.Load() != nil }

// Node returns a Node as last seen; nil when there is none, or they have not been listed yet.
func (l *Latest) Node(name string) *corev1.Node {
	if w := l.watch.Load(); w != nil {
		return w.Node(name)
	}
	return nil
}
