package nodehealthcontroller

import (
	"context"
	"sync"
	"time"
	"unique"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// sessionsPoll is how soon the tracker follows a new session controller.
const sessionsPoll = 50 * time.Millisecond

// SessionWatcher is a session controller. *sessioncontroller.Controller implements it.
type SessionWatcher interface {
	Watch(ctx context.Context, selection sessioncontroller.Selection, since sessioncontroller.Version) (*sessioncontroller.Subscription, error)
}

// SessionTracker is Sessions for the Nodes whose shards this replica holds. The sessions of other
// Nodes show in their Leases only.
type SessionTracker struct {
	classes []bool
	expired chan struct{}

	mu       sync.Mutex // guards the fields below
	sessions map[string]NodeSession
	changed  map[string]struct{}
}

// NewSessionTracker returns a tracker of the sessions in a set of classes, which is indexed by
// session.ClassID.
func NewSessionTracker(classes []bool) *SessionTracker {
	return &SessionTracker{classes: classes, expired: make(chan struct{}, 1), sessions: map[string]NodeSession{}, changed: map[string]struct{}{}}
}

// Changed implements Sessions.
func (t *SessionTracker) Changed() map[string]struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := t.changed
	t.changed = map[string]struct{}{}
	return changed
}

// Expired implements Sessions.
func (t *SessionTracker) Expired() <-chan struct{} { return t.expired }

// Session implements Sessions.
func (t *SessionTracker) Session(node string) NodeSession {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sessions[node]
}

// Run follows the session controller that current returns, and its successors, until ctx ends.
// current returns nil while there is none.
func (t *SessionTracker) Run(ctx context.Context, current func() SessionWatcher) {
	ticker := time.NewTicker(sessionsPoll)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if sessions := current(); sessions != nil {
			t.follow(ctx, sessions)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// follow returns when the watch ends. Then all sessions are unknown.
func (t *SessionTracker) follow(ctx context.Context, sessions SessionWatcher) {
	subscription, err := sessions.Watch(ctx, sessioncontroller.Selection{Classes: t.classes}, sessioncontroller.Version{})
	if err != nil {
		return // the controller has stopped, or ctx has ended
	}
	defer subscription.Close()
	defer t.clear()
	for {
		events, err := subscription.Next(ctx)
		if err != nil {
			return
		}
		t.apply(events)
	}
}

func (t *SessionTracker) apply(events []sessioncontroller.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range events {
		lease := &events[i].Lease
		name := lease.Holder.Key.Name
		switch events[i].Type {
		case sessioncontroller.Added, sessioncontroller.Modified:
			s := NodeSession{State: lease.State, Observes: lease.Observed, AgentLives: lease.AgentLives, CutOff: lease.CutOffTime}
			if lease.Agent != (session.Agent{}) {
				s.Agent = unique.Make(lease.Agent)
			}
			if !lease.Write.WriteTime.IsZero() { // otherwise another writer wrote the Lease that was adopted
				s.Written = lease.Write.ResourceVersion
			}
			before := t.sessions[name].State
			t.sessions[name] = s
			if s.State == session.Expired && before != session.Expired {
				select {
				case t.expired <- struct{}{}:
				default: // the next pass takes it in too
				}
			}
		case sessioncontroller.Deleted:
			delete(t.sessions, name)
		case sessioncontroller.Bookmark:
			continue
		}
		t.changed[name] = struct{}{}
	}
}

func (t *SessionTracker) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range t.sessions {
		t.changed[name] = struct{}{}
	}
	clear(t.sessions)
}
