//go:build !race

package nodehealth

import (
	"encoding/binary"
	"flag"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"
	"time"
	"unique"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// able is for how many seconds a kubelet lives and has its way to kube-apiserver until it must have
// given a sign of life: an interval of its renewals and the wait for an acknowledgement.
const able = 17

// Bounds of what a silent node may wait for, in seconds, with a reserve for the grid.
const (
	gracePlus   = 50 + 3
	sessionPlus = 20 + 3
	termPlus    = 20 + 3
)

// judge looks whether the leader has marked dead nodes in time, and for reasons that are not in the
// table. The model judges each mark itself.
func (m *model) judge(w *world) {
	if !w.leads(w.leader) || w.violation != "" {
		return
	}
	p := &w.replicas[w.leader]
	since := func(i monotonic.Instant) time.Duration { return present.Sub(i) }
	for n := range w.nodes {
		s, k, x := &p.nodes[n], &w.nodes[n], &w.sessions[n]
		a := m.rules.Assess(present, p.cluster, s)
		w.deadline = w.deadline || !k.marked && since(a.Deadline).Abs() <= time.Second
		if a.Health == Silent && a.Delay.Active() && !slices.Contains(reasons[:], a.Delay.Reason) {
			w.violation = "this reason is not in the table: " + a.Delay.Reason
		}
		if k.life == lives || k.marked || w.badAgo < gracePlus || w.downAgo < gracePlus || since(s.Ownership.HeldSince) < termPlus*time.Second {
			continue
		}
		last, bound := p.learned[n], gracePlus*time.Second
		switch agentSpeaks := since(x.heard) < m.class.Suspect; {
		case !x.open || !x.beaten:
			last = max(last, s.Ownership.HeldSince, s.signs.first)
		case agentSpeaks:
			last, bound = max(last, x.seen), sessionPlus*time.Second
		case last <= x.seen.Add(m.rules.besideBeat()):
			last, bound = x.seen, sessionPlus*time.Second
		}
		if since(last) > bound {
			w.violation = fmt.Sprintf("n%d is dead, and not marked %v after its last sign of life: %v, %+v", n, since(last), a.Health, a.Delay)
		}
	}
}

var reasons = [...]string{GracePeriod, TermYoung, APIServerUnreachable, APIServerDenied, NoZoneReady}

// event happens to a world between two seconds.
type event struct {
	name  string
	cost  uint8 // faults
	may   func(w *world) bool
	apply func(w *world)
}

func (m *model) add(cost int, name string, may func(w *world) bool, apply func(w *world)) {
	m.events = append(m.events, event{name: name, cost: uint8(cost), may: may, apply: apply})
}

// addEvents lists what may happen. An event happens just before it makes a difference: what
// concerns one path happens before something is sent there.
func (m *model) addEvents() {
	for n := range m.modes {
		m.addEventsOf(n)
	}
	for api, name := range [...]string{answers: "works again", away: "is away", refuses: "refuses writes of Leases", slow: "is slow"} {
		m.add(min(api, 1), "kube-apiserver "+name, func(w *world) bool {
			return (w.api == answers) != (api == 0) && m.near(w) && (api > 0 || ends(w.apiSince))
		}, func(w *world) {
			if w.api == refuses && w.apiSince < uint8(checkEvery/time.Second) {
				// A limit: no self-check writes in so short a time. A kubelet that wrote then had
				// no way.
				w.nodes[0].able, w.nodes[1].able = 0, 0
			}
			w.api, w.apiSince = apiserver(api), 0
		})
	}
	leads := func(w *world) bool { return w.leads(w.leader) && m.near(w) }
	m.add(1, "the leader crashes", leads, func(w *world) { w.replicas[w.leader], w.leader = replica{process: down}, -1 })
	m.add(1, "the leader pauses", leads, func(w *world) { w.replicas[w.leader].process, w.replicas[w.leader].since = pauses, 0 })
	m.add(1, "the leader hands over", func(w *world) bool { return leads(w) && w.replicas[1-w.leader].process == runs }, func(w *world) {
		m.store(w)
		m.takeOver(w, 1-int(w.leader))
	})
	for r := range 2 {
		written := func(w *world) bool { return m.writes(w, 0) || m.writes(w, 1) }
		m.add(0, "replica "+replicaName(r)+" runs again", func(w *world) bool {
			p := &w.replicas[r]
			return p.process == pauses && m.near(w) && ends(p.since)
		}, func(w *world) { w.replicas[r].process, w.replicas[r].since = runs, 0 })
		m.add(1, "the watches of replica "+replicaName(r)+" hang", func(w *world) bool {
			return w.replicas[r].process == runs && !w.replicas[r].stale && written(w)
		}, func(w *world) { w.replicas[r].stale = true })
		m.add(0, "the watches of replica "+replicaName(r)+" deliver again", func(w *world) bool { return w.replicas[r].stale && written(w) },
			func(w *world) { w.replicas[r].stale = false })
	}
}

func (m *model) addEventsOf(n int) {
	name := fmt.Sprint("n", n)
	dies := func(remains life) func(w *world) {
		return func(w *world) {
			k := w.nodes[n]
			w.nodes[n] = machine{
				life: remains, cut: k.cut, writing: k.writing, beatIn: k.beatIn, seen: k.seen, failing: k.failing, paths: k.paths, held: k.held,
				lease: k.lease, marked: k.marked, posts: k.posts,
			}
		}
	}
	acts := func(w *world) bool { return m.beats(w, n) || m.writes(w, n) }
	m.add(1, name+" dies", func(w *world) bool { return w.nodes[n].life == lives && acts(w) }, dies(dead))
	m.add(1, name+" starts", func(w *world) bool {
		k := &w.nodes[n]
		return k.life != lives && m.near(w) && (k.marked || ends(k.seen))
	}, func(w *world) {
		k := &w.nodes[n]
		k.life, k.renewIn, k.retryGap, k.beatIn = lives, 1, 1, min(k.beatIn, 1)
	})
	m.add(1, "the kubelet of "+name+" is cut off", func(w *world) bool { return w.nodes[n].life == lives && !w.nodes[n].cut && m.writes(w, n) },
		func(w *world) { w.nodes[n].cut = true })
	m.add(0, "the kubelet of "+name+" is not cut off any more", func(w *world) bool { return w.nodes[n].cut && acts(w) && ends(w.nodes[n].failing) },
		func(w *world) { w.nodes[n].cut = false })
	if m.modes[n] == alone {
		return
	}
	m.add(1, "the kubelet of "+name+" dies", func(w *world) bool { return w.nodes[n].life == lives && acts(w) }, dies(agentLives))
	for to, does := range [...]string{works: "works again", cut: "is cut", frozen: "freezes"} {
		m.add(min(to, 1), "the path of "+name+" to the leader "+does, func(w *world) bool {
			return w.leader >= 0 && (w.nodes[n].paths[w.leader] == works) != (to == 0) && m.beats(w, n) &&
				(to > 0 || ends(uint8(present.Sub(w.sessions[n].seen)/time.Second)))
		}, func(w *world) { w.nodes[n].paths[w.leader] = path(to) })
	}
}

// beats returns whether a node sends something to the leader in the next second.
func (m *model) beats(w *world, n int) bool {
	k := &w.nodes[n]
	return k.life != dead && k.beatIn == 1 || m.modes[n] == endpoint && m.writes(w, n)
}

// writes returns whether a kubelet renews in the next second.
func (m *model) writes(w *world, n int) bool {
	k := &w.nodes[n]
	return k.writing == 1 || k.life == lives && k.writing == 0 && k.renewIn <= 1 && k.retryIn <= 1
}

// near returns whether something happened in the last second, or may happen in the next one.
func (m *model) near(w *world) bool {
	return w.failed || w.deadline || m.beats(w, 0) || m.writes(w, 0) || m.beats(w, 1) || m.writes(w, 1)
}

// ends returns whether a fault that has lasted for some seconds may end: soon, or late.
func ends(lasted uint8) bool { return lasted <= 20 || lasted >= 56 && lasted <= 58 }

// walker goes through all fields of a world: it writes them, reads them, or lets a second pass.
type walker struct {
	does  does
	bytes []byte
	still bool // the clock of the Instants stands still
}

type does uint8

const (
	write does = iota
	read
	age
)

func numbers[T ~uint8 | ~int8](v *walker, fields ...*T) {
	for i, field := range fields {
		switch v.does {
		case write:
			v.bytes = append(v.bytes, uint8(*field))
		case read:
			*field = T(v.bytes[i])
		}
	}
	if v.does == read {
		v.bytes = v.bytes[len(fields):]
	}
}

// flags goes through 16 flags at most.
func (v *walker) flags(fields ...*bool) {
	var bits uint16
	if v.does == read {
		bits, v.bytes = binary.LittleEndian.Uint16(v.bytes), v.bytes[2:]
	}
	for i, field := range fields {
		if v.does == read {
			*field = bits>>i&1 == 1
		} else if *field {
			bits |= 1 << i
		}
	}
	if v.does == write {
		v.bytes = binary.LittleEndian.AppendUint16(v.bytes, bits)
	}
}

// instants goes through Instants, as tenths of a second before the present; 0 is never. All that
// are older than a duration are equal.
func (v *walker) instants(oldest time.Duration, fields ...*monotonic.Instant) {
	const never, tenth = 1 << 15, 100 * time.Millisecond
	for _, field := range fields {
		switch v.does {
		case write:
			tenths := uint16(never)
			if *field != 0 {
				tenths = uint16(present.Sub(*field) / tenth)
			}
			v.bytes = binary.LittleEndian.AppendUint16(v.bytes, tenths)
		case read:
			*field = 0
			if tenths := binary.LittleEndian.Uint16(v.bytes); tenths != never {
				*field = present.Add(-time.Duration(int16(tenths)) * tenth)
			}
			v.bytes = v.bytes[2:]
		case age:
			if *field != 0 && !v.still {
				*field = max(field.Add(-time.Second), present.Add(-oldest))
			}
		}
	}
}

// Ages beyond which an Instant decides nothing: the grace period and the time beside a beat, and
// the silence of an agent.
const (
	long     = 58 * time.Second
	agentAge = 15 * time.Second
)

func (w *world) walk(v *walker) {
	numbers(v, &w.leader)
	numbers(v, &w.vacant, &w.apiSince, &w.badAgo, &w.downAgo)
	numbers(v, &w.api)
	numbers(v, &w.stored[0], &w.stored[1])
	for n := range w.nodes {
		k, s := &w.nodes[n], &w.sessions[n]
		numbers(v, &k.life)
		numbers(v, &k.paths[0], &k.paths[1])
		numbers(v, &k.able, &k.renewIn, &k.waits, &k.retryIn, &k.writing, &k.retryGap, &k.tries, &k.acknowledged, &k.beatIn, &k.seen, &k.failing,
			&k.held[0], &k.held[1], &k.lease.rank, &k.posts)
		v.flags(&k.cut, &k.passing, &k.lease.ours, &k.marked, &s.open, &s.beaten, &w.failed, &w.deadline)
		v.still = !w.leads(w.leader)
		v.instants(long, &s.seen, &s.failingAt)
		v.instants(agentAge, &s.heard)
	}
	for r := range w.replicas {
		w.replicas[r].walk(v)
	}
}

func (p *replica) walk(v *walker) {
	c := &p.cluster
	numbers(v, &p.process)
	numbers(v, &p.since, &p.check, &p.marking[0], &p.marking[1], &p.sample[0], &p.sample[1], &p.slowest, &p.lasted)
	v.flags(&p.stale, &c.allDown, &c.outage.on)
	v.still = p.process != runs
	v.instants(long, &c.zonesUp, &c.checked, &c.outage.since, &c.unusable.Since, &c.slow.at, &c.served, &c.recovered, &c.servedSince)
	for n := range p.nodes {
		t, s, l := &p.nodes[n], &p.nodes[n].signs, &p.leases[n]
		numbers(v, &l.rank, &l.kubelets, &p.objects[n])
		numbers(v, &s.session)
		v.flags(&t.Ownership.Held, &t.wasReady, &s.lease.counts, &s.observes, &s.reportsSilence, &s.heardHere, &s.kubeletsLease, &s.renewsItself, &l.ours, &p.known[n])
		v.instants(long, &t.Ownership.HeldSince, &t.unknownSince, &t.taintedAt, &p.learned[n],
			&s.first, &s.posted, &s.renewed, &s.released, &s.lease.at, &s.cutOff, &s.expired, &s.lastBeat, &s.watched)
	}
}

// normalize makes the next pass the present one, and gives versions of Leases the lowest ranks.
func (m *model) normalize(w *world) {
	w.walk(&walker{does: age})
	for n := range w.nodes {
		a, b := &w.replicas[0], &w.replicas[1]
		used := [...]*uint8{
			&w.nodes[n].lease.rank, &a.leases[n].rank, &a.leases[n].kubelets, &a.sample[n], &b.leases[n].rank, &b.leases[n].kubelets, &b.sample[n],
		}
		var ranks [len(versions)]uint8
		for _, rank := range used {
			ranks[*rank] = 1
		}
		ranks[0] = 0
		for i, last := 1, uint8(0); i < len(ranks); i++ {
			last += ranks[i]
			ranks[i] = last
		}
		for _, rank := range used {
			*rank = ranks[*rank]
		}
	}
	for r := range w.replicas {
		p := &w.replicas[r]
		p.slowest, p.lasted = uint8(p.cluster.slow.took/time.Second), 0
		if p.cluster.recovered > 0 {
			p.lasted = uint8(min(p.cluster.lasted/time.Second, long/time.Second))
		}
		for n := range p.nodes {
			p.objects[n] = uint8(slices.Index(m.objects[n][:], p.nodes[n].Node) + 1)
			p.known[n] = p.nodes[n].signs.agent != (unique.Handle[session.Agent]{})
		}
		m.expand(p)
	}
}

// expand sets the fields of a replica that a walker does not read.
func (m *model) expand(p *replica) {
	p.cluster.slow.took, p.cluster.lasted = time.Duration(p.slowest)*time.Second, time.Duration(p.lasted)*time.Second
	c := &p.cluster
	if c.unusable = (Delay{Since: c.unusable.Since}); c.unusable.Since > 0 {
		c.unusable.Reason, c.unusable.Until = APIServerUnreachable, Open
	}
	for n := range p.nodes {
		if p.objects[n] == 0 {
			continue // it is down
		}
		t, l := &p.nodes[n], p.leases[n].observed()
		s := &t.signs
		t.Node, t.traits = m.objects[n][p.objects[n]-1], m.traits[n][p.objects[n]-1]
		t.Busy = p.marking[n] > 0
		s.version, s.heartbeat, s.reported = statusOf(t.Node)
		s.lease.version, s.lease.renewTime, s.byOther = l.Version, l.RenewTime, l.ByOther
		if s.leaseDuration = l.ByOther.Duration; s.kubeletsLease {
			s.leaseDuration = l.Duration
		}
		if p.known[n] {
			s.agent = m.agents[n]
		}
	}
}

// step is how a world was reached: from another one by an event, or by a second that passed.
type step struct {
	from  uint32
	event int8
	left  uint8
	since uint8
}

// covers returns whether all that may follow a world has been reached from the same one before.
func (s step) covers(w *world) bool { return s.left > w.left || s.left == w.left && s.since <= w.since }

const second = -1 // instead of an event

// layer has the worlds of one second, and where they are in steps.
type layer struct {
	bytes []byte
	at    []uint32
}

// explorer finds all worlds that a model reaches, the soonest first.
type explorer struct {
	*model
	seed   maphash.Seed
	seen   map[uint64]uint32 // from hashes of worlds into steps
	steps  []step
	bytes  []byte
	most   int // worlds
	faults uint8
	apart  uint8 // seconds from the first fault to the last one
}

func (e *explorer) get(w *world, l *layer, i int) {
	*w = world{}
	size := len(l.bytes) / len(l.at)
	w.walk(&walker{does: read, bytes: l.bytes[i*size : (i+1)*size]})
	for r := range w.replicas {
		e.expand(&w.replicas[r])
	}
	w.left, w.since = e.steps[l.at[i]].left, e.steps[l.at[i]].since
}

// add adds a world to a layer, unless it was reached before with as many faults left.
func (e *explorer) add(to *layer, w *world, from uint32, event int) (at uint32, isNew bool) {
	v := walker{bytes: e.bytes[:0]}
	w.walk(&v)
	e.bytes = v.bytes
	hash := maphash.Bytes(e.seed, e.bytes)
	if before, known := e.seen[hash]; known && e.steps[before].covers(w) {
		return before, false
	}
	at = uint32(len(e.steps))
	e.seen[hash], e.steps = at, append(e.steps, step{from: from, event: int8(event), left: w.left, since: w.since})
	to.bytes, to.at = append(to.bytes, e.bytes...), append(to.at, at)
	return at, true
}

// explore returns the first violation, with the number of its root and what happened since.
func (e *explorer) explore(roots []world) (violation string, root uint32, history []int) {
	now, next := &layer{}, &layer{}
	w, after := &world{}, &world{}
	for i := range roots {
		e.add(now, &roots[i], uint32(i), second)
	}
	for len(now.at) > 0 && len(e.seen) < e.most {
		left, found := -1, uint32(0)
		for i := 0; i < len(now.at); { // events of this second add to now
			e.get(w, now, i)
			from := now.at[i]
			i++
			for number, event := range e.events {
				if event.cost <= w.left && event.may(w) {
					*after = *w
					event.apply(after)
					after.left -= event.cost
					e.add(now, after, from, number)
				}
			}
			if w.left < e.faults {
				w.since++
			}
			if w.since >= e.apart {
				w.left, w.since = 0, 0
			}
			e.tick(w)
			if at, isNew := e.add(next, w, from, second); isNew && w.violation != "" && int(w.left) > left {
				violation, left, found = w.violation, int(w.left), at
			}
		}
		if violation != "" {
			for found >= uint32(len(roots)) {
				history, found = append(history, int(e.steps[found].event)), e.steps[found].from
			}
			slices.Reverse(history)
			return violation, found, history
		}
		now, next = next, now
		next.bytes, next.at = next.bytes[:0], next.at[:0]
	}
	return "", 0, nil
}

// story returns a history in words.
func (m *model) story(w world, history []int) string {
	var text strings.Builder
	at, begun := 0, false
	m.log = func(line string) {
		if begun {
			fmt.Fprintf(&text, "\n%5d s: %s", at, line)
		}
	}
	defer func() { m.log = nil }()
	for _, number := range history {
		if number == second {
			if begun {
				at++
			}
			m.tick(&w)
			continue
		}
		begun = true
		m.tell("%s", strings.ToUpper(m.events[number].name))
		m.events[number].apply(&w)
	}
	return text.String()
}

// worlds bounds the search of TestEnumerate for each pair of modes.
var worlds = flag.Int("enumerate.worlds", 400_000, "number of worlds that TestEnumerate visits for each pair of modes")

// TestEnumerate looks for a history of up to two faults in which a promise of node health is
// broken, the shortest first. The race detector would make it ten times slower. A longer search:
//
//	go test -run TestEnumerate -v ./services/leasesvc/internal/nodehealth -args -enumerate.worlds=6000000
func TestEnumerate(t *testing.T) {
	for _, modes := range [][2]mode{{endpoint, alone}, {probe, alone}, {endpoint, probe}} {
		t.Run(modes[0].String()+" and "+modes[1].String(), func(t *testing.T) {
			t.Parallel()
			if violation := search(t, newModel(modes[:]...)); violation != "" {
				t.Error(violation)
			}
		})
	}
}

// The search finds a broken promise when a part of the rule is taken out.
func TestEnumerate_FindsWhatEachPartOfTheRuleForbids(t *testing.T) {
	for name, without := range map[string]func(*model){
		"a write within 6 s": func(m *model) { m.wait = 30 },
		"the live read":      func(m *model) { m.readsLive = false },
		"the delay while kube-apiserver is away": func(m *model) {
			m.between = func(c ClusterState) ClusterState {
				c.outage, c.unusable, c.recovered = period{}, Delay{}, 0
				return c
			}
		},
		"the grace period after that": func(m *model) {
			m.between = func(c ClusterState) ClusterState {
				c.recovered = 0
				return c
			}
		},
		"the grace period": func(m *model) { m.rules.SessionGrace, m.class.TTL = m.rules.SessionGrace/2, m.class.TTL/2 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newModel(endpoint, alone)
			without(m)
			if search(t, m) == "" {
				t.Error("no history breaks a promise")
			}
		})
	}
}

