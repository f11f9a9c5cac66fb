package diagnosis

import (
	"testing"
	"time"
)

func replica(id string, loops ...Loop) Replica {
	return Replica{ID: id, Version: "v1", Ready: true, Started: now.Add(-time.Hour), Loops: loops}
}

func of(service string, replicas ...Replica) Installation {
	return Installation{Services: []Service{{Name: service, Shards: 4, LedShards: 4, Replicas: replicas}}}
}

func loop(name string, state LoopState) Loop { return Loop{Name: name, State: state} }

func TestReplicas(t *testing.T) {
	down, hung, unready := replica("b"), replica("b"), replica("b")
	down.Missing, down.Answered = "connection refused", true
	hung.Missing = "no answer within 1s"
	unready.Ready, unready.Problem = false, "etcd: no session"
	good := replica("a")
	checkAll(t, []judged{
		{"ready", Replicas(of("slicesvc", good, good)), OK, "2 replicas are ready"},
		{"down", Replicas(of("slicesvc", good, down)), Failed, "connection refused"},
		{"hung", Replicas(of("slicesvc", good, hung)), Unknown, "slicesvc b"},
		{"not ready", Replicas(of("slicesvc", good, unready)), Failed, "etcd: no session"},
		{"service without a replica", Replicas(of("slicesvc")), Failed, "slicesvc has no replica"},
		{"nothing", Replicas(Installation{}), Failed, "No replica"},
		{"same version", Versions(of("slicesvc", good), "v1"), OK, "v1"},
		{"other version", Versions(of("slicesvc", good), "v2"), Warning, "slicesvc a has v1"},
	})
}

func TestServices(t *testing.T) {
	leaderless := of("slicesvc")
	leaderless.Services[0].LedShards = 1
	shadow := loop("endpointslices", LoopRunning)
	shadow.Shadow = true
	connected, broken := replica("a"), replica("a")
	connected.Dependencies = []Dependency{{Name: "etcd", Healthy: true}}
	broken.Dependencies = []Dependency{{Name: "etcd", Message: "denied"}}
	checkAll(t, []judged{
		{"led", Shards(of("slicesvc")), OK, "4 shards have"},
		{"leaderless", Shards(leaderless), Failed, "3 of 4 shards of slicesvc"},
		{"loops", Loops(of("slicesvc", replica("a", loop("x", LoopRunning), loop("y", LoopStandby), loop("z", LoopDisabled)))), OK, "2 loops"},
		{"failing loop", Loops(of("slicesvc", replica("a", Loop{Name: "x", State: LoopFailing, Error: "boom"}))), Failed, "boom"},
		{"stalled loop", Loops(of("slicesvc", replica("a", loop("x", LoopStalled)))), Failed, "stalled"},
		{"shadow", Loops(of("slicesvc", replica("a", shadow))), Warning, "write nothing"},
		{"no loop", Loops(Installation{}), Unknown, "no replica"},
		{"connected", Dependencies(of("slicesvc", connected)), OK, "1 connection"},
		{"broken connection", Dependencies(of("slicesvc", broken)), Failed, "denied"},
		{"no connection", Dependencies(Installation{}), Unknown, "no replica"},
		{"verdict OK", Verdict(Installation{Verdict: "OK"}), OK, "OK"},
		{"verdict WARNING", Verdict(Installation{Verdict: "WARNING", Problems: []string{"p"}}), Warning, "p"},
		{"verdict FAILED", Verdict(Installation{Verdict: "FAILED", Problems: []string{"p"}}), Failed, "p"},
		{"verdict UNKNOWN", Verdict(Installation{Verdict: "UNKNOWN"}), Unknown, "UNKNOWN"},
		{"gateway", Gateway("g", Failure{}), OK, "g"},
		{"gateway refuses", Gateway("g", refused), Failed, "refused"},
		{"gateway is silent", Gateway("g", silent), Unknown, "deadline"},
	})
}

