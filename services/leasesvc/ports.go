package leasesvc

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/trivet-dev/trivet/internal/term"
)

// Leadership divides the shards among the replicas. *term.Candidate is one.
type Leadership interface {
	// Run blocks until ctx ends and calls body for each term held here; see term.Candidate.
	Run(ctx context.Context, body term.Body) error
	// Status answers from memory, with one entry for every shard, before Run too.
	Status() term.Status
}

// deleter deletes Lease objects; *leaseobject.Writer is one. Its methods may be called concurrently and block until ctx ends,
// which must carry the term where something is deleted. An object that is absent, or not ours, is no error.
type deleter interface {
	// Delete removes the holder's object if this service was the last to renew it.
	Delete(ctx context.Context, namespace, name string) error
	// Own returns the holder's object if this service was the last to renew it, and nil otherwise.
	Own(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error)
	// DeleteSeen removes an object as it was seen, and reports a conflict if it has changed.
	DeleteUnchanged(ctx context.Context, seen *coordinationv1.Lease) error
}
