//go:build !race

package nodehealth

import (
	"fmt"
	"slices"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpoint"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// Nodes act at full seconds, and each replica passes 200 ms later. The present is the last pass of
// a replica by its own clock. All Instants of a world are relative to it, so that equal situations
// at different times are equal worlds.
const (
	present  = monotonic.Instant(1000 * time.Second)
	nextPass = present + monotonic.Instant(time.Second)
	nextActs = nextPass - monotonic.Instant(200*time.Millisecond)
)

// Times of the model, in seconds.
const (
	renewEvery = 11 // a kubelet renews so long after its last renewal has ended
	beatEvery  = 5
	slowness   = 4  // how long a slow kube-apiserver takes: more than the reserve of 3.6 s
	takeover   = 5  // from the loss of a leader to the next one
	restart    = 10 // for which a crashed replica is down
)

// leaseDuration is that of kubelets.
const leaseDuration = 40 * time.Second

// mode is how a node gives signs of life.
type mode uint8

const (
	alone    mode = iota // the kubelet writes its Lease, and no agent beats
	probe                // the kubelet writes its Lease, and an agent observes it and beats
	endpoint             // the agent makes beats of renewals, and writes what is not acknowledged
)

func (m mode) String() string {
	return [...]string{"no agent", session.ModeProbe, session.ModeEndpoint}[m]
}

// life is what lives of a node.
type life uint8

const (
	lives life = iota
	agentLives
	dead
)

// path is the way of beats to a replica while it leads, directly or by the other replica.
type path uint8

const (
	works path = iota
	cut
	frozen // the last beat arrives when the path works again
)

// apiserver is what kube-apiserver does.
type apiserver uint8

const (
	answers apiserver = iota
	away
	refuses // writes of Leases
	slow
)

// process is what the process of a replica does.
type process uint8

const (
	runs process = iota
	pauses
	down
)

// silence is what a checkpoint says of a session.
type silence uint8

const (
	notStored silence = iota
	recent            // the next leader assumes what checkpoint.Rule leaves of it
	longAgo           // the session stays expired
)

// lease is a version of a Lease. A version with a higher rank is newer, and each has a renewTime of
// its own. kubelets is the rank of the last version known that the kubelet renewed; 0 for none.
type lease struct {
	rank, kubelets uint8
	ours           bool
}

var versions = [...]string{"", "11", "12", "13", "14", "15", "16", "17", "18", "19"}

func renewTime(rank uint8) time.Time { return time.Unix(int64(rank), 0) }

// observed returns the Lease as a replica observes it.
func (l lease) observed() Lease {
	o := Lease{Version: versions[l.rank], RenewTime: renewTime(l.rank), Duration: leaseDuration, RenewedByUs: l.ours}
	if l.kubelets > 0 {
		o.ByOther = LeaseRenewedByOther{Version: versions[l.kubelets], RenewTime: renewTime(l.kubelets), Duration: leaseDuration}
	}
	return o
}

// machine is a node with its objects in kube-apiserver. Times are in seconds.
type machine struct {
	life life
	cut  bool  // the kubelet has no way to kube-apiserver
	able uint8 // for how long the kubelet has lived and had its way
	// renewIn is the time to the next renewal; 0 while one has not ended. That waits for its
	// acknowledgement, is tried again in retryIn, or is written in writing; 0 for not.
	renewIn, waits, retryIn, writing uint8
	retryGap, tries                  uint8
	acknowledged                     uint8 // age of the last acknowledged renewal
	passing                          bool  // the last renewal was not acknowledged: the next one waits for a moment only
	beatIn                           uint8 // time to the next beat; 0 without an agent
	seen                             uint8 // age of the agent's last observation of the kubelet
	failing                          uint8 // for how long the requests of the kubelet have failed
	paths                            [2]path
	held                             [2]uint8 // age of the observation in a frozen path, plus one
	lease                            lease
	marked                           bool
	posts                            uint8 // how often the kubelet has reported Ready after a mark
}

// heldSession is the session of a node at the leader. beaten says that it has beaten there.
type heldSession struct {
	open, beaten           bool
	seen, heard, failingAt monotonic.Instant
}

// replica is one replica of leasesvc. Its Leases and Nodes are those of its cache.
type replica struct {
	process process
	since   uint8 // seconds for which it has not run
	stale   bool  // its watches deliver nothing
	check   uint8 // age of the self-check that runs, plus one; 0 for none
	cluster ClusterState
	nodes   [2]NodeState
	leases  [2]lease
	// marking is in how many seconds a slow kube-apiserver writes a mark. sample is the rank of the
	// Lease from which the mark was decided.
	marking, sample [2]uint8
	learned         [2]monotonic.Instant // when the cache got the last sign of the kubelet's own

	// condense and expand have the meaning.
	slowest, lasted uint8
	objects         [2]uint8
	known           [2]bool
}

// world is all that decides what may happen next.
type world struct {
	leader   int8  // -1 for none
	vacant   uint8 // seconds without a leader that runs
	api      apiserver
	apiSince uint8 // seconds for which kube-apiserver has not been well
	badAgo   uint8 // seconds since it was not well
	downAgo  uint8 // seconds since all zones were down
	nodes    [2]machine
	sessions [2]heldSession
	stored   [2]silence
	replicas [2]replica
	failed   bool // what a node sent in the last second has failed
	deadline bool // a deadline is near

	left      uint8 // faults
	since     uint8 // seconds since the first fault
	violation string
}

// model has the rules of worlds.
type model struct {
	modes     [2]mode
	wait      uint8                           // seconds for which a renewal waits for its acknowledgement
	readsLive bool                            // the Lease is read before a mark
	between   func(ClusterState) ClusterState // what a mutation does to the state after each pass; nil for nothing
	rules     Rules
	class     session.Class
	rule      checkpoint.Rule
	agents    [2]unique.Handle[session.Agent]
	objects   [2][8]*corev1.Node // two for each number of posts: Ready and marked
	traits    [2][8]traits
	events    []event
	states    []NodeState
	log       func(string) // nil while no history is told
}

func newModel(modes ...mode) *model {
	node := class.DefaultNode()
	m := &model{modes: [2]mode(modes), wait: 6, readsLive: true, rules: DefaultRules(), class: node.Session()}
	m.rule = checkpoint.Rule{Suspect: m.class.Suspect, TTL: m.class.TTL, MinGrace: m.class.Interval + 5*time.Second}
	for n := range m.objects {
		m.agents[n] = unique.Make(session.Agent{Mode: m.modes[n].String()})
		for i := range m.objects[n] {
			m.objects[n][i] = nodeObject(n, i/2, i%2 == 1)
			m.traits[n][i] = m.rules.traitsOf(m.objects[n][i])
		}
	}
	m.addEvents()
	return m
}

func nodeObject(n, posts int, marked bool) *corev1.Node {
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", n), UID: "1", ResourceVersion: fmt.Sprint(100 + 2*posts)}}
	for _, kind := range kubeletConditions() {
		condition := corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse, LastHeartbeatTime: metav1.Unix(int64(posts), 0)}
		if kind == corev1.NodeReady {
			condition.Status = corev1.ConditionTrue
		}
		object.Status.Conditions = append(object.Status.Conditions, condition)
	}
	if marked {
		object.ResourceVersion = fmt.Sprint(101 + 2*posts)
		object.Status.Conditions = unknownConditions(object, time.Unix(0, 0))
		object.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule}}
	}
	return object
}

