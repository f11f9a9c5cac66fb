package sessioncontroller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

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
	// checkpointPeriod is the time between two looks at the silent holders, and so the greatest age
	// of a wrong checkpoint.
	checkpointPeriod = time.Second
	// checkpointTimeout bounds one read or write. No holder of a shard is heard before its
	// checkpoint has been read.
	checkpointTimeout = 2 * time.Second
)

// CheckpointsConfig configures Checkpoints. Metrics may be nil.
type CheckpointsConfig struct {
	Store   *CheckpointStore
	Catalog *class.Catalog
	Classes []class.Class
	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// Checkpoints stores which holders of a shard are silent, and restores that after a takeover. It is
// safe for concurrent use. With nil Checkpoints nothing is stored, and every takeover grants a full
// grace period.
type Checkpoints struct {
	CheckpointsConfig
	rules    map[string]checkpoint.Rule // by class name
	silences sharedSilences
	writes   *prometheus.CounterVec
	holders  *prometheus.CounterVec
}

// NewCheckpoints returns Checkpoints. It starts nothing.
func NewCheckpoints(cfg CheckpointsConfig) *Checkpoints {
	register := promauto.With(cfg.Metrics)
	c := &Checkpoints{
		CheckpointsConfig: cfg, rules: map[string]checkpoint.Rule{},
		writes: register.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_lease_checkpoint_writes_total",
			Help: "Writes of checkpoints of silent holders to etcd, by verb and result.",
		}, []string{"verb", "result"}),
		holders: register.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_lease_checkpoint_holders_total",
			Help: "Holders in the checkpoints of shards that this replica took over, by result; unreadable counts checkpoints.",
		}, []string{"result"}),
	}
	for i := range cfg.Classes {
		s := cfg.Classes[i].Session()
		c.rules[s.Name] = checkpoint.Rule{Suspect: s.Suspect, TTL: s.TTL, MinGrace: s.Interval + ReconnectTime}
	}
	return c
}

// Restore returns the holders of a shard that were silent under its previous term, and whether
// nothing is stored. It returns within two seconds. If the checkpoint cannot be read, every holder
// gets a full grace period.
func (c *Checkpoints) Restore(ctx context.Context, t *term.Term) (silences []session.Silence, empty bool) {
	if c == nil {
		return nil, true
	}
	ctx, cancel := context.WithTimeout(ctx, checkpointTimeout)
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

// restoreEntry skips entries of a class that is not served. One is "node.lease", with which older
// versions stored Nodes without a session.
func (c *Checkpoints) restoreEntry(e checkpoint.Entry, shard int) (_ session.Silence, silent bool) {
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

// Save keeps the checkpoint of a shard up to date until its term or sessions end, and returns after
// its last write. empty is what Restore returned.
func (c *Checkpoints) Save(ctx context.Context, t *term.Term, sessions *Controller, empty bool) {
	if c == nil {
		return
	}
	start := time.Now()
	now := func() monotonic.Instant { return monotonic.Instant(time.Since(start)) }
	tracker, failing := checkpoint.NewTracker(c.rules, empty), false
	ticker := time.NewTicker(checkpointPeriod)
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

func (c *Checkpoints) entries(silences []session.Silence) []checkpoint.Entry {
	entries := make([]checkpoint.Entry, 0, len(silences))
	for _, s := range silences {
		entries = append(entries, checkpoint.Entry{
			Class: c.Catalog.Get(s.Holder.Key.Class).Name, Name: s.Holder.Key.Name, Boot: s.Holder.Boot, Silence: s.For,
		})
	}
	return entries
}

func (c *Checkpoints) apply(ctx context.Context, t *term.Term, plan checkpoint.Plan) error {
	ctx, cancel := context.WithTimeout(ctx, checkpointTimeout)
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

// maxSilencesAge is how long a result is shared. The shards of a replica tick at the same time, so
// nearly all share one.
const maxSilencesAge = checkpointPeriod / 4

// sharedSilences asks for the silent holders once for all shards that ask at about the same time.
type sharedSilences struct {
	mu       sync.Mutex // guards the fields below; held during a request, so that concurrent callers share it
	sessions *Controller
	taken    time.Time
	byShard  map[int][]session.Silence
}

// get returns the silent holders of a shard, which the caller must not modify; false if the shard
// is not held.
func (s *sharedSilences) get(ctx context.Context, sessions *Controller, shard int) ([]session.Silence, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions != sessions || time.Since(s.taken) > maxSilencesAge {
		start := time.Now()
		byShard, err := sessions.Silences(ctx)
		if err != nil {
			return nil, false
		}
		s.sessions, s.taken, s.byShard = sessions, start, byShard
	}
	silences, held := s.byShard[shard]
	return silences, held
}
