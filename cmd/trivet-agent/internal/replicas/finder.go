package replicas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/internal/backoff"
)

const (
	// maxAddresses bounds a list, and thereby what one wrong answer makes the agent try.
	maxAddresses = 64
	// settledPeriod is the time between two lookups while the replicas answer, and urgentPeriod the
	// time while they do not, or while none is known.
	settledPeriod = time.Minute
	urgentPeriod  = 5 * time.Second
	// lookupTimeout bounds one lookup.
	lookupTimeout = 10 * time.Second
)

// Source returns the addresses of all replicas, host:port. An empty list needs an error.
type Source interface {
	Lookup(ctx context.Context) ([]string, error)
	// String describes the source. A list from another source is not used after a restart.
	String() string
}

// Config configures a Finder. Source is required.
type Config struct {
	Source Source
	// StateFile keeps the last list; empty keeps none.
	StateFile string
	// Settled reports whether the replicas that are known answer; nil means always. While they do
	// not, the list is looked up more often: it may be stale.
	Settled func() bool
	Logger  *slog.Logger
}

// Finder keeps the list of replicas current. It is safe for concurrent use.
type Finder struct {
	cfg    Config
	offset int // so that agents differ in the replica which they try first

	mu     sync.Mutex // guards status
	status Status
}

// Status is what a Finder knows.
type Status struct {
	// Addresses is the list in use; empty if none was found yet.
	Addresses []string
	// FoundTime is when the source confirmed the list; zero for one of a former run.
	FoundTime time.Time
	// Err is why the last lookup failed; nil if it succeeded, or if there was none yet.
	Err error
}

// New returns a Finder with the list of a former run, if there is one. It starts nothing.
func New(cfg Config) *Finder {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	f := &Finder{cfg: cfg, offset: rand.IntN(maxAddresses)}
	if cfg.StateFile == "" {
		return f
	}
	stored, err := readState(cfg.StateFile, cfg.Source.String())
	if err != nil {
		cfg.Logger.Warn("cannot use the stored list of leasesvc replicas; it is looked up again", "file", cfg.StateFile, "error", err)
	}
	f.status.Addresses = stored
	return f
}

// Status returns the current state.
func (f *Finder) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Addresses returns the list in use. Each agent begins it at another replica.
func (f *Finder) Addresses() []string {
	addresses := f.Status().Addresses
	if len(addresses) == 0 {
		return nil
	}
	first := f.offset % len(addresses)
	return slices.Concat(addresses[first:], addresses[:first])
}

// Run looks up the replicas until ctx ends, and returns nil.
func (f *Finder) Run(ctx context.Context) error {
	for {
		f.lookup(ctx)
		if !backoff.Sleep(ctx, f.untilUrgent(ctx)) {
			return nil
		}
	}
}

// untilUrgent waits for urgentPeriod steps while the replicas are settled, at most settledPeriod.
// It returns what is left to wait.
func (f *Finder) untilUrgent(ctx context.Context) time.Duration {
	end := time.Now().Add(jittered(settledPeriod))
	for f.settled() && time.Until(end) > urgentPeriod {
		if !backoff.Sleep(ctx, urgentPeriod) {
			return 0
		}
	}
	return jittered(urgentPeriod)
}

func (f *Finder) settled() bool {
	status := f.Status()
	return len(status.Addresses) > 0 && status.Err == nil && (f.cfg.Settled == nil || f.cfg.Settled())
}

// lookup asks the source once. A failure keeps the list in use.
func (f *Finder) lookup(ctx context.Context) {
	bounded, cancel := context.WithTimeoutCause(ctx, lookupTimeout, fmt.Errorf("no answer within %v", lookupTimeout))
	defer cancel()
	found, err := f.cfg.Source.Lookup(bounded)
	if ctx.Err() != nil {
		return
	}
	if err == nil && len(found) == 0 {
		err = errors.New("no address found")
	}
	if err != nil {
		f.failed(err)
		return
	}
	f.found(found)
}

func (f *Finder) failed(err error) {
	f.mu.Lock()
	first, known := f.status.Err == nil, len(f.status.Addresses)
	f.status.Err = err
	f.mu.Unlock()
	if first {
		f.cfg.Logger.Warn("cannot look up the replicas of leasesvc; the last known ones stay in use", "source", f.cfg.Source.String(), "error", err, "known", known)
	}
}

func (f *Finder) found(addresses []string) {
	slices.Sort(addresses)
	addresses = slices.Compact(addresses)
	if len(addresses) > maxAddresses {
		f.cfg.Logger.Warn("more replicas of leasesvc than can be used", "source", f.cfg.Source.String(), "found", len(addresses), "used", maxAddresses)
		addresses = addresses[:maxAddresses]
	}
	f.mu.Lock()
	changed := !slices.Equal(addresses, f.status.Addresses)
	f.status = Status{Addresses: addresses, FoundTime: time.Now()}
	f.mu.Unlock()
	if !changed {
		return
	}
	f.cfg.Logger.Info("found the replicas of leasesvc", "source", f.cfg.Source.String(), "addresses", addresses)
	if f.cfg.StateFile == "" {
		return
	}
	if err := writeState(f.cfg.StateFile, f.cfg.Source.String(), addresses); err != nil {
		f.cfg.Logger.Warn("cannot store the replicas of leasesvc; a restart needs their source", "file", f.cfg.StateFile, "error", err)
	}
}

// jittered returns a duration within a fifth of d, so that agents that start together spread.
func jittered(d time.Duration) time.Duration { return d - d/5 + rand.N(2*d/5) }