// root is a world that has worked for long. The second node renews three seconds after the first
// one, and agents beat some seconds after a renewal.
func (m *model) root(beatAfter, faults uint8) world {
	w := world{badAgo: gracePlus, downAgo: gracePlus, left: faults}
	for n := range w.nodes {
		k := &w.nodes[n]
		*k = machine{able: able, renewIn: renewEvery - 3*uint8(n), retryGap: 1, lease: lease{rank: 1, ours: m.modes[n] == endpoint}}
		if m.modes[n] != alone {
			k.beatIn = beatEvery - beatAfter
			w.sessions[n] = heldSession{open: true, beaten: true, seen: present, heard: present}
		}
	}
	for r := range w.replicas {
		p := &w.replicas[r]
		p.cluster = ClusterState{}.CheckPassed(present, present)
		for n := range p.nodes {
			p.nodes[n].Ownership = Ownership{Held: r == 0, HeldSince: present}
			p.leases[n] = lease{rank: 1, kubelets: 1}
			if p.learned[n] = present; m.modes[n] == endpoint {
				p.leases[n] = lease{rank: 1, ours: true}
			}
			p.nodes[n] = m.rules.Observe(present, p.nodes[n], m.observation(&w, r, n, m.object(&w, n)))
		}
	}
	for range 120 {
		m.tick(&w)
	}
	return w
}

