package agent

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxMoves is how often in a row a holder moves without a pause. It bounds the moves between
	// replicas that disagree about the owner of a shard.
	maxMoves = 2
	// maxAttempts is how often a holder registers at a target that does not know the owner, before
	// it tries another target.
	maxAttempts = 3
	// unknownTTL stands for the TTL before the first grant.
	unknownTTL = 20 * time.Second
)

// router assigns holders to targets. It is safe for concurrent use.
type router struct {
	cfg *Config

	mu   sync.Mutex // guards the fields below, and the fields of targets and entries; never held across I/O
	next int        // index in the targets of the next one to try
	// ttl is that of the last grant; 0 before the first.
	ttl atomic.Int64
	// intervals are those of the last grants, by class.
	intervals  map[string]time.Duration
	entries    map[holderKey]*entry
	unassigned map[holderKey]*entry
	targets    map[string]*target // by address

	// changed has an item when assign may have work.
	changed chan struct{}
	// renewed is closed when a beat is accepted; nil while no caller waits.
	renewed chan struct{}
}

// target is one address, for the life of one connection to it.
type target struct {
	address string
	entries map[holderKey]*entry
	handles map[uint32]*entry
	// served is set once a goroutine serves the target, and answered once the server has responded.
	served, answered bool
	// changed has an item when a holder may have to register, or no holder may be left.
	changed chan struct{}
}

func (t *target) signal() { signal(t.changed) }

// entry is the state of one holder.
type entry struct {
	holder Holder
	// report is nil before the first Report of the holder. told is set once a message of this
	// registration has said that the holder is observed, and lasting while the last one has said
	// something that a bare handle does not end.
	report        *Report
	told, lasting bool
	// waiting is set while the report has to be sent; only with Config.BeatOnReport.
	waiting bool
	renewal Renewal
	// addedAt is when the Agent got the holder, or Run began. renewAgain is the earliest time of
	// the next call of Config.Unacknowledged; zero before the first.
	addedAt, renewAgain time.Time
	// target is nil while the holder is unassigned or stopped.
	target *target
	// handle is 0 while the holder is not registered, and registering is set while a registration
	// is pending.
	handle      uint32
	registering bool
	// registeredAt is the address of the target that registered the holder last.
	registeredAt string
	// superseded is set while another boot has the name.
	superseded bool
	// rejectedFor is the reason of the last rejection. The holder is neither assigned nor
	// registered before retryAt.
	rejectedFor string
	retryAt     time.Time
	// preferred is the address to assign next, if it is not empty.
	preferred string
	// moves counts the moves since the last pause, and attempts the pauses since the last
	// registration.
	moves, attempts int
}

func newRouter(cfg *Config) *router {
	return &router{
		cfg: cfg, intervals: map[string]time.Duration{}, entries: map[holderKey]*entry{}, unassigned: map[holderKey]*entry{},
		targets: map[string]*target{}, changed: make(chan struct{}, 1),
	}
}

func (r *router) add(holders []Holder) error {
	if err := validate(holders); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	added := map[holderKey]bool{}
	for _, h := range holders {
		if r.entries[h.key()] == nil {
			added[h.key()] = true
		}
	}
	if n := len(r.entries) + len(added); n > MaxHolders {
		return fmt.Errorf("agent: %d holders, one agent has %d at most", n, MaxHolders)
	}
	for _, h := range holders {
		old := r.entries[h.key()]
		if old != nil && old.holder == h {
			continue
		}
		e := &entry{holder: h, addedAt: time.Now()}
		if old != nil && old.target != nil {
			e.preferred = old.target.address // the shard is the same for a new boot
		}
		r.forget(h.key())
		r.entries[h.key()] = e
		r.unassign(e)
	}
	return nil
}

// report sets the report of a holder.
func (r *router) report(h Holder, report *Report) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[h.key()]
	if e == nil || e.holder != h {
		return fmt.Errorf("agent: report of holder %+v: the agent does not have it", h)
	}
	e.report, e.renewal.Reported = report, report.ObservedTime
	if r.cfg.BeatOnReport {
		e.waiting = true
		r.wake(e)
	}
	return nil
}

