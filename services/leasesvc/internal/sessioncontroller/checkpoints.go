package sessioncontroller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/types"

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
	// leaseOnlyClass marks the Nodes without a session in a checkpoint. No class can have this
	// name. The boot of such an entry is the UID of the Node.
	leaseOnlyClass = "node.lease"
)

// CheckpointsConfig configures Checkpoints. Metrics may be nil, and NodeSilences and Doubt if node
// health does not run.
type CheckpointsConfig struct {
	Store   *CheckpointStore
	Catalog *class.Catalog
	Classes []class.Class
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	// NodeSilences returns the Nodes of a shard that have no session and are silent; false while
	// node health does not judge the shard. It does not block.
	NodeSilences func(shard int) (silences []NodeSilence, judged bool)
	// Doubt returns for how long this replica has doubted that it hears living holders; false if it
	// does not. It does not block.
	Doubt func() (lasted time.Duration, doubts bool)
	// NodeGrace is the grace period of Nodes without a session.
	NodeGrace time.Duration
}

// Inherited is what a term inherits from the previous one.
type Inherited struct {
	Sessions []session.Silence
	Nodes    []NodeSilence
	// Empty says that nothing is stored.
	Empty bool
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
	if c.NodeSilences != nil {
		// Node health decides which silences are stored, and how long it observes a Node itself.
		c.rules[leaseOnlyClass] = checkpoint.Rule{TTL: c.NodeGrace}
	}
	return c
}

// Restore returns the holders of a shard, and its Nodes without a session, that were silent under
// its previous term. It returns within two seconds. If the checkpoint cannot be read, each gets a
// full grace period.
func (c *Checkpoints) Restore(ctx context.Context, t *term.Term) Inherited {
	if c == nil {
		return Inherited{Empty: true}
	}
	ctx, cancel := context.WithTimeout(ctx, checkpointTimeout)
	defer cancel()
	value, err := c.Store.Read(ctx, t.Shard())
	if err == nil && value == nil {
		return Inherited{Empty: true}
	}
	var entries []checkpoint.Entry
	if err == nil {
		entries, err = checkpoint.Decode(value)
	}
	if err != nil {
		c.holders.WithLabelValues("unreadable").Inc()
		c.Logger.Warn("cannot read checkpoint; every holder gets a full grace period", "shard", t.Shard(), "error", err)
		return Inherited{}
	}
	var inherited Inherited
	for _, e := range entries {
		if e.Class == leaseOnlyClass {
			inherited.Nodes = c.restoreNode(inherited.Nodes, e, t.Shard())
		} else if silence, silent := c.restoreEntry(e, t.Shard()); silent {
			inherited.Sessions = append(inherited.Sessions, silence)
		}
	}
	return inherited
}

// restoreNode appends a Node without a session.
func (c *Checkpoints) restoreNode(nodes []NodeSilence, e checkpoint.Entry, shard int) []NodeSilence {
	if c.NodeSilences == nil || c.Catalog.Shard(class.Node, e.Name) != shard {
		c.holders.WithLabelValues("foreign").Inc()
		return nodes
	}
	c.holders.WithLabelValues("less_grace").Inc()
	return append(nodes, NodeSilence{Name: e.Name, UID: types.UID(e.Boot), For: e.Silence})
}

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
// its last write. inherited is what Restore returned.
func (c *Checkpoints) Save(ctx context.Context, t *term.Term, sessions *Controller, inherited Inherited) {
	if c == nil {
		return
	}
	start := time.Now()
	now := func() monotonic.Instant { return monotonic.Instant(time.Since(start)) }
	tracker, failing := checkpoint.NewTracker(c.rules, inherited.Empty), false
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
		nodes := c.nodes(t.Shard(), inherited.Nodes)
		if counts := sessions.Counts(); tracker.Empty() && counts.Suspect+counts.Expired+len(nodes) == 0 {
			continue // the usual case; Silences would walk through all sessions
		}
		silences, held := c.silences.get(ctx, sessions, t.Shard())
		if !held {
			continue
		}
		plan := tracker.Plan(now(), append(c.entries(silences), nodes...))
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

// entries leaves out the holders that fell silent during a doubt, or less than a grace period
// before it: the next replica may hear them, and gives them a full grace period.
func (c *Checkpoints) entries(silences []session.Silence) []checkpoint.Entry {
	lasted, doubts := time.Duration(0), false
	if c.Doubt != nil {
		lasted, doubts = c.Doubt()
	}
	entries := make([]checkpoint.Entry, 0, len(silences))
	for _, s := range silences {
		if doubts && s.For < lasted+c.Catalog.Get(s.Holder.Key.Class).Grace {
			continue
		}
		entries = append(entries, checkpoint.Entry{
			Class: c.Catalog.Get(s.Holder.Key.Class).Name, Name: s.Holder.Key.Name, Boot: s.Holder.Boot, Silence: s.For,
		})
	}
	return entries
}

// nodes returns the entries of Nodes without a session. Until node health judges the shard they are
// those that the term inherited.
func (c *Checkpoints) nodes(shard int, inherited []NodeSilence) []checkpoint.Entry {
	if c.NodeSilences == nil {
		return nil
	}
	silences, judged := c.NodeSilences(shard)
	if !judged {
		silences = inherited
	}
	var entries []checkpoint.Entry
	for _, n := range silences {
		entries = append(entries, checkpoint.Entry{Class: leaseOnlyClass, Name: n.Name, Boot: string(n.UID), Silence: n.For})
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
