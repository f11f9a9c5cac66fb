package bootstrapsvc

import (
	"context"
	"errors"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
)

const (
	// refreshInterval is how often a key is written although nothing changed, so that its probe time stays meaningful.
	refreshInterval = 10 * time.Second
	// keyTimeout bounds one read and write of the key.
	keyTimeout = 5 * time.Second
	// sessionPoll is how often a session is looked for while there is none.
	sessionPoll = 20 * time.Millisecond
	// withdrawTimeout bounds the removal of the key at a stop: half of what a stop may take.
	withdrawTimeout = 10 * time.Second
)

// errNoSession: without a session, a key would outlive its sidecar.
var errNoSession = errors.New("no etcd session yet, so the key of the kube-apiserver cannot be written")

// sidecar probes the kube-apiserver beside this replica and keeps its key. Everything that changes is in beat, which belongs
// to the loop's goroutine.
type sidecar struct {
	keys     keys
	sessions Sessions
	prober   prober
	logger   *slog.Logger
	metrics  *metrics
	replica  string
	at       advertised
	port     int32
	cfg      Config
	// concede is told why the work of a leader cannot be done here while others can do it; nil when it can. See ports.go.
	concede func(reason error)
}

// beat is the state of one life of the loop.
type beat struct {
	evicted bool
	verdict apiservers.Verdict
	// What was written last, and under which session; a zero probe time: nothing yet.
	written apiserverscontroller.Entry
	session clientv3.LeaseID
	// conceded is whether leadership was given up, readySince when the server last became ready.
	conceded   bool
	readySince time.Time
}

// stall is how long the loop may take for one pass before something must be wrong: far longer than its parts are bounded to.
func (s *sidecar) stall() time.Duration {
	return time.Minute + s.cfg.ProbeInterval + s.cfg.ProbeTimeout
}

// run is the loop's Run. Its last act, when ctx has ended, is to delete the key.
func (s *sidecar) run(ctx context.Context, report loop.Report) error {
	ticker := time.NewTicker(s.cfg.ProbeInterval)
	defer ticker.Stop()
	state := &beat{}
	for ctx.Err() == nil {
		report(s.pass(ctx, state))
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	s.withdraw(ctx)
	return nil
}

// pass removes what an earlier life left, probes, and writes the key if there is news. Only trouble with the key is an error:
// a kube-apiserver that is not ready is what the loop is there to find.
func (s *sidecar) pass(ctx context.Context, state *beat) error {
	if !state.evicted {
		if err := s.evict(ctx); err != nil {
			return err
		}
		state.evicted = true
	}
	s.judge(ctx, state)
	session, alive := s.session(ctx)
	if !alive {
		return errNoSession
	}
	ctx, cancel := context.WithTimeout(ctx, keyTimeout)
	defer cancel()
	// Whoever cannot say how its server is, because another one has the address, gives way all the same.
	return errors.Join(s.publish(ctx, state, session), s.giveWay(ctx, state))
}

func (s *sidecar) publish(ctx context.Context, state *beat, session clientv3.LeaseID) error {
	entry := s.entry(state.verdict)
	if !state.isDue(entry, session) {
		return nil
	}
	if err := s.keys.Publish(ctx, entry, session); err != nil {
		return err
	}
	state.written, state.session = entry, session
	return nil
}

func (s *sidecar) evict(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, keyTimeout)
	defer cancel()
	found, err := s.keys.Evict(ctx, s.at.primary)
	if found && err == nil {
		s.logger.Info("removed the key that an earlier life of this kube-apiserver's sidecar left", "address", s.at.primary)
	}
	return err
}

func (s *sidecar) judge(ctx context.Context, state *beat) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ProbeTimeout)
	defer cancel()
	outcome := s.prober.Probe(ctx)
	before := state.verdict
	state.verdict = before.After(outcome, s.cfg.patience())
	s.metrics.probed(outcome.OK)
	if state.verdict.Ready && !before.Ready {
		state.readySince = outcome.Time
	}
	if state.verdict.Ready != before.Ready {
		s.logger.Info("readiness of the kube-apiserver changed",
			"address", s.at.primary, "ready", state.verdict.Ready, "probe", outcome.Detail)
	}
}

// session waits a little for one, because at the start of a process there is none for a moment.
func (s *sidecar) session(ctx context.Context) (clientv3.LeaseID, bool) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ProbeInterval)
	defer cancel()
	for {
		if session, _, alive := s.sessions.Session(); alive {
			return session, true
		}
		select {
		case <-ctx.Done():
			return clientv3.NoLease, false
		case <-time.After(sessionPoll):
		}
	}
}

func (s *sidecar) entry(verdict apiservers.Verdict) apiserverscontroller.Entry {
	return apiserverscontroller.Entry{
		Address:   s.at.primary,
		Secondary: s.at.secondary,
		Name:      s.at.primary.String(),
		Port:      s.port,
		Ready:     verdict.Ready,
		Detail:    verdict.Last.Detail,
		ProbeTime: verdict.Last.Time,
		ReplicaID: s.replica,
	}
}

// isDue tells whether an entry has to be written: it says something new, the session is another one, or it is time.
func (b *beat) isDue(entry apiserverscontroller.Entry, session clientv3.LeaseID) bool {
	return b.written.ProbeTime.IsZero() || b.session != session ||
		b.written.Ready != entry.Ready || b.written.Detail != entry.Detail ||
		entry.ProbeTime.Sub(b.written.ProbeTime) >= refreshInterval
}

// withdraw takes the key back although ctx has ended. If etcd does not answer, the key goes with the session. Where endpoints
// are counted, a key that is merely missing says nothing, so there it is written that the server left.
func (s *sidecar) withdraw(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	withdraw := func() error { return s.keys.Withdraw(ctx, s.at.primary) }
	if kind, err := s.cfg.Endpoints.kind(); err == nil && kind == apiservers.Counted {
		withdraw = func() error { return s.keys.Leave(ctx, s.entry(apiservers.Verdict{})) }
	}
	if err := withdraw(); err != nil {
		s.logger.Warn("could not remove the key of the kube-apiserver; it goes with the session",
			"address", s.at.primary, "error", err)
	}
}