// wake makes the goroutine that is responsible for an entry send its report.
func (r *router) wake(e *entry) {
	if e.target != nil {
		e.target.signal()
		return
	}
	signal(r.changed)
}

// due reports whether an entry has something to send. With Config.BeatOnReport that is a report
// whose observation still counts: an older one would open no lease that lives.
func (r *router) due(e *entry, now time.Time) bool {
	if !r.cfg.BeatOnReport {
		return true
	}
	return e.waiting && now.Sub(e.report.ObservedTime) < cmp.Or(time.Duration(r.ttl.Load()), unknownTTL)
}

// resend makes the report of an entry due again after its beat was lost or rejected.
func (e *entry) resend() { e.waiting = e.report != nil }

func (r *router) remove(holders []Holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range holders {
		r.forget(h.key())
	}
}

func (r *router) forget(key holderKey) {
	if e := r.entries[key]; e != nil {
		r.detach(e)
		delete(r.unassigned, key)
		delete(r.entries, key)
	}
}

// assign gives a target to each unassigned holder that may retry. It returns the targets that no
// goroutine serves yet, and when the next holder may retry; zero if none waits.
func (r *router) assign(now time.Time, pauses *backoffs) (added []*target, next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// The same addresses for all holders of one call, so that they register together.
	anyAddress := sync.OnceValue(r.anyAddress)
	otherAddress := sync.OnceValue(r.nextAddress)
	jitter := rand.Float64()
	for _, e := range r.unassigned {
		if !r.due(e, now) {
			continue
		}
		if e.retryAt.After(now) {
			next = earlier(next, e.retryAt)
			continue
		}
		address := e.preferred
		switch {
		case address != "":
		case e.attempts > maxAttempts:
			address = otherAddress()
		default:
			address = anyAddress()
		}
		if address == "" { // no target is known
			e.attempts = min(e.attempts+1, maxAttempts)
			e.retryAt = now.Add(pauses.unknownOwner(e.attempts, jitter))
			next = earlier(next, e.retryAt)
			continue
		}
		r.assignTo(e, address)
	}
	for _, t := range r.targets {
		if !t.served {
			t.served = true
			added = append(added, t)
		}
	}
	return added, next
}

// anyAddress returns the address of a target that answers, or of any existing target, or the next
// of the configured ones.
func (r *router) anyAddress() string {
	existing := slices.Sorted(maps.Keys(r.targets))
	for _, address := range existing {
		if r.targets[address].answered {
			return address
		}
	}
	if len(existing) > 0 {
		return existing[0]
	}
	return r.nextAddress()
}

// nextAddress returns the next target; empty if none is known.
func (r *router) nextAddress() string {
	addresses := r.cfg.targets()
	if len(addresses) == 0 {
		return ""
	}
	address := addresses[r.next%len(addresses)]
	r.next++
	return address
}

// skip keeps the address of a target that failed from being the next one, if there is another. A
// redirect may have led to it, so that it would be its turn only now.
func (r *router) skip(address string) {
	if addresses := r.cfg.targets(); len(addresses) > 0 && addresses[r.next%len(addresses)] == address {
		r.next++
	}
}

func (r *router) assignTo(e *entry, address string) {
	r.detach(e)
	delete(r.unassigned, e.holder.key())
	t := r.targets[address]
	if t == nil {
		t = &target{
			address: address, entries: map[holderKey]*entry{}, handles: map[uint32]*entry{}, changed: make(chan struct{}, 1),
		}
		r.targets[address] = t
	}
	e.target, e.preferred = t, ""
	t.entries[e.holder.key()] = e
	t.signal()
}

func (r *router) unassign(e *entry) {
	r.detach(e)
	r.unassigned[e.holder.key()] = e
	signal(r.changed)
}

// detach removes an entry from its target, if it has one.
func (r *router) detach(e *entry) {
	t := e.target
	if t == nil {
		return
	}
	delete(t.entries, e.holder.key())
	delete(t.handles, e.handle)
	e.target, e.handle, e.registering = nil, 0, false
	t.signal()
}

// beating is a holder with what is sent of it. handle is 0 in a registration.
type beating struct {
	holder Holder
	handle uint32
	report *Report
	// explicit says that the report is sent even if a bare handle says the same.
	explicit bool
}