// search returns the first violation with its history, or "".
func search(t *testing.T, m *model) string {
	t.Helper()
	const faults = 2
	e := &explorer{model: m, seed: maphash.MakeSeed(), seen: map[uint64]uint32{}, most: *worlds, faults: faults, apart: 25}
	var roots []world
	for _, after := range []uint8{1, 4} {
		roots = append(roots, e.root(after, faults))
	}
	begun := time.Now()
	violation, root, history := e.explore(roots)
	t.Logf("%d worlds in %v", len(e.seen), time.Since(begun))
	if violation == "" {
		return ""
	}
	violation += e.story(roots[root], history)
	t.Log(violation)
	return violation
}

// The beats of n0 reach no replica, no Lease can be written for a while, and the leader hands over
// to a replica that has made no self-check that writes. Only its young term keeps that from a mark.
func TestEnumerate_ANewLeaderMarksNoNodeThatCouldNotWriteItsLease(t *testing.T) {
	violations := func(m *model) (count int) {
		root := m.root(1, 0)
		for begin := 1; begin <= 20; begin++ {
			for end := begin + 3; end <= begin+15; end += 3 {
				for handover := begin; handover <= begin+20; handover += 2 {
					w := root
					w.nodes[0].paths = [2]path{cut, cut}
					for second := range 60 {
						switch second {
						case begin:
							w.api = refuses
						case end:
							w.api = answers
						}
						if second == handover {
							m.store(&w)
							m.takeOver(&w, 1-int(w.leader))
						}
						m.tick(&w)
					}
					if w.violation != "" {
						count++
					}
				}
			}
		}
		return count
	}
	m := newModel(endpoint, alone)
	if count := violations(m); count > 0 {
		t.Errorf("%d histories break a promise", count)
	}
	m.rules.LeastSilence = 0
	if count := violations(m); count == 0 {
		t.Error("no history breaks a promise without the young term")
	} else {
		t.Logf("%d histories break a promise without the young term", count)
	}
}
