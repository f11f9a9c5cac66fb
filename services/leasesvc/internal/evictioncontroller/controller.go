package evictioncontroller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
)

const (
	// Tick is the time between two passes: what an eviction may be late, beside its own reads and writes.
	Tick = 50 * time.Millisecond
	// timeout bounds one eviction, its three requests together.
	timeout = 10 * time.Second
	// reportEvery is the time between two reports of how it goes.
	reportEvery = time.Second
	// remindEvery is the time between two complaints about caches that do not fill.
	remindEvery = 30 * time.Second
)

var errEnded = errors.New("the watch of nodes and pods has ended")

// Config is what a Loop is made of. All fields are required.
type Config struct {
	Rules eviction.Rules
	// Workers is how many evictions are under way at the same time.
	Workers int
	Metrics *Metrics
	Logger  *slog.Logger
}

// Cluster is what one Run works on.
type Cluster struct {
	Cache      Cache
	Writer     Writer
	Events     Events
	NodeHealth NodeHealth
}

// Loop is taint eviction, one term after another. Run is not called twice at the same time; Pending may be called by anybody.
type Controller struct {
	cfg      Config
	snapshot atomic.Pointer[snapshot] // nil while it does not run
}

// New returns a Loop. It starts nothing.
func New(cfg Config) *Controller { return &Controller{cfg: cfg} }

// Run evicts until ctx, which carries the term, ends. It reports every second from when the caches are filled: an error when
// evictions failed, and none succeeded since, and some of them are still to be done.
func (l *Controller) Run(ctx context.Context, cluster Cluster, report func(error)) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	watched := make(chan error, 1)
	running.Go(func() { watched <- cluster.Cache.Run(ctx) })
	if err := l.await(ctx, cluster.Cache.Synced(), watched); err != nil || ctx.Err() != nil {
		return err
	}
	r := newRound(l.cfg, cluster, report)
	r.publish = l.snapshot.Store
	for range l.cfg.Workers {
		running.Go(func() { r.work(ctx) })
	}
	defer l.cfg.Metrics.reset()
	defer l.snapshot.Store(nil)
	return r.run(ctx, watched)
}

// await waits for the caches. Filling them is slow in a large cluster and never ends where a role is missing, so it says so.
func (l *Controller) await(ctx context.Context, synced <-chan struct{}, watched <-chan error) error {
	ticker := time.NewTicker(remindEvery)
	defer ticker.Stop()
	begin := time.Now()
	for {
		select {
		case <-synced:
			return nil
		case <-ctx.Done():
			return nil
		case err := <-watched:
			return errors.Join(errEnded, err)
		case <-ticker.C:
			l.cfg.Logger.Warn("taint eviction waits for nodes and pods to be listed", "for", time.Since(begin).Round(time.Second))
		}
	}
}