// nextRegistrations returns the next holders to register, at most limit and as many as one message
// may carry, and marks them as registering. next is when another holder may register; zero if none
// waits for a time.
func (r *router) nextRegistrations(t *target, now time.Time, limit int) (holders []beating, next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	size := 0
	for _, e := range t.entries {
		switch {
		case e.handle != 0 || e.registering || !r.due(e, now):
		case e.retryAt.After(now):
			next = earlier(next, e.retryAt)
		case len(holders) < limit && size < maxMessageBytes:
			e.registering, e.told, e.lasting, e.waiting = true, e.report.observes(), e.report.lasts(), false
			size += e.holder.size() + e.report.size()
			holders = append(holders, beating{holder: e.holder, report: e.report})
		}
	}
	return holders, next
}

// registeredHolders returns the registered holders of a class with what to send of them next,
// ordered by handle. With Config.BeatOnReport they are those with a report to send.
func (r *router) registeredHolders(t *target, class string, now time.Time) []beating {
	r.mu.Lock()
	defer r.mu.Unlock()
	holders := make([]beating, 0, len(t.handles))
	for handle, e := range t.handles {
		if e.holder.Class == class && r.due(e, now) {
			e.waiting = false
			explicit := !e.told && e.report.observes() || e.lasting && !e.report.lasts()
			e.told, e.lasting = e.told || e.report.observes(), e.report.lasts()
			holders = append(holders, beating{holder: e.holder, handle: handle, report: e.report, explicit: explicit})
		}
	}
	slices.SortFunc(holders, func(a, b beating) int { return cmp.Compare(a.handle, b.handle) })
	return holders
}

// markAnswered returns whether this is the first response of the target.
func (r *router) markAnswered(t *target) (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first = !t.answered
	t.answered = true
	return first
}

func (r *router) hasAnswered(t *target) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return t.answered
}

// registerAgain drops all handles of a target and registers its holders again.
func (r *router) registerAgain(t *target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(t.handles)
	for _, e := range t.entries {
		e.handle, e.registering, e.retryAt = 0, false, time.Time{}
		e.resend()
	}
	t.signal()
}

// closeIfEmpty closes a target without holders, and returns whether it did.
func (r *router) closeIfEmpty(t *target) (closed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(t.entries) > 0 {
		return false
	}
	r.removeTarget(t)
	return true
}

// close closes a target whose stream has ended. Its holders are assigned again after retryAt, to
// the preferred address if it is not empty, or else to another target than one that failed without
// an answer. retryAt is zero if the stream has not failed. Handles and rejections end with the
// stream, because another replica may answer next.
func (r *router) close(t *target, preferred string, retryAt time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeTarget(t)
	if preferred == "" && !retryAt.IsZero() && !t.answered {
		r.skip(t.address)
	}
	for _, e := range t.entries {
		r.unassign(e)
		e.preferred, e.retryAt, e.moves = preferred, retryAt, 0
		e.resend()
	}
}

func (r *router) removeTarget(t *target) {
	if r.targets[t.address] == t {
		delete(r.targets, t.address)
	}
}

