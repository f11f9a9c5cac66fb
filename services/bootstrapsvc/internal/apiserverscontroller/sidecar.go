package apiserverscontroller

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
)

const (
	// refreshInterval is how often an unchanged key is written, so that its probe time stays
	// meaningful.
	refreshInterval = 10 * time.Second
	// keyTimeout bounds one read and write of the key.
	keyTimeout = 5 * time.Second
	// sessionPoll is how often a missing session is looked for.
	sessionPoll = 20 * time.Millisecond
	// withdrawTimeout bounds the last probe and the removal of the key at a stop: half of what a
	// stop may take.
	withdrawTimeout = 10 * time.Second
	// lastProbeTimeout bounds the last probe, so that time is left for the removal.
	lastProbeTimeout = withdrawTimeout / 2
	// regainAfter is how long a kube-apiserver that was down must have been ready before its
	// replica ranks with the ready ones. Otherwise a server that flaps would move the term each
	// time.
	regainAfter = 30 * time.Second
)

// ErrNoSession says that there is no etcd session. Without one, the key would outlive its sidecar.
var ErrNoSession = errors.New("no etcd session yet, so the key of the kube-apiserver cannot be written")

// sidecar probes the kube-apiserver beside this replica, publishes the result as a key, and ranks
// this replica among the candidates for leadership by it.
type sidecar struct {
	Config
	Deps
	// keeps says that the replica stopped while the server was ready, so the address stays.
	keeps atomic.Bool
}

// sidecarState belongs to one call of run.
type sidecarState struct {
	staleDeleted bool
	readiness    apiservers.Readiness
	// readySince is when the server last became ready.
	readySince time.Time
	// written is the entry that was written last, under session. Its probe time is zero before
	// that.
	written Entry
	session clientv3.LeaseID
	// yields says that the replica yields leadership, and recovers that its server was down and has
	// not been ready for regainAfter since.
	yields, recovers bool
}

func (s *sidecar) stall() time.Duration {
	return time.Minute + s.ProbeInterval + s.ProbeTimeout
}

// run is the Run of the probe loop. After ctx has ended, it withdraws the key.
func (s *sidecar) run(ctx context.Context, report loop.Report) error {
	ticker := time.NewTicker(s.ProbeInterval)
	defer ticker.Stop()
	state := &sidecarState{}
	for ctx.Err() == nil {
		report(s.pass(ctx, state))
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	s.withdraw(context.WithoutCancel(ctx), state)
	return nil
}

// pass deletes a stale key, probes, ranks this replica, and writes the key if it changed. Only a
// failure about the key is an error: that a kube-apiserver is not ready is a result. A failure
// about the key delays no probe and no rank.
func (s *sidecar) pass(ctx context.Context, state *sidecarState) error {
	s.probe(ctx, state)
	s.rankReplica(state)
	if !state.staleDeleted {
		if err := s.deleteStale(ctx); err != nil {
			return err
		}
		state.staleDeleted = true
	}
	session, alive := s.awaitSession(ctx)
	if !alive {
		return ErrNoSession
	}
	ctx, cancel := context.WithTimeout(ctx, keyTimeout)
	defer cancel()
	return s.publish(ctx, state, session)
}

func (s *sidecar) deleteStale(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, keyTimeout)
	defer cancel()
	address := s.Address.Primary
	found, err := s.Keys.DeleteStale(ctx, address)
	if found && err == nil {
		s.Logger.Info("deleted the key of an earlier sidecar of this kube-apiserver", "address", address)
	}
	return err
}

func (s *sidecar) probe(ctx context.Context, state *sidecarState) {
	ctx, cancel := context.WithTimeout(ctx, s.ProbeTimeout)
	defer cancel()
	result := s.Probe(ctx)
	before := state.readiness
	state.readiness = before.After(result, s.Thresholds)
	if state.readiness.Ready && !before.Ready {
		state.readySince = result.Time
	}
	if state.readiness.Ready != before.Ready {
		s.Logger.Info("readiness of the kube-apiserver changed",
			"address", s.Address.Primary, "ready", state.readiness.Ready, "probe", result.Detail)
	}
}