func TestLagsAndCoverage(t *testing.T) {
	checkAll(t, []judged{
		{"in time", Lags([]Lag{{Work: "a", Lag: -time.Second}, {Work: "b", Lag: time.Second}}), OK, "b, 1s late"},
		{"late", Lags([]Lag{{Work: "a", Lag: 5 * time.Second}}), Warning, "5s"},
		{"very late", Lags([]Lag{{Work: "a", Lag: time.Minute}, {Work: "b", Lag: time.Hour, Past: true}}), Failed, "a, 1m0s"},
		{"late, and written since", Lags([]Lag{{Work: "b", Lag: time.Hour, Past: true}}), Warning, "b"},
		{"nothing", Lags(nil), Skipped, "No service"},
		{"covered", AgentCoverage(Coverage{Nodes: []string{"a", "b"}, Agents: []string{"b", "a"}}), OK, "2 Nodes have"},
		{"one without", AgentCoverage(Coverage{Nodes: []string{"a", "b"}, Agents: []string{"a"}}), Warning, "1 of 2 Nodes have no agent: b"},
		{"one without, and a missing part", AgentCoverage(Coverage{Nodes: []string{"a", "b"}, Agents: []string{"a"}, Missing: "shard 3"}), Unknown, "shard 3"},
		{"no agent", AgentCoverage(Coverage{Nodes: []string{"a"}}), Skipped, "themselves"},
		{"no Node", AgentCoverage(Coverage{}), Skipped, "no Node"},
	})
}

func TestWriters(t *testing.T) {
	on, off := loop("endpointslices", LoopRunning), loop("endpointslices", LoopDisabled)
	ours, none := of("slicesvc", replica("a", on), replica("b", on)), of("slicesvc", replica("a", off))
	hung := of("slicesvc", Replica{ID: "a", Missing: "no answer"})
	upstream := func(activity Activity, direct bool, age time.Duration) Observation {
		s := Observation{Activity: activity, Direct: direct, Sentence: "it does"}
		if age > 0 {
			s.Last = now.Add(-age)
		}
		return s
	}
	adopting := of("bootstrapsvc", replica("a", loop("kubernetes-endpoints", LoopRunning)))
	alone := of("bootstrapsvc", replica("a", loop("kubernetes-endpoints", LoopRunning)))
	adopting.Services[0].Replicas[0].Adopts = true
	renewing := Observation{Activity: Active, Direct: true, Current: true, Sentence: "a key is renewed"}
	node := of("leasesvc", replica("a", loop("node-health", LoopRunning)))
	checkAll(t, []judged{
		{"ours alone", Writers(Slices, ours, upstream(Inactive, true, 0), now), OK, "slicesvc alone"},
		{"ours, quiet cluster", Writers(Slices, ours, upstream(Unclear, false, 2*time.Hour), now), OK, "has not written since"},
		{"upstream alone", Writers(Slices, none, upstream(Active, true, time.Second), now), OK, "Upstream alone"},
		{"both write", Writers(Slices, ours, upstream(Active, true, time.Minute), now), Failed, "Two programs"},
		{"ours has just begun", Writers(Slices, of("slicesvc", Replica{ID: "a", Started: now, Loops: []Loop{on}}), upstream(Active, true, time.Minute), now), Warning, "may write"},
		{"both by the flag", Writers(Slices, ours, upstream(Active, false, 2*time.Hour), now), Warning, "may write"},
		{"upstream wrote half an hour ago", Writers(Slices, ours, upstream(Unclear, false, 30*time.Minute), now), Warning, "after slicesvc had begun"},
		{"only some replicas", Writers(Slices, of("slicesvc", replica("a", on), replica("b", off)), upstream(Inactive, true, 0), now), Warning, "off in b"},
		{"neither", Writers(Slices, none, upstream(Inactive, true, 0), now), Failed, "No program"},
		{"ours off, upstream unclear", Writers(Slices, none, upstream(Unclear, false, 0), now), Skipped, "is off"},
		{"no answer", Writers(Slices, hung, upstream(Active, true, time.Second), now), Unknown, "did not answer"},
		{"migration of endpoints", Writers(Endpoints, adopting, renewing, now), Warning, "in progress"},
		{"both write endpoints", Writers(Endpoints, alone, renewing, now), Failed, "Two programs"},
		{"both judge Nodes", Writers(Nodes, node, Observation{Activity: Active, Direct: true, Current: true, Last: now.Add(-3 * time.Hour), Sentence: "x"}, now), Failed, "Two programs"},
	})
}
