package leasesvc

import (
	"context"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/leaseobject"
)

// Leadership divides the shards among the replicas. *term.Candidate is one.
type Leadership interface {
	// Run blocks until ctx ends and calls body for each term held here; see term.Candidate.
	Run(ctx context.Context, body term.Body) error
	// Status answers from memory, with one entry for every shard, before Run too.
	Status() term.Status
}

// deleter deletes Lease objects; *leaseobject.Writer is one. Delete blocks until ctx, which must carry the term, ends. An
// absent object, or one that is another holder's, is no error. It may be called concurrently.
type deleter interface {
	Delete(ctx context.Context, namespace, name string, last leaseobject.Known) error
	// DeleteOwn is for a holder without a session.
	DeleteOwn(ctx context.Context, namespace, name string) error
}
