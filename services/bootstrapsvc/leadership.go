package bootstrapsvc

import (
	"context"
	"sync/atomic"

	"github.com/trivet-dev/trivet/internal/term"
)

// Leadership decides which replica leads. *term.Candidate implements it.
type Leadership interface {
	// Run blocks until ctx ends and calls body for each term held here; see term.Candidate.
	Run(ctx context.Context, body term.Body) error
	// Status answers from memory.
	Status() term.Status
	// Concede gives the term to a ready replica for as long as there is a reason. It does not
	// block.
	Concede(reason error)
}

// leadership is what the RPC handlers know about leader election.
type leadership struct {
	candidate Leadership
	// held is nil while no term is held here.
	held     atomic.Pointer[term.Term]
	stopping chan struct{}
}

func newLeadership(candidate Leadership) *leadership {
	return &leadership{candidate: candidate, stopping: make(chan struct{})}
}

// run calls body for each term that is held here until ctx ends.
func (l *leadership) run(ctx context.Context, body func(context.Context) error) error {
	return l.candidate.Run(ctx, func(ctx context.Context, held *term.Term) error {
		l.held.Store(held)
		defer l.held.Store(nil)
		return body(ctx)
	})
}

// stop says that the service stops. It may be called once.
func (l *leadership) stop() { close(l.stopping) }

// Term is the term that is held here; nil without one.
func (l *leadership) Term() *term.Term { return l.held.Load() }

// LeaderAddress is the gRPC address of the leader; empty if it is unknown.
func (l *leadership) LeaderAddress() string {
	shards := l.candidate.Status().Shards
	if len(shards) == 0 {
		return ""
	}
	return shards[0].GRPCAddress
}

// Stopping is closed when the service begins to stop.
func (l *leadership) Stopping() <-chan struct{} { return l.stopping }
