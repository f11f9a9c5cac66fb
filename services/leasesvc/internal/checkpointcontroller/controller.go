// Package checkpointcontroller stores which holders of a shard are silent, and restores that after
// a takeover.
//
// Promise: Restore returns before any holder of the shard is heard, and within two seconds. A
// checkpoint that cannot be read grants every holder a full grace period. Save writes under the
// term of the shard only, and returns after its last write.
package checkpointcontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpoint"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

const (
	// ReconnectTime is the longest time, beyond its interval, in which a live agent reaches a
	// replica that has just claimed its shard: the agent's longest backoff. If a server vanished
	// silently, the agent notices two intervals later; a holder that was suspect and beat in the
	// second before is then shown as expired for that long.
	ReconnectTime = 5 * time.Second
	// period is the time between two looks at the silent holders, and so the greatest age of a
	// wrong checkpoint.
	period = time.Second
	// timeout bounds one read or write. No holder of a shard is heard before its checkpoint has
	// been read.
	timeout = 2 * time.Second
)

// Config configures a Controller. Metrics may be nil.
type Config struct {
	Store   *Store
	Catalog *class.Catalog
	Classes []class.Class
	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// Controller stores and restores checkpoints. It is safe for concurrent use. A nil Controller
// stores nothing, and every takeover then grants a full grace period.
type Controller struct {
	Config
	rules    map[string]checkpoint.Rule // by class name
	silences sharedSilences
	writes   *prometheus.CounterVec
	holders  *prometheus.CounterVec
}

// New returns a Controller and registers its metrics. It starts nothing.
func New(cfg Config) (*Controller, error) {
	c := &Controller{
		Config: cfg, rules: map[string]checkpoint.Rule{},
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_lease_checkpoint_writes_total",
			Help: "Writes of checkpoints of silent holders to etcd, by verb and result.",
		}, []string{"verb", "result"}),
		holders: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_lease_checkpoint_holders_total",
			Help: "Holders in the checkpoints of shards that this replica took over, by result; unreadable counts checkpoints.",
		}, []string{"result"}),
	}
	for i := range cfg.Classes {
		s := cfg.Classes[i].Session()
		c.rules[s.Name] = checkpoint.Rule{Suspect: s.Suspect, TTL: s.TTL, MinGrace: s.Interval + ReconnectTime}
	}
	if cfg.Metrics == nil {
		return c, nil
	}
	for _, collector := range []prometheus.Collector{c.writes, c.holders} {
		if err := cfg.Metrics.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of checkpoints: %w", err)
		}
	}
	return c, nil
}

// Restore returns the holders of a shard that were silent under its previous term, and whether
// nothing is stored.
func (c *Controller) Restore(ctx context.Context, t *term.Term) (silences []session.Silence, empty bool) {
	if c == nil {
		return nil, true
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	value, err := c.Store.Read(ctx, t.Shard())
	if err == nil && value == nil {
		return nil, true
	}
	var entries []checkpoint.Entry
	if err == nil {
		entries, err = checkpoint.Decode(value)
	}
	if err != nil {
		c.holders.WithLabelValues("unreadable").Inc()
		c.Logger.Warn("cannot read checkpoint; every holder gets a full grace period", "shard", t.Shard(), "error", err)
		return nil, false
	}
	for _, e := range entries {
		if silence, silent := c.restoreEntry(e, t.Shard()); silent {
			silences = append(silences, silence)
		}
	}
	return silences, false
}

func (c *Controller) restoreEntry(e checkpoint.Entry, shard int) (_ session.Silence, silent bool) {
	id, served := c.Catalog.ByName(e.Class)
	if !served || c.Catalog.Shard(e.Class, e.Name) != shard {
		c.holders.WithLabelValues("foreign").Inc()
		return session.Silence{}, false
	}
	rule := c.rules[e.Class]
	inherited := rule.Inherited(e.Silence)
	switch {
	case inherited <= 0:
		c.holders.WithLabelValues("full_grace").Inc()
		return session.Silence{}, false
	case rule.StaysExpired(e.Silence):
		c.holders.WithLabelValues("expired").Inc()
	default:
		c.holders.WithLabelValues("less_grace").Inc()
	}
	return session.Silence{Holder: session.Holder{Key: session.Key{Class: id, Name: e.Name}, Boot: e.Boot}, For: inherited}, true
}

// Sessions is the session controller. *sessioncontroller.Controller implements it.
type Sessions interface {
	Silences(ctx context.Context) (map[int][]session.Silence, error)
	Counts() session.Counts
	Done() <-chan struct{}
}

// Save keeps the checkpoint of a shard up to date until its term or sessions end. empty is what
// Restore returned.
func (c *Controller) Save(ctx context.Context, t *term.Term, sessions Sessions, empty bool) {
	if c == nil {
		return
	}
	start := time.Now()
	now := func() monotonic.Instant { return monotonic.Instant(time.Since(start)) }
	tracker, failing := checkpoint.NewTracker(c.rules, empty), false
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sessions.Done():
			return
		case <-ticker.C:
		}
		if counts := sessions.Counts(); tracker.Empty() && counts.Suspect+counts.Expired == 0 {
			continue // the usual case; Silences would walk through all sessions
		}
		silences, held := c.silences.get(ctx, sessions, t.Shard())
		if !held {
			continue
		}
		plan := tracker.Plan(now(), c.entries(silences))
		switch err := c.apply(ctx, t, plan); {
		case err == nil:
			tracker, failing = tracker.Applied(now(), plan), false
		case errors.Is(err, ErrTermEnded) || ctx.Err() != nil:
			return
		default:
			if tracker = tracker.Unconfirmed(now(), plan); !failing {
				c.Logger.Warn("cannot write checkpoint; after a failover silent holders would get a full grace period", "shard", t.Shard(), "error", err)
			}
			failing = true
		}
	}
}

func (c *Controller) entries(silences []session.Silence) []checkpoint.Entry {
	entries := make([]checkpoint.Entry, 0, len(silences))
	for _, s := range silences {
		entries = append(entries, checkpoint.Entry{
			Class: c.Catalog.Get(s.Holder.Key.Class).Name, Name: s.Holder.Key.Name, Boot: s.Holder.Boot, Silence: s.For,
		})
	}
	return entries
}

func (c *Controller) apply(ctx context.Context, t *term.Term, plan checkpoint.Plan) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var verb string
	var err error
	switch plan.Action {
	case checkpoint.None:
		return nil
	case checkpoint.Put:
		verb, err = "put", c.Store.Put(ctx, t, plan.Value)
	case checkpoint.Delete:
		verb, err = "delete", c.Store.Delete(ctx, t)
	}
	result := "success"
	if err != nil {
		result = "error"
	}
	c.writes.WithLabelValues(verb, result).Inc()
	return err
}