// update runs change with the lock held. change may call setHandle, rejectHolder and rejectHandle.
// All results of one response are one update, so that the holders which it moves register together.
func (r *router) update(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// answerTimeout returns how long an agent waits for a connection, and then for the first response.
func (r *router) answerTimeout() time.Duration {
	if ttl := time.Duration(r.ttl.Load()); ttl > 0 {
		return min(r.cfg.AnswerTimeout, max(ttl/2, minConnectTimeout))
	}
	return r.cfg.AnswerTimeout
}

// setHandle stores the handle of a holder that was registered at t. It ignores a holder that has
// left meanwhile.
func (r *router) setHandle(t *target, h Holder, handle uint32) {
	if e := r.registered(t, h); e != nil {
		delete(t.handles, e.handle)
		e.handle, e.registering, e.rejectedFor, e.retryAt = handle, false, "", time.Time{}
		e.moves, e.attempts, e.superseded, e.registeredAt = 0, 0, false, t.address
		t.handles[handle] = e
	}
}

// rejection is why a server does not accept a holder.
type rejection struct {
	reason string
	action action
	// retryAt is when to register again, for retry and wait.
	retryAt time.Time
	// redirectAddress is the address of the owner; empty if it is unknown. moveAt is when to move
	// there; zero for at once.
	redirectAddress string
	moveAt          time.Time
	// ownerRetryAt is the end of the nth pause of a holder whose owner is unknown.
	ownerRetryAt func(attempt int) time.Time
}

// action is what a rejected holder does.
type action uint8

const (
	// retry registers again at the same target.
	retry action = iota
	// move registers at the owner of the holder's shard.
	move
	// wait ends the beats until retryAt, because another boot has the name. The holder leaves its
	// stream meanwhile.
	wait
	// leave leaves the stream, because its credentials do not permit the holder, and registers
	// again at retryAt. If the stream had no other holder, that is on a new stream.
	leave
	// stop ends the beats of this boot.
	stop
)

// rejectHolder applies the rejection of a registration at t.
func (r *router) rejectHolder(t *target, h Holder, why rejection) {
	if e := r.registered(t, h); e != nil {
		r.reject(e, why)
	}
}

// rejectHandle applies the rejection of a beat.
func (r *router) rejectHandle(t *target, handle uint32, why rejection) {
	if e := t.handles[handle]; e != nil {
		delete(t.handles, handle)
		r.reject(e, why)
	}
}

// registered returns the entry of a holder that was registered at t; nil if it was removed,
// replaced or moved meanwhile.
func (r *router) registered(t *target, h Holder) *entry {
	if e := r.entries[h.key()]; e != nil && e.holder == h && e.target == t {
		return e
	}
	return nil
}

func (r *router) reject(e *entry, why rejection) {
	e.handle, e.registering, e.rejectedFor, e.retryAt = 0, false, why.reason, why.retryAt
	e.resend()
	e.target.signal()
	switch why.action {
	case wait:
		address := e.target.address
		e.superseded, e.waiting = true, false // a report before the other boot's end says nothing of it
		r.unassign(e)
		e.preferred = address
	case leave:
		r.unassign(e)
	case stop:
		e.superseded = true
		r.detach(e)
	case move:
		r.move(e, why)
	}
}

// move moves a holder to the owner of its shard. If the owner is unknown, the holder asks the same
// target again after a pause, and another one after maxAttempts.
func (r *router) move(e *entry, why rejection) {
	e.moves++
	e.retryAt = time.Time{}
	if why.redirectAddress == "" || e.moves > maxMoves {
		e.moves = 0
		e.attempts++
		e.retryAt = why.ownerRetryAt(e.attempts)
	}
	switch {
	case why.redirectAddress != "" && why.moveAt.After(e.retryAt):
		r.unassign(e)
		e.preferred, e.retryAt = why.redirectAddress, why.moveAt
	case why.redirectAddress != "":
		r.assignTo(e, why.redirectAddress)
		signal(r.changed) // the target may need a goroutine
	case e.attempts > maxAttempts:
		r.unassign(e)
	}
}

// describe adds the holders and targets to a status.
func (r *router) describe(s *Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Holders = len(r.entries)
	for _, t := range r.targets {
		s.Targets = append(s.Targets, TargetStatus{
			Target: t.address, Connected: t.answered, Holders: len(t.entries), Registered: len(t.handles),
		})
		s.Registered += len(t.handles)
		s.Connected = s.Connected || t.answered
	}
	for _, e := range r.entries {
		if at := e.renewal.Reported; !at.IsZero() {
			s.LastSeen = earlier(s.LastSeen, at)
		}
		switch {
		case e.superseded:
			s.Superseded = append(s.Superseded, e.holder)
		case e.rejectedFor != "" && e.handle == 0:
			s.Rejected = append(s.Rejected, Rejection{Holder: e.holder, Reason: e.rejectedFor})
		}
	}
	slices.SortFunc(s.Targets, func(a, b TargetStatus) int { return cmp.Compare(a.Target, b.Target) })
	slices.SortFunc(s.Superseded, compareHolders)
	slices.SortFunc(s.Rejected, func(a, b Rejection) int { return compareHolders(a.Holder, b.Holder) })
}

// signal wakes the receiver of a channel with a buffer of one.
func signal(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

// earlier returns the earlier of two times; the first may be zero for none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
