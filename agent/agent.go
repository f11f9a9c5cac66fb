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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// MaxHolders is the greatest number of holders of one Agent, because one message carries no more
// beats.
const MaxHolders = 10_000

// logPeriod is the time between two lines that tell of many events of one kind.
const logPeriod = time.Minute

// Config configures an Agent. Targets and Dial are required.
type Config struct {
	// Targets are the replicas to try, in turn, while the owner of a shard is unknown.
	Targets []string
	// Lookup returns the targets in place of Targets, if their addresses change while the Agent
	// runs. It must not block. It may be called concurrently. While it returns none, the holders
	// wait.
	Lookup func() []string
	// Dial returns a connection to one of Targets, or to the host:port of a replica that another
	// replica has named. It must not block; grpc.NewClient does not. It may be called concurrently.
	// The Agent closes the connection.
	Dial func(target string) (*grpc.ClientConn, error)
	// TokenFile has a bearer token, for example a projected token of a ServiceAccount for the
	// audience of the servers. It is read for each stream and call, and sent over TLS only. Without
	// it, the client certificate of Dial is the credential. Dial must load renewed certificates.
	TokenFile string
	// Cluster is the cluster that the caller means; servers of another cluster reject the Agent.
	// Empty stands for any.
	Cluster string
	// Name and Version describe the program to the servers; optional. The lease shows them.
	Name, Version string
	// Mode says what writes the Lease object of a Node; the lease shows it, too. "probe": the
	// kubelet, beside which the Agent runs, so that leasesvc leaves the Lease to it. "endpoint":
	// leasesvc, and the program of the Agent while beats are not acknowledged, so that the end of
	// these writes is no silence of a kubelet. With Unacknowledged, empty stands for "endpoint";
	// without it, for a program that does not say.
	Mode string
	// Holders beat from the start; Add adds more.
	Holders []Holder
	// BeatOnReport makes a holder register and beat because of an [Agent.Report] only. Each report
	// is sent at once, but not before half of the granted interval has passed since the last beat;
	// then the newest report is sent, with its age. After a stream is lost, the last report is sent
	// again, with its age, if the TTL of the last grant has not passed since its ObservedTime. A
	// superseded holder returns because of a later report. A report without an ObservedTime is one
	// of the moment of the call.
	BeatOnReport bool
	// AgeTolerance is the age below which an observation counts as one of now; 0 stands for the
	// granted interval. A smaller one makes the lease expire closer to a grace period after the
	// last observation, for a few bytes in each beat.
	AgeTolerance time.Duration
	// AnswerTimeout bounds the time to connect, and then the time to the first response; 0 means 10
	// s. Each is at most half of the granted TTL, if that is above 4 s: a session does not
	// survive longer waits for a server that is silent. Later responses may take two intervals of
	// the class with the shortest interval on the stream, one interval with BeatOnReport, and at
	// least a second.
	AnswerTimeout time.Duration
	// MinBackoff and MaxBackoff bound the pause before a reconnection, and before a holder
	// registers again whose owner is unknown; 0 means 200 ms and 5 s. A pause is at most a quarter
	// of the granted TTL, if that is above MinBackoff. If a server asks for a longer pause, the
	// Agent pauses up to a minute and a half.
	MinBackoff, MaxBackoff time.Duration
	// ReleaseOnStop ends the leases of all holders when Run ends, because they stop for good: their
	// Lease objects are deleted. Without it, the leases expire. With KeepLeaseObjects the objects
	// stay, because the holders live on without the Agent: Nodes get a new grace period.
	// ReleaseTimeout bounds the time that this takes; 0 means 5 s.
	ReleaseOnStop, KeepLeaseObjects bool
	ReleaseTimeout                  time.Duration
	// Unacknowledged renews a holder in another way while no leader acknowledges its beats, so that
	// a living holder is not taken for dead. For the class "node" see package nodelease; without
	// it, a Node whose beats do not arrive is marked when its session expires. nil does nothing.
	// With BeatOnReport the caller itself awaits the renewal of each report: [Agent.AwaitRenewal].
	//
	// It is called when a beat has waited for its acknowledgement for 6 s since it was due, and
	// 16.4 s after the last acknowledged observation at the latest; for a holder without an
	// acknowledged beat 6 s after it was added. It is called again after 10 s, or 2 s after a call
	// that failed, until a beat is acknowledged. These times are those of an interval of 5 s, and
	// proportional to the one that is granted to the holder's class. It is not called for a holder
	// that another boot has superseded, nor for one that its last Report observed longer than an
	// interval ago.
	//
	// Its ctx ends after an interval, or with Run. It must be safe for concurrent use: up to 256
	// calls run at once, those of the most overdue holders first. So MaxHolders are renewed within
	// an interval of 5 s if a call takes 128 ms.
	Unacknowledged func(ctx context.Context, h Holder) error
	// Logger gets a line for each connection that is established or lost; nil discards them.
	Logger *slog.Logger
}

