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

// MaxHolders is how many holders one Agent has at most, because one message carries no more beats.
const MaxHolders = 10_000

// Config is what an Agent is made of.
type Config struct {
	// Targets are the replicas to try, in turn, while nobody says where a holder belongs.
	Targets []string
	// Dial makes a connection to one of Targets or to the host:port of a replica that another one named. It must not block;
	// grpc.NewClient does not. It may be called concurrently. The Agent closes what it returns.
	Dial func(target string) (*grpc.ClientConn, error)
	// Holders are there from the start; Add brings more.
	Holders []Holder
	// AnswerTimeout is how long it may take to connect, and then how long the first answer may take; 0 means 10 s. Later
	// answers may take two intervals, the shortest of those on the stream, and a second at least.
	AnswerTimeout time.Duration
	// MinBackoff and MaxBackoff bound the pause before a connection, and before a holder is introduced again whose replica
	// nobody knows; 0 means 200 ms and 5 s. A server that asks for a longer pause gets it, up to a minute and a half.
	MinBackoff, MaxBackoff time.Duration
	// Logger gets a line when the agent connects and when it loses a connection; nil discards.
	Logger *slog.Logger
}

// Agent keeps holders alive. All its methods but Run may be called at any time from any goroutine.
type Agent struct {
	cfg      Config
	roster   *roster
	route    *route
	journal  journal
	sequence atomic.Uint64 // of the last message on any stream
}

// New checks cfg and returns an Agent that does nothing until Run. Its error names every problem.
func New(cfg Config) (*Agent, error) {
	cfg.AnswerTimeout = cmp.Or(cfg.AnswerTimeout, 10*time.Second)
	cfg.MinBackoff = cmp.Or(cfg.MinBackoff, 200*time.Millisecond)
	cfg.MaxBackoff = cmp.Or(cfg.MaxBackoff, 5*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	a := &Agent{cfg: cfg, roster: newRoster(), route: newRoute(cfg)}
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
	var posts sync.WaitGroup
	defer posts.Wait()
	alarm := time.NewTimer(time.Hour)
	defer alarm.Stop()
	for ctx.Err() == nil {
		fresh, next := a.roster.place(time.Now(), a.route.target)
		for _, p := range fresh {
			posts.Go(func() { a.attend(ctx, p) })
		}
		set(alarm, next)
		select {
		case <-ctx.Done():
		case <-a.roster.changed:
		case <-alarm.C:
		}
	}
	return nil
}

// attend beats for the holders of one post until nobody is left there, or the connection is of no more use. Then they are
// placed anew.
func (a *Agent) attend(ctx context.Context, p *post) {
	if !pause(ctx, a.route.wait(p.address, time.Now())) {
		a.roster.lose(p, "", time.Time{})
		return
	}
	if a.roster.closed(p) {
		return
	}
	err := a.connect(ctx, p)
	if ctx.Err() != nil || err == nil {
		a.roster.lose(p, "", time.Time{})
		return
	}
	hint, wait := a.route.after(p.address, a.roster.hasAnswered(p), err)
	a.roster.lose(p, hint, time.Now().Add(wait))
	a.journal.lost(err)
	a.cfg.Logger.Warn("heartbeat stream ended, its holders will be introduced again", "error", err, "reason", rpcerror.ReasonOf(err))
}

// connect beats over one connection until it is of no more use, and returns why; nil when nobody was left.
func (a *Agent) connect(ctx context.Context, p *post) error {
	connection, err := a.cfg.Dial(p.address)
	if err != nil {
		return fmt.Errorf("dial %s: %w", p.address, err)
	}
	err = a.converse(ctx, p, connection)
	if closing := connection.Close(); err == nil && closing != nil {
		err = fmt.Errorf("close connection to %s: %w", p.address, closing)
	}
	return err
}

func (a *Agent) converse(ctx context.Context, p *post, connection grpc.ClientConnInterface) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(a.cfg.AnswerTimeout, func() { cancel(errNoAnswer) })
	defer watchdog.Stop()
	wire, err := leasev1.NewLeaseServiceClient(connection).StreamHeartbeats(ctx)
	if err != nil {
		return fmt.Errorf("open stream to %s: %w", p.address, because(ctx, err))
	}
	c := newConversation(a, p, wire, watchdog)
	var listener sync.WaitGroup
	defer listener.Wait()
	defer cancel(nil)
	listener.Go(func() { c.failed <- c.listen(ctx) })
	if err := c.run(ctx); err != nil {
		return fmt.Errorf("stream to %s: %w", p.address, because(ctx, err))
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

// set makes the timer fire at a time, or not at all for the zero time.
func set(timer *time.Timer, at time.Time) {
	if at.IsZero() {
		timer.Stop()
		return
	}
	timer.Reset(time.Until(at))
}
