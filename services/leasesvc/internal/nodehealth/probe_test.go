package nodehealth_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// probed has nodes whose kubelets renew Leases of 40 s every ten seconds. n0 has an agent that
// observes its kubelet. The last renewals are of this moment.
func probed(t *testing.T, count int) *fixture {
	w := newFixture(t, count)
	w.sessions["n0"], w.observes["n0"] = session.Alive, true
	w.renewing(60*time.Second, w.names...)
	return w
}

// renewing lets time pass while kubelets renew their Leases at each tenth second.
func (w *fixture) renewing(d time.Duration, kubelets ...string) {
	for end := w.now.Add(d); w.now < end; {
		w.now = w.now.Add(100 * time.Millisecond)
		if w.now.Sub(0)%(10*time.Second) == 0 {
			for _, name := range kubelets {
				w.leases[name] = nodehealth.Lease{Version: w.next(), RenewTime: wall(w.now), Duration: 40 * time.Second, Holder: name}
			}
		}
		w.pass()
	}
}

// expire lets the session of n0 expire.
func (w *fixture) expire() { w.sessions["n0"] = session.Expired }

func TestPlan_KubeletThatItsLivingAgentReportsSilentIsMarkedAfterTheGraceOfItsSession(t *testing.T) {
	w := probed(t, 4)
	w.agents["n0"] = true
	others := w.names[1:]
	w.renewing(15*time.Second, others...)
	w.expire()
	w.renewing(5*time.Second, others...) // the last renewal of n0 is 20 s ago
	w.expectReady("n0", corev1.ConditionTrue)
	w.renewing(200*time.Millisecond, others...)
	w.expectReady("n0", corev1.ConditionUnknown)
	w.expectReady("n1", corev1.ConditionTrue)
	w.agents["n0"] = false // what was declared stays when the agent dies as well
	w.renewing(5*time.Second, others...)
	if got := w.health("n0"); got != nodehealth.Dead {
		t.Errorf("n0 is %v, want dead", got)
	}
}

func TestPlan_SignsOfAKubeletContradictItsAgent(t *testing.T) {
	for name, sign := range map[string]func(*fixture){
		"renewals": func(w *fixture) { w.renewing(10*time.Second, w.names...) },
		"status": func(w *fixture) {
			w.renewing(10*time.Second, w.names[1:]...)
			w.report("n0", corev1.ConditionTrue)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := probed(t, 4)
			w.agents["n0"] = true
			w.expire()
			for range 30 {
				sign(w)
				w.expectReady("n0", corev1.ConditionTrue)
			}
		})
	}
}

// An agent that is silent says nothing of its kubelet. A renewal that came after its last beat
// shows that the kubelet reaches kube-apiserver, and has the grace period that it has without an
// agent. An earlier one proves no more than the beat did.
func TestPlan_SignsOfAKubeletWhoseAgentDied(t *testing.T) {
	const beat = 20 * time.Second // the session expires so long after the last beat
	for name, c := range map[string]struct {
		// renews is when the kubelet renews its Lease, after the last beat; 0 for not at all.
		// status is when it posts its status.
		renews, status time.Duration
		lasts, want    time.Duration
	}{
		"silent like its agent":          {want: beat},
		"one renewal beside the beat":    {renews: 4 * time.Second, want: beat},
		"one renewal later":              {renews: 7 * time.Second, want: 57 * time.Second},
		"one status later":               {status: 15 * time.Second, want: 65 * time.Second},
		"a Lease that is renewed seldom": {lasts: 80 * time.Second, want: 40 * time.Second},
		"a Lease for a year":             {lasts: 365 * 24 * time.Hour, want: beat},
	} {
		t.Run(name, func(t *testing.T) {
			w := probed(t, 4)
			if c.lasts > 0 {
				w.leases["n0"] = nodehealth.Lease{Version: w.next(), RenewTime: wall(w.now), Duration: c.lasts}
				w.pass()
			}
			others, last := w.names[1:], w.now
			at := func(d time.Duration, do func()) {
				if d > 0 {
					w.renewing(d-w.now.Sub(last), others...)
					do()
					w.pass()
				}
			}
			at(c.renews, func() { w.renew("n0", 0) })
			at(c.status, func() { w.report("n0", corev1.ConditionTrue) })
			at(beat, w.expire)
			w.renewing(c.want-w.now.Sub(last), others...)
			w.expectReady("n0", corev1.ConditionTrue)
			w.renewing(300*time.Millisecond, others...)
			w.expectReady("n0", corev1.ConditionUnknown)
		})
	}
}