func (m *model) tell(format string, args ...any) {
	if m.log != nil {
		m.log(fmt.Sprintf(format, args...))
	}
}

func replicaName(r int) string { return string(rune('A' + r)) }

// tick lets a second pass.
func (m *model) tick(w *world) {
	w.failed, w.deadline = false, false
	m.lead(w)
	for n := range w.nodes {
		m.act(w, n)
	}
	allDown := w.nodes[0].marked && w.nodes[1].marked
	for r := range w.replicas {
		p := &w.replicas[r]
		if p.process == down && p.since >= restart && w.api != away { // else its cache cannot be filled
			m.tell("replica %s starts", replicaName(r))
			*p = replica{}
		}
		if p.process == runs {
			m.pass(w, r)
		} else {
			p.since = min(p.since+1, 60)
		}
	}
	if w.badAgo = min(w.badAgo+1, gracePlus); w.api != answers {
		w.badAgo, w.apiSince = 0, min(w.apiSince+1, 60)
	}
	if w.downAgo = min(w.downAgo+1, gracePlus); allDown {
		w.downAgo = 0
	}
	m.normalize(w)
	m.judge(w)
}

// leads returns whether a replica leads and runs.
func (w *world) leads(r int8) bool { return r >= 0 && r == w.leader && w.replicas[r].process == runs }

// lead lets the leader store a checkpoint, or another replica take over.
func (m *model) lead(w *world) {
	if w.leads(w.leader) {
		w.vacant = 0
		m.store(w)
		return
	}
	if w.vacant = min(w.vacant+1, takeover); w.vacant < takeover {
		return
	}
	w.leader = -1
	if r := slices.IndexFunc(w.replicas[:], func(p replica) bool { return p.process == runs }); r >= 0 {
		m.takeOver(w, r)
	}
}

// store stores the silences of sessions.
func (m *model) store(w *world) {
	for n := range w.sessions {
		s := &w.sessions[n]
		switch silent := nextActs.Sub(s.seen); {
		case !s.open || silent < m.rule.Suspect:
			w.stored[n] = notStored
		case m.rule.StaysExpired(silent):
			w.stored[n] = longAgo
		default:
			w.stored[n] = recent
		}
	}
}

// takeOver makes a replica the leader, with the sessions that follow from the checkpoint.
func (m *model) takeOver(w *world, r int) {
	m.tell("replica %s leads", replicaName(r))
	w.leader, w.vacant = int8(r), 0
	for n, stored := range w.stored {
		w.replicas[r].nodes[n].Ownership = Ownership{} // the next pass gains the shard
		silent := m.rule.Suspect
		if stored == longAgo {
			silent = m.rule.TTL + m.rule.MinGrace
		}
		w.sessions[n] = heldSession{}
		if stored != notStored {
			w.sessions[n] = heldSession{open: true, seen: nextActs.Add(-m.rule.Inherited(silent))}
		}
	}
}

