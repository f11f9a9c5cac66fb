package diagnosis

import "testing"

func TestWorkloads(t *testing.T) {
	ready := WorkloadPod{Name: "a"}
	crashing := WorkloadPod{Name: "b", Problem: "container server waits (CrashLoopBackOff)", Stuck: true, LastLine: "--loops: unknown loop"}
	unready := WorkloadPod{Name: "c", Problem: "it is not ready"}
	workload := func(kind string, wanted int, pods ...WorkloadPod) []Workload {
		return []Workload{{Kind: kind, Name: "slicesvc", Service: "slicesvc", Wanted: wanted, Pods: pods}}
	}
	refused := []Workload{{Kind: "Deployment", Name: "gateway", Service: "gateway", Wanted: 2, Problem: "exceeded quota"}}
	both := of("slicesvc", replica("x"), replica("y"))
	checkAll(t, []judged{
		{"all joined", Workloads(workload("Deployment", 2, ready, ready), both), OK, "2 Pods are ready, as 1 workload wants"},
		{"a crash loop beside what joined", Workloads(workload("Deployment", 2, ready, ready, crashing), both), Failed, `Pod b: container server waits (CrashLoopBackOff); its log ends with "--loops: unknown loop"`},
		{"a Pod that is not ready", Workloads(workload("Deployment", 1, unready), both), Failed, "Pod c: it is not ready"},
		{"no Pod", Workloads(workload("StatefulSet", 3, ready), both), Failed, "StatefulSet slicesvc has 1 of 3 Pods"},
		{"Pods are refused", Workloads(refused, both), Failed, "Deployment gateway gets no Pod: exceeded quota"},
		{"ready and not joined", Workloads(workload("Deployment", 3, ready, ready, ready), both), Failed, "has 3 ready Pods, of which 2 joined"},
		{"without an answer of the gateway", Workloads(workload("Deployment", 2, ready, ready), Installation{}), OK, "2 Pods"},
		{"an agent on a Node that is down", Workloads(workload("DaemonSet", 2, ready, unready), both), Warning, "Pod c"},
		{"an agent in a crash loop", Workloads(workload("DaemonSet", 2, ready, crashing), both), Failed, "Pod b"},
		{"no workload", Workloads(nil, both), Skipped, "No Deployment"},
	})
}