// awaitSession waits for a session for one interval: a starting process has none for a moment.
func (s *sidecar) awaitSession(ctx context.Context) (clientv3.LeaseID, bool) {
	ctx, cancel := context.WithTimeout(ctx, s.ProbeInterval)
	defer cancel()
	for {
		if session, _, alive := s.Session(); alive {
			return session, true
		}
		if !backoff.Sleep(ctx, sessionPoll) {
			return clientv3.NoLease, false
		}
	}
}

func (s *sidecar) publish(ctx context.Context, state *sidecarState, session clientv3.LeaseID) error {
	entry := s.entry(state.readiness)
	if !state.needsWrite(entry, session) {
		return nil
	}
	if err := s.Keys.Publish(ctx, entry, session); err != nil {
		return err
	}
	state.written, state.session = entry, session
	return nil
}

func (s *sidecar) entry(readiness apiservers.Readiness) Entry {
	return Entry{
		Address:   s.Address.Primary,
		Secondary: s.Address.Secondary,
		Name:      s.Address.Primary.String(),
		Port:      s.Port,
		Ready:     readiness.Ready,
		Detail:    readiness.Last.Detail,
		ProbeTime: readiness.Last.Time,
		ReplicaID: s.ReplicaID,
	}
}

func (s *sidecarState) needsWrite(entry Entry, session clientv3.LeaseID) bool {
	return s.written.ProbeTime.IsZero() || s.session != session ||
		s.written.Ready != entry.Ready || s.written.Detail != entry.Detail ||
		entry.ProbeTime.Sub(s.written.ProbeTime) >= refreshInterval
}

// rankReplica yields leadership while the kube-apiserver through which a leader writes is not
// ready. Otherwise the leader could not remove its own server's address before the replica is found
// to be failing. For a time after the server is ready again, ready replicas come first. A replica
// that is ranked last still leads if no other one does better, so the state of other servers does
// not matter here.
func (s *sidecar) rankReplica(state *sidecarState) {
	readiness := state.readiness
	var down, recovering error
	switch {
	case !readiness.Ready:
		down = fmt.Errorf("the kube-apiserver beside this replica is not ready: %s", readiness.Last.Detail)
		state.recovers = true
	case state.recovers && readiness.LastSuccess.Sub(state.readySince) < regainAfter:
		recovering = fmt.Errorf("the kube-apiserver beside this replica is ready only since %s", state.readySince.UTC().Format(time.RFC3339))
	default:
		state.recovers = false
	}
	if isDown := down != nil; isDown != state.yields {
		state.yields = isDown
		if isDown {
			s.Logger.Warn("yielding leadership to replicas that can do the work", "reason", down)
		} else {
			s.Logger.Info("available for leadership again", "ready_since", state.readySince)
		}
	}
	s.YieldLeadership(down)
	s.PreferOthers(recovering)
}

// withdraw marks the key as left after the loop has ended. A key that is only gone would not tell a
// server that stops from one whose key is lost. If etcd does not answer, the key expires with the
// session.
//
// With Config.KeepReady, the key of a ready server expires without a mark: other replicas then
// probe the server themselves.
func (s *sidecar) withdraw(ctx context.Context, state *sidecarState) {
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	if s.KeepReady && state.readiness.Ready && s.mayStillServe(ctx) {
		s.keeps.Store(true)
		s.Logger.Info("stopping beside a ready kube-apiserver; its address stays published", "address", s.Address.Primary)
		return
	}
	if err := s.Keys.MarkLeft(ctx, s.entry(apiservers.Readiness{})); err != nil {
		s.Logger.Warn("cannot mark the key of the kube-apiserver as left; it expires with the session",
			"address", s.Address.Primary, "error", err)
	}
}

// mayStillServe probes once more: a machine that shuts down stops both processes at once, and
// kube-apiserver then says that it is not ready. A server that does not answer may be busy.
func (s *sidecar) mayStillServe(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, min(s.ProbeTimeout, lastProbeTimeout))
	defer cancel()
	result := s.Probe(ctx)
	return result.OK || result.Silent
}