// The values of Config.Mode.
const (
	modeProbe    = "probe"
	modeEndpoint = "endpoint"
)

// Agent sends the heartbeats of holders. All methods except Run are safe for concurrent use at any
// time.
type Agent struct {
	cfg      Config
	router   *router
	backoffs *backoffs
	history  history
	sequence atomic.Uint64 // of the last message on any stream
	// failures are connections without an answer, and unacknowledged the calls of
	// Config.Unacknowledged.
	failures, unacknowledged failures
}

// New returns an Agent that does nothing until Run. Its error names every problem of cfg.
func New(cfg Config) (*Agent, error) {
	cfg.AnswerTimeout = cmp.Or(cfg.AnswerTimeout, 10*time.Second)
	cfg.MinBackoff = cmp.Or(cfg.MinBackoff, 200*time.Millisecond)
	cfg.MaxBackoff = cmp.Or(cfg.MaxBackoff, 5*time.Second)
	cfg.ReleaseTimeout = cmp.Or(cfg.ReleaseTimeout, 5*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Unacknowledged != nil {
		cfg.Mode = cmp.Or(cfg.Mode, modeEndpoint)
	}
	a := &Agent{cfg: cfg, router: newRouter(&cfg), backoffs: newBackoffs(cfg.MinBackoff, cfg.MaxBackoff)}
	if err := errors.Join(append(cfg.validate(), a.Add(cfg.Holders...))...); err != nil {
		return nil, err
	}
	return a, nil
}

func (c *Config) validate() []error {
	var problems []error
	switch {
	case len(c.Targets) == 0 && c.Lookup == nil:
		problems = append(problems, errors.New("agent: no targets to beat at"))
	case len(c.Targets) > 0 && c.Lookup != nil:
		problems = append(problems, errors.New("agent: Targets and Lookup exclude each other"))
	}
	if c.Dial == nil {
		problems = append(problems, errors.New("agent: no Dial function"))
	}
	if c.Unacknowledged != nil && c.BeatOnReport {
		problems = append(problems, errors.New("agent: Unacknowledged and BeatOnReport exclude each other: await the renewal of each report"))
	}
	if c.Unacknowledged != nil && c.Mode == modeProbe {
		problems = append(problems, fmt.Errorf("agent: Unacknowledged and mode %q exclude each other: the kubelet writes its Lease itself", c.Mode))
	}
	if c.AgeTolerance < 0 {
		problems = append(problems, fmt.Errorf("agent: age tolerance %v must be positive", c.AgeTolerance))
	}
	if c.ReleaseTimeout < 0 {
		problems = append(problems, fmt.Errorf("agent: release timeout %v must be positive", c.ReleaseTimeout))
	}
	if c.AnswerTimeout < 0 || c.MinBackoff < 0 || c.MaxBackoff < c.MinBackoff {
		problems = append(problems, fmt.Errorf("agent: answer timeout %v and backoff %v to %v must be positive and in order",
			c.AnswerTimeout, c.MinBackoff, c.MaxBackoff))
	}
	return problems
}

// targets returns the replicas to try; none while Lookup knows none.
func (c *Config) targets() []string {
	if c.Lookup != nil {
		return c.Lookup()
	}
	return c.Targets
}

// Add starts the beats of holders. If the Agent has a holder with another boot ID, the new boot
// replaces it; with the same one, nothing changes. If any holder is invalid, Add adds none, and the
// error names every invalid one.
func (a *Agent) Add(holders ...Holder) error { return a.router.add(holders) }

// Remove stops the beats of holders and ignores unknown ones. Their leases expire, also with
// Config.ReleaseOnStop.
func (a *Agent) Remove(holders ...Holder) { a.router.remove(holders) }

// Run beats until ctx ends; then it returns nil, with Config.ReleaseOnStop after the leases were
// released. It may be called once.
func (a *Agent) Run(ctx context.Context) error {
	var streams sync.WaitGroup
	if a.cfg.Unacknowledged != nil {
		streams.Go(func() { a.renewUnacknowledged(ctx) })
	}
	a.run(ctx, &streams)
	streams.Wait()
	if a.cfg.ReleaseOnStop {
		a.releaseAll()
	}
	return nil
}

func (a *Agent) run(ctx context.Context, streams *sync.WaitGroup) {
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	for ctx.Err() == nil {
		added, next := a.router.assign(time.Now(), a.backoffs)
		for _, t := range added {
			streams.Go(func() { a.serve(ctx, t) })
		}
		resetTimer(retry, next)
		select {
		case <-ctx.Done():
		case <-a.router.changed:
		case <-retry.C:
		}
	}
}

// serve beats for the holders of a target until it has none, or its connection fails. Then the
// router assigns them again.
func (a *Agent) serve(ctx context.Context, t *target) {
	if !backoff.Sleep(ctx, a.backoffs.remaining(t.address, time.Now())) {
		a.router.close(t, "", time.Time{})
		return
	}
	if a.router.closeIfEmpty(t) {
		return
	}
	err := a.connect(ctx, t)
	if ctx.Err() != nil || err == nil {
		a.router.close(t, "", time.Time{})
		return
	}
	if a.router.closeIfEmpty(t) {
		return // its holders have left meanwhile
	}
	answered := a.router.hasAnswered(t)
	// A client that has fresh credentials loses no beat. One that has none pauses longer each time.
	quick := answered && !errors.Is(err, errReauth)
	wait := a.backoffs.fail(t.address, quick, withJitter(rpcerror.RetryAfterOf(err)), time.Now())
	a.router.close(t, nextAddress(t.address, answered, err), time.Now().Add(wait))
	a.history.lost(err)
	if answered {
		a.cfg.Logger.Warn("heartbeat stream ended; its holders register again", "target", t.address, "error", err, "reason", rpcerror.ReasonOf(err))
	} else if tries := a.failures.add(time.Now()); tries > 0 {
		a.cfg.Logger.Warn("no answer to heartbeats; the agent tries on", "tries", tries, "target", t.address, "error", err, "reason", rpcerror.ReasonOf(err))
	}
}

// failures counts failures of one kind, so that an outage is a line a minute. It is safe for
// concurrent use.
type failures struct {
	mu     sync.Mutex // guards the fields below
	logged time.Time  // zero after an answer
	tries  int        // since the last line
}

// add counts a failure, and returns how many a line tells of that is due now; 0 if none is.
func (f *failures) add(now time.Time) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tries++
	if now.Sub(f.logged) < logPeriod {
		return 0
	}
	tries := f.tries
	f.logged, f.tries = now, 0
	return tries
}

