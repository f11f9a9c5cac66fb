package agent

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// roster is who shall beat, and where. Callers of the Agent and its conversations share it.
type roster struct {
	mu      sync.Mutex // guards what follows and what hangs on it; never held across I/O
	members map[key]*member
	adrift  map[key]*member // those who have no post and want one
	posts   map[string]*post

	// changed has an item when there may be somebody to place.
	changed chan struct{}
}

func newRoster() *roster {
	return &roster{
		members: map[key]*member{}, adrift: map[key]*member{}, posts: map[string]*post{}, changed: make(chan struct{}, 1),
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
			r.replace(m, h)
		}
	}
	return nil
}

// replace lets a holder take the place of the one with its name, if there is one: it belongs where that did.
func (r *roster) replace(old *member, h Holder) {
	m := &member{holder: h}
	if old != nil && old.post != nil {
		m.hint = old.post.address
	}
	r.drop(h.key())
	r.members[h.key()] = m
	r.cast(m)
}

func (r *roster) remove(holders []Holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range holders {
		r.drop(h.key())
	}
}

// drop forgets a member.
func (r *roster) drop(k key) {
	if m := r.members[k]; m != nil {
		r.leave(m)
		delete(r.adrift, k)
		delete(r.members, k)
	}
}

// leave takes a member from its post.
func (r *roster) leave(m *member) {
	p := m.post
	if p == nil {
		return
	}
	delete(p.members, m.holder.key())
	delete(p.handles, m.handle)
	m.post, m.handle, m.asked = nil, 0, false
	p.signal()
}

// cast leaves a member to be placed.
func (r *roster) cast(m *member) {
	r.leave(m)
	r.adrift[m.holder.key()] = m
	signal(r.changed)
}

// assign gives a member a post at an address. A new one waits there for somebody to attend it.
func (r *roster) assign(m *member, address string) {
	r.leave(m)
	delete(r.adrift, m.holder.key())
	p := r.posts[address]
	if p == nil {
		p = newPost(address)
		r.posts[address] = p
	}
	m.post, m.hint = p, ""
	p.members[m.holder.key()] = m
	p.signal()
}

// describe fills in how many there are and how they stand.
func (r *roster) describe(s *Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Holders = len(r.members)
	for _, p := range r.posts {
		s.Targets = append(s.Targets, p.status())
		s.Welcome += len(p.handles)
		s.Connected = s.Connected || p.answered
	}
	for _, m := range r.members {
		switch {
		case m.superseded:
			s.Superseded = append(s.Superseded, m.holder)
		case m.refusal != "" && m.handle == 0:
			s.Refused = append(s.Refused, Refusal{Holder: m.holder, Reason: m.refusal})
		}
	}
	slices.SortFunc(s.Targets, compareTargets)
	slices.SortFunc(s.Superseded, compare)
	slices.SortFunc(s.Refused, func(a, b Refusal) int { return compare(a.Holder, b.Holder) })
}

// place gives every member that waits for it a post. It returns the posts that nobody attends yet, and when the next member
// is to be placed; zero when nobody waits.
func (r *roster) place(now time.Time, target func() string) (fresh []*post, next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// The same for all, so that they go together. Those who have run out of patience ask somebody new.
	anywhere := sync.OnceValue(func() string { return r.anywhere(target) })
	elsewhere := sync.OnceValue(target)
	for _, m := range r.adrift {
		switch {
		case m.retry.After(now):
			next = earlier(next, m.retry)
		case m.hint != "":
			r.assign(m, m.hint)
		case m.pauses > patience:
			r.assign(m, elsewhere())
		default:
			r.assign(m, anywhere())
		}
	}
	for _, p := range r.posts {
		if !p.attended {
			p.attended = true
			fresh = append(fresh, p)
		}
	}
	return fresh, next
}

// anywhere is an address to begin at: one that answers, or one that may yet, or else the next target.
func (r *roster) anywhere(target func() string) string {
	for _, address := range slices.Sorted(maps.Keys(r.posts)) {
		if r.posts[address].answered {
			return address
		}
	}
	for _, address := range slices.Sorted(maps.Keys(r.posts)) {
		return address
	}
	return target()
}

// earlier is the earlier of two times, of which the first may be zero for none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