// A kubelet that its agent sees and that reaches no kube-apiserver gets no Pods. It is marked after
// the grace period, unless no other kubelet renews its Lease either.
func TestPlan_KubeletThatIsCutOffIsMarkedAfterTheGracePeriod(t *testing.T) {
	for name, c := range map[string]struct {
		mode     string
		observes bool
		others   bool
		want     bool
	}{
		"probe":                          {mode: "probe", observes: true, others: true, want: true},
		"probe, and no kubelet renews":   {mode: "probe", observes: true},
		"an agent that observes nothing": {others: true, want: true},
		"endpoint: the agent writes":     {mode: "endpoint", observes: true, others: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := probed(t, 4)
			w.modes["n0"], w.observes["n0"] = c.mode, c.observes
			var others []string
			if c.others {
				others = w.names[1:]
			} else {
				for _, name := range w.names[1:] {
					w.sessions[name] = session.Alive
				}
			}
			w.renewing(50*time.Second, others...)
			w.expectReady("n0", corev1.ConditionTrue)
			w.renewing(300*time.Millisecond, others...)
			if !c.want {
				w.renewing(5*time.Minute, others...)
				w.expectReady("n0", corev1.ConditionTrue)
				return
			}
			w.expectReady("n0", corev1.ConditionUnknown)
			s := w.states["n0"]
			if a := w.rules.Assess(w.now, w.cluster, &s); a.Health != nodehealth.Dead || !a.CutOff {
				t.Errorf("assessed %+v, want dead and cut off", a)
			}
			w.renew("n0", 0)
			w.report("n0", corev1.ConditionTrue)
			w.pass()
			if got := w.health("n0"); got != nodehealth.Alive {
				t.Errorf("a kubelet that is back is %v", got)
			}
		})
	}
}

// What kept all kubelets from kube-apiserver is over for one of them: the others have a grace
// period to return.
func TestPlan_KubeletsThatAreCutOffTogetherHaveAGracePeriodToReturn(t *testing.T) {
	w := probed(t, 4)
	for _, name := range w.names {
		w.sessions[name], w.observes[name], w.modes[name] = session.Alive, true, "probe"
	}
	w.renewing(10 * time.Minute)
	w.renewing(50*time.Second, "n1")
	for _, name := range w.names {
		w.expectReady(name, corev1.ConditionTrue)
	}
	w.renewing(10*time.Second, "n1")
	w.expectReady("n0", corev1.ConditionUnknown)
	w.expectReady("n1", corev1.ConditionTrue)
}

// The grace period of a kubelet that is cut off counts from when its agent could say so: a new
// agent, or a new process of leasesvc, begins it.
func TestPlan_CutOffCountsFromWhenItCouldBeSeen(t *testing.T) {
	for name, begin := range map[string]func(*fixture){
		"the agent begins to probe": func(w *fixture) { w.modes["n0"] = "probe" },
		"leasesvc begins": func(w *fixture) {
			w.modes["n0"] = "probe"
			w.states = map[string]nodehealth.NodeState{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := probed(t, 4)
			w.modes["n0"], w.observes["n0"] = "endpoint", true
			w.renewing(5*time.Minute, w.names[1:]...) // its agent acknowledges
			begin(w)
			w.renewing(50*time.Second, w.names[1:]...)
			w.expectReady("n0", corev1.ConditionTrue)
			w.renewing(300*time.Millisecond, w.names[1:]...)
			w.expectReady("n0", corev1.ConditionUnknown)
		})
	}
}

