// Package evictioncontroller runs taint eviction for one term: one goroutine owns what is known of all Nodes, a few workers evict.
//
// Promise: a pass every Tick takes in what changed, has package eviction decide, and gives the workers what they have room for, the
// pod first that was due first. Nothing a pass does waits for Kubernetes. Before a pod is evicted its Node is read past the cache,
// and the eviction is dropped unless it still stands; then the pod gets the condition DisruptionTarget, unless it has finished, and
// is deleted, both only in the version that was decided from. What fails is tried again after a pause that grows, for as long as the
// pod has to leave.
//
// Invariants: nobody is evicted before all Nodes and pods are listed; writes are made under the context of Run only, which carries
// the term; Run returns after its workers have.
//
// It puts no taint on a Node and removes none.
package evictioncontroller
