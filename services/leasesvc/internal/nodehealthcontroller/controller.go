package nodehealthcontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

const (
	// Tick is the time between two passes. Two of them, and a write, are what a declaration may be late.
	Tick = 200 * time.Millisecond
	// writeTimeout bounds one write, the read before it included.
	writeTimeout = 10 * time.Second
	// checkTimeout bounds a self-check: a kube-apiserver that answers later is as good as gone.
	checkTimeout = 3 * time.Second
	// reportEvery is the time between two reports of how it goes.
	reportEvery = time.Second
	// patience is how long the process may be blind before that is told.
	patience = 5 * time.Second
	// hopeless is how long the caches may be behind before they are thrown away: longer than client-go takes between two tries
	// to watch.
	hopeless = time.Minute
	// remindEvery is the time between two complaints about caches that do not fill.
	remindEvery = 30 * time.Second
)

var (
	errEnded    = errors.New("the watch of nodes has ended")
	errHopeless = fmt.Errorf("the cache of Leases has been behind for %v, so all is listed anew", hopeless)
)

// ZoneShard is the shard whose holder has the zones: what each is allowed follows from all of its Nodes together.
const ZoneShard = 0

// Config is what a Loop is made of. All fields are required.
type Config struct {
	Rules   nodehealth.Rules
	Workers int
	// Shards is how many shards there are, and ShardOf that of a Node by its name.
	Shards  int
	ShardOf func(node string) int
	// Census gets what is known of all Nodes after each pass.
	Publisher *Publisher
	Metrics   *Metrics
	Logger    *slog.Logger
}

// Cluster is what one Run works on.
type Cluster struct {
	Cache    Cache
	Writer   Writer
	Events   Events
	Sessions Sessions
	// Terms are those that are held here.
	HeldShards *heldshards.Set
}

// Loop is node health on one replica.
type Controller struct{ cfg Config }

// New returns a Loop. It starts nothing.
func New(cfg Config) *Controller { return &Controller{cfg: cfg} }

// Run watches over the nodes of a cluster until ctx ends, and acts for those whose shards are held here. It reports every second
// from when the caches are filled: an error when writes failed and none succeeded, or while its caches are behind for long, as
// another replica's may not be. Caches that stay behind end the Run: watches have been known to hang for good. That the kube-apiserver is away
// is no failure of this loop.
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
	w := newWatch(l.cfg, cluster, report)
	for number := range l.cfg.Workers {
		pods := w.pods.jobs
		if number%2 == 1 {
			pods = nil // half of the workers is left to the nodes
		}
		running.Go(func() { w.work(ctx, w.nodes.jobs, pods) })
	}
	running.Go(func() { w.work(ctx, w.checks, nil) })
	defer l.cfg.Metrics.reset()
	defer l.cfg.Publisher.Clear()
	return w.run(ctx, watched)
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
			l.cfg.Logger.Warn("node health waits for nodes, Leases and pods to be listed", "for", time.Since(begin).Round(time.Second))
		}
	}
}
