package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// MaxHolders is how many holders one Agent has at most, because one stream carries no more.
const MaxHolders = 10_000

// Config is what an Agent is made of.
type Config struct {
	// Targets are the replicas to try, in turn, while nobody says where the leader is.
	Targets []string
	// Dial makes a connection to one of Targets or to the host:port of a leader. It must not block; grpc.NewClient does not.
	// The Agent closes what it returns.
	Dial func(target string) (*grpc.ClientConn, error)
	// Holders are there from the start; Add brings more.
	Holders []Holder
	// AnswerTimeout is how long it may take to connect, and then how long the first answer may take; 0 means 10 s. Later
	// answers may take two intervals, and a second at least.
	AnswerTimeout time.Duration
	// MinBackoff and MaxBackoff bound the pause before a connection; 0 means 200 ms and 5 s.
	MinBackoff, MaxBackoff time.Duration
	// Logger gets a line when the agent connects and when it loses its connection; nil discards.
	Logger *slog.Logger
}

// Agent keeps holders alive. All its methods but Run may be called at any time from any goroutine.
type Agent struct {
	cfg      Config
	roster   *roster
	route    route
	sequence uint64 // of the last message on any stream; belongs to Run
	status   atomic.Pointer[Status]
}

// New checks cfg and returns an Agent that does nothing until Run. Its error names every problem.
func New(cfg Config) (*Agent, error) {
	cfg.AnswerTimeout = cmp.Or(cfg.AnswerTimeout, 10*time.Second)
	cfg.MinBackoff = cmp.Or(cfg.MinBackoff, 200*time.Millisecond)
	cfg.MaxBackoff = cmp.Or(cfg.MaxBackoff, 5*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	a := &Agent{
		cfg:    cfg,
		roster: newRoster(),
		route:  route{targets: cfg.Targets, backoff: backoff{min: cfg.MinBackoff, max: cfg.MaxBackoff}},
	}
	a.status.Store(&Status{})
	if err := errors.Join(append(cfg.validate(), a.Add(cfg.Holders...))...); err != nil {
		return nil, err
	}
	return a, nil
}

func (c *Config) validate() []error {
	var problems []error
	if len(c.Targets) == 0 {
		problems = append(problems, errors.New("agent: no targets to beat at"))
	}
	if c.Dial == nil {
		problems = append(problems, errors.New("agent: no Dial function"))
	}
	if c.AnswerTimeout < 0 || c.MinBackoff < 0 || c.MaxBackoff < c.MinBackoff {
		problems = append(problems, fmt.Errorf("agent: answer timeout %v and backoff %v to %v must be positive and in order",
			c.AnswerTimeout, c.MinBackoff, c.MaxBackoff))
	}
	return problems
}

// Add lets holders beat from the next moment on. One that is there already under another boot id goes on as the new boot; under
// the same one, nothing changes. With an error, which names every holder that the API does not allow, none is added.
func (a *Agent) Add(holders ...Holder) error { return a.roster.add(holders) }

// Remove stops the holders' beats; those that are not there are ignored. Their sessions expire in time.
func (a *Agent) Remove(holders ...Holder) { a.roster.remove(holders) }

// Run beats until ctx ends; then it returns nil. It may be called once.
func (a *Agent) Run(ctx context.Context) error {
	for a.roster.await(ctx) {
		err := a.connect(ctx)
		if ctx.Err() != nil {
			return nil
		}
		a.lost(err)
		if !pause(ctx, a.route.after(err)) {
			return nil
		}
	}
	return nil
}

// connect beats over one connection until it is of no more use, and returns why.
func (a *Agent) connect(ctx context.Context) error {
	target := a.route.target()
	connection, err := a.cfg.Dial(target)
	if err != nil {
		return fmt.Errorf("dial %s: %w", target, err)
	}
	err = a.converse(ctx, target, connection)
	if closing := connection.Close(); err == nil && closing != nil {
		err = fmt.Errorf("close connection to %s: %w", target, closing)
	}
	return err
}

func (a *Agent) converse(ctx context.Context, target string, connection grpc.ClientConnInterface) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(a.cfg.AnswerTimeout, func() { cancel(errNoAnswer) })
	defer watchdog.Stop()
	wire, err := leasev1.NewLeaseServiceClient(connection).StreamHeartbeats(ctx)
	if err != nil {
		return fmt.Errorf("open stream to %s: %w", target, because(ctx, err))
	}
	c := newConversation(a, target, wire, watchdog)
	var listener sync.WaitGroup
	defer listener.Wait()
	defer cancel(nil)
	listener.Go(func() { c.failed <- c.listen(ctx) })
	if err := c.run(ctx); err != nil {
		return fmt.Errorf("stream to %s: %w", target, because(ctx, err))
	}
	return nil
}

// because returns why a stream that was given up from here ended, of which err says only that it did; of other ends, err.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errNoAnswer) {
		return cause
	}
	return err
}

func (a *Agent) lost(err error) {
	a.roster.disconnect()
	next := *a.status.Load()
	next.Connected = false
	if err != nil {
		next.LastError = err.Error()
		a.cfg.Logger.Warn("heartbeat stream ended, connecting again", "error", err, "reason", rpcerror.ReasonOf(err))
	}
	a.status.Store(&next)
}