// act lets a node act for a second.
func (m *model) act(w *world, n int) {
	k := &w.nodes[n]
	if k.able = min(k.able+1, able); k.life != lives || k.cut {
		k.able = 0
	}
	if k.failing = min(k.failing+1, 60); !k.cut && w.api != away {
		k.failing = 0
	}
	if m.modes[n] == endpoint && k.life == lives {
		k.acknowledged = min(k.acknowledged+1, able)
	}
	if k.writing > 0 {
		if k.writing--; k.writing == 0 {
			m.written(w, n)
		}
	}
	if m.modes[n] != alone {
		k.seen = min(k.seen+1, 31)
		if r := w.leader; w.leads(r) && k.held[r] > 0 && k.paths[r] == works {
			m.record(w, n, k.held[r]-1)
		}
	}
	if k.life == lives {
		m.renew(w, n)
	}
	if k.beatIn > 0 && k.life != dead {
		if k.beatIn--; k.beatIn == 0 {
			k.beatIn = beatEvery
			m.beat(w, n)
		}
	}
}

// renew lets a living kubelet renew its Lease. In mode endpoint its agent asks the leader for an
// acknowledgement first.
func (m *model) renew(w *world, n int) {
	k := &w.nodes[n]
	if m.modes[n] == probe {
		k.seen = 0
	}
	switch {
	case k.writing > 0:
		return
	case k.renewIn > 1:
		k.renewIn--
		return
	case k.retryIn > 1:
		k.retryIn--
		return
	case k.renewIn == 1:
		m.begin(w, n)
	}
	if m.modes[n] == endpoint && m.beat(w, n) {
		k.acknowledged, k.passing, k.waits = k.seen, false, 0
		m.end(k)
		if w.api == answers && !k.lease.ours {
			k.lease = lease{rank: k.lease.rank + 1, ours: true} // leasesvc writes it again
		}
		return
	}
	if k.waits > 0 {
		k.waits--
		return
	}
	if k.retryIn = 0; w.api == slow && !k.cut {
		k.writing = slowness
		return
	}
	m.written(w, n)
}

// begin begins a renewal. It waits for its acknowledgement as leasewrite.AcknowledgeBy says: for
// 6 s, until 16.4 s after the last acknowledged one, and for a moment after one that was not.
func (m *model) begin(w *world, n int) {
	k := &w.nodes[n]
	k.renewIn = 0
	if m.modes[n] == endpoint {
		k.seen = 0
		if k.waits = min(m.wait, m.wait+11-k.acknowledged); k.passing {
			k.waits = 0
		}
	}
	if k.marked && !k.cut && w.api != away {
		m.tell("n%d reports Ready", n)
		k.posts, k.marked = k.posts+1, false
	}
}

// end ends a renewal.
func (m *model) end(k *machine) { k.renewIn, k.retryIn, k.retryGap, k.tries = renewEvery, 0, 1, 0 }

// written ends a write of a Lease. Without an answer a kubelet tries again after a time that grows
// to 7 s, behind an agent after 1.5 s. A kubelet whose write was refused tries ten times in a row.
// Behind an agent that takes five seconds.
func (m *model) written(w *world, n int) {
	k := &w.nodes[n]
	k.passing = m.modes[n] == endpoint
	w.failed = w.failed || k.cut || w.api == away || w.api == refuses
	switch {
	case (k.cut || w.api == away) && m.modes[n] == endpoint:
		m.tell("n%d cannot write its Lease", n)
		k.retryIn = 2
	case k.cut || w.api == away:
		m.tell("n%d cannot write its Lease", n)
		k.retryIn, k.retryGap = k.retryGap, min(2*k.retryGap, 7)
	case w.api == refuses && m.modes[n] == endpoint && k.tries < 5:
		m.tell("n%d may not write its Lease", n)
		k.retryIn, k.tries = 1, k.tries+1
	case w.api == refuses:
		m.tell("n%d may not write its Lease", n)
		m.end(k)
	default:
		m.tell("n%d writes its Lease", n)
		k.lease = lease{rank: k.lease.rank + 1}
		m.end(k)
	}
}