// answered makes the next failure a line at once.
func (f *failures) answered() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.logged, f.tries = time.Time{}, 0
}

// nextAddress returns where the holders of a failed connection register first; empty for any
// target. A connection that worked before is the first to be tried again.
func nextAddress(address string, answered bool, err error) string {
	moved, isMove := errors.AsType[*movedError](err)
	redirect := rpcerror.MetadataOf(err, rpcerror.RedirectAddressKey)
	switch {
	case isMove:
		return moved.to
	case redirect != "":
		return redirect
	case rpcerror.ReasonOf(err) == rpcerror.NoLeaderReason:
		return ""
	case rpcerror.ReasonOf(err) == reasonRegistrationRateLimited:
		return address
	case errors.Is(err, errNoAnswer):
		return "" // a silent host would cost another timeout, and a session does not survive many
	case answered:
		return address
	}
	return ""
}

// connect beats over one connection until it fails, and returns the cause; nil if the target has no
// holder any more.
func (a *Agent) connect(ctx context.Context, t *target) error {
	connection, err := a.cfg.Dial(t.address)
	if err != nil {
		return fmt.Errorf("dial %s: %w", t.address, err)
	}
	err = a.runStream(ctx, t, connection)
	if closing := connection.Close(); err == nil && closing != nil {
		err = fmt.Errorf("close connection to %s: %w", t.address, closing)
	}
	return err
}

func (a *Agent) runStream(ctx context.Context, t *target, connection grpc.ClientConnInterface) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(a.router.answerTimeout(), func() { cancel(errNoAnswer) })
	defer watchdog.Stop()
	rpc, err := leasev1.NewHeartbeatServiceClient(connection).StreamHeartbeats(ctx, a.cfg.callOptions()...)
	if err != nil {
		return fmt.Errorf("open stream to %s: %w", t.address, causeOf(ctx, err))
	}
	s := newStream(a, t, rpc, watchdog)
	var receiver sync.WaitGroup
	defer receiver.Wait()
	defer cancel(nil)
	receiver.Go(func() { s.failed <- s.receive(ctx) })
	if err := s.run(ctx); err != nil {
		err = causeOf(ctx, err)
		// The kernel and gRPC may give a silent connection up before the watchdog does.
		if s.unanswered(time.Now()) && status.Code(err) == codes.Unavailable && rpcerror.ReasonOf(err) == "" {
			err = fmt.Errorf("%w: %w", errNoAnswer, err)
		}
		return fmt.Errorf("stream to %s: %w", t.address, err)
	}
	s.end()
	return nil
}

// causeOf returns errNoAnswer if the watchdog has ended the stream; err says only that it was
// cancelled.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errNoAnswer) {
		return cause
	}
	return err
}

// resetTimer makes the timer fire at a time; never for the zero time.
func resetTimer(timer *time.Timer, at time.Time) {
	if at.IsZero() {
		timer.Stop()
		return
	}
	timer.Reset(time.Until(at))
}
