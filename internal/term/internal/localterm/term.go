package localterm

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrEnded is what every check of a term that is over wraps.
var ErrEnded = errors.New("term has ended")

// ErrNone says that a context carries no term at all: whoever meant to write under one was not called by a body.
var ErrNone = errors.New("no term in context")

// Term is one shard held by this process, from the claim of its key until the context ends. It is safe for concurrent use.
type Term struct {
	shard int
	epoch int64
	key   string
	lease *Lease
	ctx   context.Context
}

// Claim is what etcd answered to a successful claim.
type Claim struct {
	// Shard that was claimed.
	Shard int
	// Epoch is the revision at which the shard's key was created.
	Epoch int64
	// Key is the shard's key.
	Key string
}

// Begin starts a term under a lease. The returned function gives the term up for a cause; it may be called more than once
// and must be called in the end.
func Begin(lease *Lease, claim Claim) (*Term, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(lease.Context())
	t := &Term{shard: claim.Shard, epoch: claim.Epoch, key: claim.Key, lease: lease}
	t.ctx = context.WithValue(ctx, contextKey{}, t)
	return t, cancel
}

// Shard is the number of the shard, from 0.
func (t *Term) Shard() int { return t.shard }

// Epoch is the etcd revision at which the shard was claimed. A later term of the same shard has a higher epoch.
func (t *Term) Epoch() int64 { return t.epoch }

// Guard is the comparison that every etcd transaction written under this term includes: it holds exactly as long as the
// key created by this claim exists.
func (t *Term) Guard() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(t.key), "=", t.epoch)
}

// Context ends before the etcd lease can lapse, or earlier when the term is given up. It carries the term.
func (t *Term) Context() context.Context { return t.ctx }

// Remaining is how long the holder may still act without hearing from etcd; zero once the term has ended.
func (t *Term) Remaining() time.Duration {
	if t.ctx.Err() != nil {
		return 0
	}
	return t.lease.Remaining()
}

// Check returns nil while the term may be acted under, else an error that wraps [ErrEnded] and the cause. It compares the
// monotonic clock itself, so it is right even where the context is about to end but has not been told yet.
func (t *Term) Check() error {
	if t.ctx.Err() != nil {
		return t.ended(context.Cause(t.ctx))
	}
	if t.lease.Remaining() == 0 {
		return t.ended(ErrLapsed)
	}
	return nil
}

func (t *Term) ended(cause error) error {
	return fmt.Errorf("shard %d at epoch %d: %w: %w", t.shard, t.epoch, ErrEnded, cause)
}

type contextKey struct{}

// FromContext returns the term that ctx carries, and whether it carries one. The term may have ended: see [Term.Check].
func FromContext(ctx context.Context) (*Term, bool) {
	t, ok := ctx.Value(contextKey{}).(*Term)
	return t, ok
}
