package shadowcontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/shadow/difference"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/shadow"
)

const (
	// proofTimeout bounds the proof that the caches are current. It is longer than kube-apiserver
	// needs for a bookmark on a quiet watch with --watch-progress-notify.
	proofTimeout = 75 * time.Second
	// passesPerSettling is how often an object is compared while a difference settles.
	passesPerSettling = 3
	// minPeriod and maxPeriod bound the time between two passes.
	minPeriod = 200 * time.Millisecond
	maxPeriod = 20 * time.Second
	// pauseEvery is how long a pass computes before it pauses as long, so that it takes at most
	// half of one core.
	pauseEvery = 20 * time.Millisecond
	// maxUnread is how many objects may fail to be read in a pass that still says something.
	maxUnread = 10
)

// Source has the objects that are compared. Its methods are called from one goroutine.
type Source interface {
	// Keys returns the keys of a shard.
	Keys(shard int) []types.NamespacedName
	// Compared returns false if there is nothing to compare.
	Compared(ctx context.Context, key types.NamespacedName) (shadow.Input, bool, error)
}

// Watches prove that the caches are current; *kube.Inputs is one.
type Watches interface {
	CurrentVersions(ctx context.Context) (kube.Versions, error)
	Await(ctx context.Context, versions kube.Versions, late func(error)) bool
}

// Tracker gets what is found; *shadow.Tracker of internal/shadow is one.
type Tracker interface {
	Observe(now time.Time, subject string, found []difference.Difference)
	Passed(now time.Time, compared, unread int, current func(subject string) bool)
	Doubt(now time.Time, why string)
	Settle() time.Duration
}

// Config configures a Controller. All fields are required.
type Config struct {
	// Kind begins the names of subjects, for example "services".
	Kind    string
	Source  Source
	Watches Watches
	Tracker Tracker
	// Held returns the shards that this replica holds.
	Held   func() []int
	Logger *slog.Logger
}

// Controller compares the objects of the held shards.
type Controller struct{ cfg Config }

// New returns a Controller. It starts nothing.
func New(cfg Config) *Controller { return &Controller{cfg: cfg} }

// Run compares until ctx ends. The caches must be filled. It reports each pass; a pass without a
// proof is a failed one.
func (c *Controller) Run(ctx context.Context, report loop.Report) error {
	period := min(max(c.cfg.Tracker.Settle()/passesPerSettling, minPeriod), maxPeriod)
	return loop.Every(period, func(ctx context.Context) error {
		err := c.pass(ctx, report)
		if err != nil && ctx.Err() == nil {
			c.cfg.Tracker.Doubt(time.Now(), err.Error())
		}
		return err
	})(ctx, report)
}

func (c *Controller) pass(ctx context.Context, report loop.Report) error {
	if err := c.prove(ctx, report); err != nil {
		return err
	}
	compared, unread := map[string]bool{}, 0
	var lastErr error
	began := time.Now()
	for _, shard := range c.cfg.Held() {
		for _, key := range c.cfg.Source.Keys(shard) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			in, ok, err := c.cfg.Source.Compared(ctx, key)
			subject := c.cfg.Kind + "/" + key.String()
			switch {
			case err != nil:
				unread, lastErr = unread+1, err
				c.cfg.Logger.Debug("cannot compare slices", "object", subject, "error", err)
			case ok:
				compared[subject] = true
				c.cfg.Tracker.Observe(time.Now(), subject, shadow.Compare(in))
			}
			if time.Since(began) >= pauseEvery {
				backoff.Sleep(ctx, pauseEvery)
				began = time.Now()
			}
		}
	}
	if unread > maxUnread {
		return fmt.Errorf("%d objects cannot be read, the last one: %w", unread, lastErr)
	}
	c.cfg.Tracker.Passed(time.Now(), len(compared), unread, func(subject string) bool { return compared[subject] })
	return nil
}

// prove returns nil once the caches have what the cluster had when it was called.
func (c *Controller) prove(ctx context.Context, report loop.Report) error {
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	versions, err := c.cfg.Watches.CurrentVersions(ctx)
	if err != nil {
		return err
	}
	var late error
	if !c.cfg.Watches.Await(ctx, versions, func(err error) {
		late = err
		report(err)
	}) {
		return errors.Join(errors.New("the caches are behind"), late)
	}
	return nil
}
