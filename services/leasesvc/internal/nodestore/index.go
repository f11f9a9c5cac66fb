// Index: which Nodes exist and under which UID.
//
// Promise: an answer comes from a watch and costs no request, except Confirm, which asks the kube-apiserver. While the first
// list has not arrived nobody is told that a Node is missing. Of each Node only name and UID are kept; where somebody in the
// process watches Nodes anyway, his cache is asked and nothing is kept.
package nodestore

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

var (
	// ErrNodeMissing says that no Node of that name exists.
	ErrNodeMissing = errors.New("node does not exist")
	// ErrNodesNotListed says that the Nodes have not been listed yet.
	ErrNodesNotListed = errors.New("nodes have not been listed yet")
)

// Source is a cache of Nodes. Its methods are safe for concurrent use.
type Source interface {
	// Node returns a Node as last seen, or nil when there is none or nothing has been listed yet.
	Node(name string) *corev1.Node
	// Listed tells whether all Nodes have been listed.
	Listed() bool
}

// Index says under which UID a Node exists. Its methods are safe for concurrent use.
type NodeIndex struct {
	kube   kubernetes.Interface
	source Source
	run    func(ctx context.Context)
}

// New returns an empty Index that watches once Run is called.
func NewNodeIndex(kube kubernetes.Interface) (*NodeIndex, error) {
	informer := coreinformers.NewNodeInformer(kube, 0, cache.Indexers{})
	if err := informer.SetTransform(stripToUID); err != nil {
		return nil, fmt.Errorf("keep only names and UIDs of nodes: %w", err)
	}
	return &NodeIndex{kube: kube, source: watched{informer: informer}, run: informer.RunWithContext}, nil
}

// Over returns an Index that answers from a cache which somebody else fills.
func NodeIndexOver(kube kubernetes.Interface, source Source) *NodeIndex {
	return &NodeIndex{kube: kube, source: source, run: func(ctx context.Context) { <-ctx.Done() }}
}

// watched is a cache of its own.
type watched struct{ informer cache.SharedIndexInformer }

func (w watched) Listed() bool { return w.informer.HasSynced() }

func (w watched) Node(name string) *corev1.Node {
	object, _, err := w.informer.GetStore().GetByKey(name)
	node, ok := object.(*corev1.Node)
	if err != nil || !ok {
		return nil
	}
	return node
}

// strip drops all but what an owner reference needs; a Node is some 15 KiB, what is left of it below one.
func stripToUID(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion,
	}}, nil
}

// Run watches until ctx ends and its goroutines have returned.
func (x *NodeIndex) Run(ctx context.Context) error {
	x.run(ctx)
	return nil
}

// Check returns nil once the Nodes have been listed.
func (x *NodeIndex) Check() error {
	if !x.source.Listed() {
		return ErrNodesNotListed
	}
	return nil
}

// UID returns the UID of a Node as last seen. It wraps ErrNodeMissing or ErrNodesNotListed.
func (x *NodeIndex) UID(name string) (types.UID, error) {
	listed := x.source.Listed() // before the look, so that a list that arrives in between makes nobody missing
	if node := x.source.Node(name); node != nil {
		return node.UID, nil
	}
	if !listed {
		return "", fmt.Errorf("node %q: %w", name, ErrNodesNotListed)
	}
	return "", fmt.Errorf("node %q: %w", name, ErrNodeMissing)
}

// Confirm asks the kube-apiserver for the UID of a Node: for the few decisions that a watch running late would get wrong. It
// wraps ErrNodeMissing when there is none.
func (x *NodeIndex) Confirm(ctx context.Context, name string) (types.UID, error) {
	node, err := x.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("node %q: %w", name, ErrNodeMissing)
	}
	if err != nil {
		return "", fmt.Errorf("get node %q: %w", name, err)
	}
	return node.UID, nil
}
