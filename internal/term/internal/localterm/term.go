package localterm

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

var (
	// ErrEnded is wrapped by each error of [Term.Check].
	ErrEnded = errors.New("term has ended")
	// ErrNone says that a context carries no term, because it does not come from a body's context.
	ErrNone = errors.New("no term in context")
)

// Term is one shard held by this process, from the claim of its key until the context ends. It is
// safe for concurrent use.
type Term struct {
	shard int
	epoch int64
	key   string
	lease *Lease
	ctx   context.Context
}

// Claim is the result of a successful claim in etcd.
type Claim struct {
	Shard int
	// Epoch is the revision at which the shard's key was created.
	Epoch int64
	// Key is the shard's key.
	Key string
}

// Begin starts a term under a lease. The returned function gives the term up with a cause. It must
// be called at least once, and further calls do nothing.
func Begin(lease *Lease, claim Claim) (*Term, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(lease.Context())
	t := &Term{shard: claim.Shard, epoch: claim.Epoch, key: claim.Key, lease: lease}
	t.ctx = context.WithValue(ctx, contextKey{}, t)
	return t, cancel
}

// Shard returns the number of the shard, from 0.
func (t *Term) Shard() int { return t.shard }

// Epoch returns the etcd revision at which the shard was claimed. A later term of the same shard
// has a higher epoch.
func (t *Term) Epoch() int64 { return t.epoch }

// Guard returns the comparison that every etcd transaction of this term must include. It holds
// exactly as long as the key that this claim created exists.
func (t *Term) Guard() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(t.key), "=", t.epoch)
}

// Context ends before the etcd lease can lapse, or earlier when the term is given up. It carries
// the term.
func (t *Term) Context() context.Context { return t.ctx }

// Remaining returns how long the process may still act without an answer from etcd. It returns zero
// once the term has ended.
func (t *Term) Remaining() time.Duration {
	if t.ctx.Err() != nil {
		return 0
	}
	return t.lease.Remaining()
}

// Lapsed returns whether etcd may have expired the lease of the term, so that another replica may
// lead the shard. A term that was only given up has not lapsed: no other replica leads the shard
// before its body has returned.
func (t *Term) Lapsed() bool { return t.lease.Remaining() == 0 }

// Check returns nil while the process may act under the term, else an error that wraps [ErrEnded]
// and the cause. It compares the monotonic clock itself, so it does not depend on a timer that ends
// the context.
func (t *Term) Check() error {
	if t.ctx.Err() != nil {
		return t.ended(context.Cause(t.ctx))
	}
	if t.Lapsed() {
		return t.ended(ErrLapsed)
	}
	return nil
}

func (t *Term) ended(cause error) error {
	return fmt.Errorf("shard %d at epoch %d: %w: %w", t.shard, t.epoch, ErrEnded, cause)
}

type contextKey struct{}

// FromContext returns the term that ctx carries, and whether it carries one. The term may have
// ended: see [Term.Check].
func FromContext(ctx context.Context) (*Term, bool) {
	t, ok := ctx.Value(contextKey{}).(*Term)
	return t, ok
}
