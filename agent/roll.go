package agent

import (
	"slices"
	"time"
)

// What follows is what a conversation does with the members of its post.

// update lets change call welcome, refuse and revoke. All that one answer says is one change: whoever it sends away goes
// together.
func (r *roster) update(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// newcomers returns at most limit holders to introduce, notes that they are being introduced, and says when the next is to be;
// zero when nobody waits.
func (r *roster) newcomers(p *post, now time.Time, limit int) (holders []Holder, next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range p.members {
		switch {
		case !m.wants():
		case m.retry.After(now):
			next = earlier(next, m.retry)
		case len(holders) < limit:
			m.asked = true
			holders = append(holders, m.holder)
		}
	}
	return holders, next
}

// alive returns the handles of the holders of a class that beat at the post, in order.
func (r *roster) alive(p *post, class string) []uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	handles := make([]uint32, 0, len(p.handles))
	for handle, m := range p.handles {
		if m.holder.Class == class {
			handles = append(handles, handle)
		}
	}
	slices.Sort(handles)
	return handles
}

// opened notes that the server has answered; first is true the first time.
func (r *roster) opened(p *post) (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first = !p.answered
	p.answered = true
	return first
}

func (r *roster) hasAnswered(p *post) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.answered
}

// at is the member that was introduced at the post as h; nil when it was removed, replaced or placed elsewhere meanwhile.
func (r *roster) at(p *post, h Holder) *member {
	if m := r.members[h.key()]; m != nil && m.holder == h && m.post == p {
		return m
	}
	return nil
}

// welcome notes the handle of a holder that was introduced. One that has left meanwhile has no use for it.
func (r *roster) welcome(p *post, h Holder, handle uint32) {
	if m := r.at(p, h); m != nil {
		delete(p.handles, m.handle)
		m.handle, m.asked, m.refusal, m.retry = handle, false, "", time.Time{}
		m.hops, m.pauses = 0, 0
		p.handles[handle] = m
	}
}

// refuse notes that a holder that was introduced is not wanted.
func (r *roster) refuse(p *post, h Holder, v verdict) {
	if m := r.at(p, h); m != nil {
		r.judge(m, v)
	}
}

// revoke notes that a handle is not valid any more.
func (r *roster) revoke(p *post, handle uint32, v verdict) {
	if m := p.handles[handle]; m != nil {
		delete(p.handles, handle)
		r.judge(m, v)
	}
}

// verdict is what a server said of a holder that it does not take.
type verdict struct {
	reason string
	// retry is when to introduce the holder again.
	retry time.Time
	// moveTo is where it belongs, if it does not belong here and that is known.
	moveTo string
	// leave is when it goes there; zero for at once.
	leave time.Time
	// detour gives the time at which a holder that does not belong here ends its pause, of which it is the nth.
	detour func(nth int) time.Time
}

func (r *roster) judge(m *member, v verdict) {
	m.refused(v.reason, v.retry)
	m.post.signal()
	switch v.reason {
	case reasonSuperseded:
		m.superseded = true
		r.leave(m)
	case reasonNotLeader:
		r.send(m, v)
	}
}

// send has a member go where it belongs. When nobody knows where that is it asks here again, and after a while elsewhere.
func (r *roster) send(m *member, v verdict) {
	m.hops++
	m.retry = time.Time{}
	if v.moveTo == "" || m.hops > maxHops {
		m.hops = 0
		m.pauses++
		m.retry = v.detour(m.pauses)
	}
	switch {
	case v.moveTo != "" && v.leave.After(m.retry):
		r.cast(m)
		m.hint, m.retry = v.moveTo, v.leave
	case v.moveTo != "":
		r.assign(m, v.moveTo)
		signal(r.changed) // somebody has to attend the post
	case m.pauses > patience:
		r.cast(m)
	}
}

// resync has all holders of the post introduced again.
func (r *roster) resync(p *post) {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(p.handles)
	for _, m := range p.members {
		m.handle, m.asked, m.retry = 0, false, time.Time{}
	}
	p.signal()
}

// closed ends a post at which nobody is left, and tells whether it did.
func (r *roster) closed(p *post) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(p.members) > 0 {
		return false
	}
	r.end(p)
	return true
}

// lose ends a post. Handles die with their stream, and so do refusals, for the next may lead to another replica: its members
// are placed anew after retry, where hint says.
func (r *roster) lose(p *post, hint string, retry time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(p)
	for _, m := range p.members {
		r.cast(m)
		m.hint, m.retry, m.hops = hint, retry, 0
	}
}

func (r *roster) end(p *post) {
	if r.posts[p.address] == p {
		delete(r.posts, p.address)
	}
}