// beat takes the last observation of a kubelet to the leader, and returns whether it is recorded.
func (m *model) beat(w *world, n int) bool {
	k, r := &w.nodes[n], w.leader
	w.failed = w.failed || r < 0 || k.paths[r] != works
	switch {
	case r < 0 || k.paths[r] == cut:
		return false
	case k.paths[r] == frozen || !w.leads(r):
		k.held[r] = k.seen + 1
		return false
	}
	m.record(w, n, k.seen)
	return true
}

func (m *model) record(w *world, n int, seen uint8) {
	k, s := &w.nodes[n], &w.sessions[n]
	k.held[w.leader] = 0
	*s = heldSession{open: true, beaten: true, heard: nextActs, seen: max(s.seen, nextActs.Add(-time.Duration(seen)*time.Second))}
	if k.failing > 0 && m.modes[n] == endpoint {
		s.failingAt = nextActs.Add(-time.Duration(k.failing) * time.Second)
	}
}

// stateOf returns the state of a session as package session has it.
func (m *model) stateOf(s *heldSession) session.State {
	switch silent := nextPass.Sub(s.seen); {
	case !s.open:
		return session.Gone
	case silent < m.class.Suspect:
		return session.Alive
	case silent < m.class.TTL:
		return session.Suspect
	}
	return session.Expired
}

// object is the Node as kube-apiserver has it.
func (m *model) object(w *world, n int) *corev1.Node {
	i := 2 * w.nodes[n].posts
	if w.nodes[n].marked {
		i++
	}
	return m.objects[n][i]
}

// observation is what a replica knows of a node.
func (m *model) observation(w *world, r, n int, object *corev1.Node) Observation {
	o := Observation{Node: object, Lease: w.replicas[r].leases[n].observed()}
	s := &w.sessions[n]
	if int(w.leader) != r || !s.open {
		return o
	}
	o.Session = m.stateOf(s)
	if s.beaten {
		o.SessionObserves, o.Agent = true, m.agents[n]
		o.AgentLives = o.Session == session.Expired && nextPass.Sub(s.heard) < m.class.Suspect
		if s.failingAt > 0 {
			o.CutOffFor = nextPass.Sub(s.failingAt)
		}
	}
	return o
}

// learn gives a replica the Lease of a node as kube-apiserver has it, and a Node.
func (m *model) learn(w *world, r, n int, object *corev1.Node) {
	p, live := &w.replicas[r], w.nodes[n].lease
	if l := &p.leases[n]; l.rank != live.rank {
		l.rank, l.ours = live.rank, live.ours
		if !live.ours {
			l.kubelets, p.learned[n] = live.rank, nextPass
		}
	}
	if p.nodes[n].Node != object && !isMarkedUnknown(object) {
		p.learned[n] = nextPass
	}
	p.nodes[n] = m.rules.Observe(nextPass, p.nodes[n], m.observation(w, r, n, object))
}

// pass is a pass of a replica, with what its workers do.
func (m *model) pass(w *world, r int) {
	p, leads := &w.replicas[r], int(w.leader) == r
	for n := range p.nodes {
		s := &p.nodes[n]
		if s.Ownership.Held != leads {
			s.Ownership = Ownership{Held: leads, HeldSince: nextPass}
			p.marking[n], p.sample[n] = 0, 0
		}
		if p.stale {
			*s = m.rules.Observe(nextPass, *s, m.observation(w, r, n, s.Node))
		} else {
			m.learn(w, r, n, m.object(w, n))
		}
		s.Busy = p.marking[n] > 0
	}
	m.awaitCheck(w, p)
	m.states = append(m.states[:0], p.nodes[:]...)
	var plan Plan
	plan, p.cluster = m.rules.Plan(Moment{Instant: nextPass}, p.cluster, m.states, Authority{MaxSteps: 9})
	for n := range p.nodes {
		m.mark(w, r, n, &plan)
	}
	if m.between != nil {
		p.cluster = m.between(p.cluster)
	}
	if plan.SelfCheck != nil && p.check == 0 {
		m.startCheck(w, r)
	}
}