// The agent of n0 forwards the requests of its kubelet. It says since when all of them fail.
func TestPlan_KubeletWhoseRequestsFailIsMarkedAfterTheGracePeriod(t *testing.T) {
	for name, c := range map[string]struct {
		after time.Duration // something happens so long after the first failure
		event func(*fixture)
		want  time.Duration // when the Node is marked; 0 for never
	}{
		"others reach kube-apiserver": {want: 50 * time.Second},
		"no kubelet does": {event: func(w *fixture) {
			for _, name := range w.names {
				w.cutOff[name] = w.now
			}
		}},
		"served late":          {after: 49 * time.Second, event: func(w *fixture) { delete(w.cutOff, "n0") }},
		"served, and fails":    {after: 30 * time.Second, event: func(w *fixture) { w.cutOff["n0"] = w.now }, want: 80 * time.Second},
		"it posts its status":  {after: 30 * time.Second, event: func(w *fixture) { w.report("n0", corev1.ConditionTrue) }, want: 80 * time.Second},
		"its agent only looks": {event: func(w *fixture) { w.modes["n0"] = "" }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, 4)
			for _, name := range w.names {
				w.sessions[name], w.observes[name], w.modes[name] = session.Alive, true, "endpoint"
			}
			w.renewing(time.Minute)
			begin := w.now
			w.cutOff["n0"] = begin
			w.renewing(c.after)
			if c.event != nil {
				c.event(w)
			}
			if c.want == 0 {
				w.renewing(5 * time.Minute)
				w.expectReady("n0", corev1.ConditionTrue)
				return
			}
			w.renewing(c.want - w.now.Sub(begin))
			w.expectReady("n0", corev1.ConditionTrue)
			w.renewing(300 * time.Millisecond)
			w.expectReady("n0", corev1.ConditionUnknown)
			w.expectReady("n1", corev1.ConditionTrue)
			s := w.states["n0"]
			if a := w.rules.Assess(w.now, w.cluster, &s); a.Health != nodehealth.Dead || !a.CutOff {
				t.Errorf("assessed %+v, want dead and cut off", a)
			}
			delete(w.cutOff, "n0")
			w.pass()
			if got := w.health("n0"); got != nodehealth.Alive {
				t.Errorf("a kubelet that is back is %v", got)
			}
		})
	}
}

// A process that has just begun does not know when the kubelet renewed its Lease.
func TestPlan_NewProcessGivesAKubeletThatRenewsItsLeaseAGracePeriod(t *testing.T) {
	for name, lives := range map[string]bool{"living agent": true, "silent agent": false} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, 4)
			w.sessions["n0"], w.observes["n0"], w.agents["n0"] = session.Expired, true, lives
			w.renewing(50*time.Second, w.names[1:]...)
			w.expectReady("n0", corev1.ConditionTrue)
			w.renewing(200*time.Millisecond, w.names[1:]...)
			w.expectReady("n0", corev1.ConditionUnknown)
		})
	}
}

// Upstream looks at Nodes every five seconds, so it rarely taints a Node that has just registered.
func TestPlan_NodeThatWasNeverReadyGetsItsNoExecuteTaintLater(t *testing.T) {
	w := newFixture(t, 4)
	w.run(20*time.Second, w.names...)
	w.add("new", corev1.ConditionFalse)
	w.run(4900*time.Millisecond, w.names...)
	w.expectTaints("new", notReadySchedule)
	w.run(300*time.Millisecond, w.names...)
	w.expectTaints("new", notReadySchedule, notReadyExecute)

	w.run(20*time.Second, w.names...) // the rate of the zone
	w.add("quick", corev1.ConditionFalse)
	w.run(200*time.Millisecond, w.names...)
	w.report("quick", corev1.ConditionTrue)
	w.run(time.Second, w.names...)
	w.expectTaints("quick")
	w.report("quick", corev1.ConditionFalse) // it was ready
	w.run(100*time.Millisecond, w.names...)
	w.expectTaints("quick", notReadySchedule, notReadyExecute)
}
