package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// member is a holder and how it stands on the present stream.
type member struct {
	holder Holder
	// handle is 0 while the holder is not welcome on the present stream.
	handle uint32
	// asked is set from the introduction to its answer.
	asked bool
	// superseded members never beat again.
	superseded bool
	// refusal is why the server does not want the holder; it is not introduced before retry.
	refusal string
	retry   time.Time
}

// roster is who shall beat. Callers of the Agent and the conversation share it.
type roster struct {
	mu      sync.Mutex // guards what follows; never held across I/O
	members map[key]*member
	handles map[uint32]*member // of the present stream

	// changed has an item when there may be somebody to introduce, or nobody left.
	changed chan struct{}
}

func newRoster() *roster {
	return &roster{members: map[key]*member{}, handles: map[uint32]*member{}, changed: make(chan struct{}, 1)}
}

func (r *roster) signal() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *roster) add(holders []Holder) error {
	if err := validate(holders); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	fresh := map[key]bool{}
	for _, h := range holders {
		if r.members[h.key()] == nil {
			fresh[h.key()] = true
		}
	}
	if n := len(r.members) + len(fresh); n > MaxHolders {
		return fmt.Errorf("agent: %d holders, one agent has %d at most", n, MaxHolders)
	}
	for _, h := range holders {
		if m := r.members[h.key()]; m == nil || m.holder != h {
			r.drop(h.key())
			r.members[h.key()] = &member{holder: h}
		}
	}
	r.signal()
	return nil
}

func (r *roster) remove(holders []Holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range holders {
		r.drop(h.key())
	}
	r.signal()
}

// drop forgets a member. The caller holds mu.
func (r *roster) drop(k key) {
	if m := r.members[k]; m != nil {
		delete(r.handles, m.handle)
		delete(r.members, k)
	}
}

// await blocks until somebody wants to beat; it is false when ctx ends first.
func (r *roster) await(ctx context.Context) bool {
	for ctx.Err() == nil {
		if !r.idle() {
			return true
		}
		select {
		case <-ctx.Done():
		case <-r.changed:
		}
	}
	return false
}

// idle tells whether nobody wants to beat.
func (r *roster) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.members {
		if !m.superseded {
			return false
		}
	}
	return true
}

// newcomers returns at most limit holders to introduce, and notes that they are being introduced.
func (r *roster) newcomers(now time.Time, limit int) []Holder {
	r.mu.Lock()
	defer r.mu.Unlock()
	var holders []Holder
	for _, m := range r.members {
		if len(holders) == limit {
			break
		}
		if m.handle == 0 && !m.asked && !m.superseded && !m.retry.After(now) {
			m.asked = true
			holders = append(holders, m.holder)
		}
	}
	return holders
}

// alive returns the handles of all holders that beat, in order.
func (r *roster) alive() []uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	handles := make([]uint32, 0, len(r.handles))
	for handle := range r.handles {
		handles = append(handles, handle)
	}
	slices.Sort(handles)
	return handles
}

// welcome notes the handle of a holder that was introduced. One that was removed or replaced meanwhile has no use for it.
func (r *roster) welcome(h Holder, handle uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.members[h.key()]; m != nil && m.holder == h {
		delete(r.handles, m.handle)
		m.handle, m.asked, m.refusal, m.retry = handle, false, "", time.Time{}
		r.handles[handle] = m
	}
}

// refuse notes that a holder that was introduced is not wanted before retry.
func (r *roster) refuse(h Holder, reason string, retry time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.members[h.key()]; m != nil && m.holder == h {
		m.refused(reason, retry)
	}
}

// revoke notes that a handle is not valid any more.
func (r *roster) revoke(handle uint32, reason string, retry time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.handles[handle]; m != nil {
		delete(r.handles, handle)
		m.refused(reason, retry)
	}
	r.signal()
}

func (m *member) refused(reason string, retry time.Time) {
	m.handle, m.asked, m.refusal, m.retry = 0, false, reason, retry
	m.superseded = reason == reasonSuperseded
}

// disconnect takes all handles back: they die with their stream. So do refusals, for the next may lead to another replica.
func (r *roster) disconnect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.handles)
	for _, m := range r.members {
		m.handle, m.asked, m.retry = 0, false, time.Time{}
	}
	r.signal()
}

func (r *roster) describe(s *Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Holders, s.Welcome = len(r.members), len(r.handles)
	for _, m := range r.members {
		switch {
		case m.superseded:
			s.Superseded = append(s.Superseded, m.holder)
		case m.refusal != "" && m.handle == 0:
			s.Refused = append(s.Refused, Refusal{Holder: m.holder, Reason: m.refusal})
		}
	}
	slices.SortFunc(s.Superseded, compare)
	slices.SortFunc(s.Refused, func(a, b Refusal) int { return compare(a.Holder, b.Holder) })
}
