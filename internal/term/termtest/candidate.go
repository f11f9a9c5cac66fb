package termtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/internal/localterm"
)

// ErrLost is the cause with which terms end in [Candidate.Lose].
var ErrLost = errors.New("the test ended the session")

// Candidate stands in for a [term.Candidate] without peers. It holds every shard from the start of
// Run until Lose, and again after Regain. A body that returns during its term is not called again
// before the next Regain.
type Candidate struct {
	member term.Member
	shards int

	mu      sync.Mutex // guards the fields below
	running bool
	lost    bool
	epoch   int64
	lease   *localterm.Lease // nil unless Run runs and the session is alive
	since   time.Time
	change  chan struct{} // closed and replaced when lost changes

	yieldReason error // the last argument of YieldLeadership
	preferred   error // the last argument of PreferOthers
}

// NewCandidate returns a candidate for shards 0 to shards-1 with the identity of member.
func NewCandidate(member term.Member, shards int) *Candidate {
	return &Candidate{member: member, shards: shards, change: make(chan struct{})}
}

// Lose ends every term at once, as the loss of the etcd session does. A second call does nothing.
func (c *Candidate) Lose() { c.set(true) }

// Regain begins new terms, at a higher epoch, as soon as all bodies of the old terms have returned.
func (c *Candidate) Regain() { c.set(false) }

func (c *Candidate) set(lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost == lost {
		return
	}
	c.lost = lost
	if lost && c.lease != nil {
		c.lease.End(ErrLost)
	}
	close(c.change)
	c.change = make(chan struct{})
}

// Run holds all shards until ctx ends and returns after every body has.
func (c *Candidate) Run(ctx context.Context, body term.Body) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	for ctx.Err() == nil {
		lease, change := c.begin(ctx)
		if lease != nil {
			c.hold(lease, body)
			c.end(lease)
		}
		select {
		case <-ctx.Done():
		case <-change:
		}
	}
	return nil
}

func (c *Candidate) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running {
		return errors.New("candidate is running already: call Run once at a time")
	}
	c.running = true
	return nil
}

func (c *Candidate) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = false
}

// begin opens a session unless it is lost. The channel is closed at the next Lose or Regain.
func (c *Candidate) begin(ctx context.Context) (*localterm.Lease, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return nil, c.change
	}
	c.epoch++
	c.since = time.Now()
	c.lease = localterm.NewLease(ctx, c.since, leaseTTL, leaseMargin)
	return c.lease, c.change
}

func (c *Candidate) end(lease *localterm.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lease.End(ErrEnded)
	c.lease = nil
}

// hold runs one body per shard and returns after the lease has ended and every body has returned.
func (c *Candidate) hold(lease *localterm.Lease, body term.Body) {
	var bodies sync.WaitGroup
	for shard := range c.shards {
		t, giveUp := localterm.Begin(lease, localterm.Claim{Shard: shard, Epoch: c.currentEpoch(), Key: key(shard)})
		bodies.Go(func() {
			err := body(t.Context(), t)
			giveUp(fmt.Errorf("body returned: %v", err))
		})
	}
	<-lease.Context().Done()
	bodies.Wait()
}

func (c *Candidate) currentEpoch() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch
}

// YieldLeadership stores the reason. It moves no shard, because there is no peer.
func (c *Candidate) YieldLeadership(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.yieldReason = reason
}

// PreferOthers stores the reason. It changes nothing else, because there is no peer.
func (c *Candidate) PreferOthers(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.preferred = reason
}

// PreferOthersReason returns the last argument of PreferOthers.
func (c *Candidate) PreferOthersReason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.preferred
}

// YieldReason returns the last argument of YieldLeadership.
func (c *Candidate) YieldReason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.yieldReason
}

// Status reports every shard as held here, or none while the session is lost.
func (c *Candidate) Status() term.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	status := term.Status{Shards: make([]term.ShardStatus, c.shards)}
	for shard := range status.Shards {
		status.Shards[shard] = term.ShardStatus{Shard: shard}
	}
	if c.lease == nil || c.lease.Remaining() == 0 {
		status.Session.LastError = c.reason().Error()
		return status
	}
	status.Session = term.SessionStatus{Alive: true, Remaining: c.lease.Remaining()}
	for shard := range status.Shards {
		status.Shards[shard] = term.ShardStatus{
			Shard: shard, ReplicaID: c.member.ID, Epoch: c.epoch, AcquireTime: c.since,
			Here: true, Remaining: status.Session.Remaining, GRPCAddress: c.member.GRPCAddress,
		}
	}
	return status
}

// Check returns nil while the shards are held.
func (c *Candidate) Check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lease == nil || c.lease.Remaining() == 0 {
		return c.reason()
	}
	return nil
}

// reason returns why no session is alive. The caller holds mu.
func (c *Candidate) reason() error {
	if c.lost {
		return ErrLost
	}
	return errors.New("candidate is not running")
}

// Session returns no lease, so that a key written under it is permanent, and a context that ends
// with the session.
func (c *Candidate) Session() (clientv3.LeaseID, context.Context, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lease == nil || c.lease.Remaining() == 0 {
		return clientv3.NoLease, nil, false
	}
	return clientv3.NoLease, c.lease.Context(), true
}