// awaitCheck takes the answer of a self-check that runs.
func (m *model) awaitCheck(w *world, p *replica) {
	if p.check == 0 {
		return
	}
	begun := present.Add(-time.Duration(p.check-1) * time.Second)
	switch {
	case w.api == away:
		p.check, p.cluster = 0, p.cluster.CheckFailed(nextPass, CheckFailure{})
	case w.api == slow && p.check < slowness:
		p.check, p.cluster = p.check+1, p.cluster.CheckRuns(begun, nextPass)
	default:
		p.check, p.cluster = 0, p.cluster.CheckPassed(begun, nextPass)
	}
}

// startCheck starts a self-check. That of a leader writes. A prompt answer shows the Leases of
// silent nodes.
func (m *model) startCheck(w *world, r int) {
	p := &w.replicas[r]
	switch {
	case w.api == away, w.api == refuses && int(w.leader) == r:
		p.cluster = p.cluster.CheckFailed(nextPass, CheckFailure{})
	case w.api == slow:
		p.check = 1
	default:
		p.cluster = p.cluster.CheckPassed(nextPass, nextPass)
		for n := range p.nodes {
			if s := &p.nodes[n]; s.Ownership.Held && m.readsLive && m.rules.Assess(nextPass, p.cluster, s).Health == Silent {
				m.learn(w, r, n, s.Node)
			}
		}
	}
}

// mark does for a step MarkUnknown what nodehealthcontroller does: it reads the Lease of the Node,
// looks at the session, and writes the Node. A slow kube-apiserver needs its time for the read, and
// as much for the write.
func (m *model) mark(w *world, r, n int, plan *Plan) {
	p, k := &w.replicas[r], &w.nodes[n]
	object := p.nodes[n].Node
	unread := p.marking[n] > slowness
	if slices.ContainsFunc(plan.Steps, func(s Step) bool { return s.Kind == MarkUnknown && s.Node == object }) {
		p.marking[n], p.sample[n], unread = 2*slowness+1, p.leases[n].rank, true
	}
	if p.marking[n] == 0 {
		return
	}
	p.marking[n]--
	if w.api == slow && p.marking[n] > slowness {
		return
	}
	stop := false
	switch s := m.stateOf(&w.sessions[n]); {
	case w.api == away:
		stop = true
	case unread && m.readLive(w, r, n):
		stop = true
	case w.api == slow && p.marking[n] > 0:
		return
	case s == session.Alive || s == session.Suspect:
		stop = !m.rules.Assess(nextPass, p.cluster, &p.nodes[n]).CutOff
	}
	p.marking[n], p.sample[n] = 0, 0
	if stop || k.marked || object != m.object(w, n) { // the write conflicts with that of another
		return
	}
	m.tell("replica %s marks n%d", replicaName(r), n)
	k.marked = true
	p.nodes[n] = m.rules.Observe(nextPass, p.nodes[n], m.observation(w, r, n, m.object(w, n)))
	if k.able >= able {
		w.violation = fmt.Sprintf("n%d is marked, and its kubelet has lived and had its way to kube-apiserver for %d s", n, able)
	}
}

// readLive reads a Lease past the cache, and returns whether that shows a renewal.
func (m *model) readLive(w *world, r, n int) bool {
	p := &w.replicas[r]
	sample := Sample{LeaseVersion: versions[p.sample[n]], RenewTime: renewTime(p.sample[n])}
	if !m.readsLive || !w.nodes[n].lease.observed().Renews(sample) {
		return false
	}
	m.learn(w, r, n, p.nodes[n].Node)
	return true
}
