package diagnosis

import (
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// judged is a result that a table expects.
type judged struct {
	name   string
	result Result
	state  State
	text   string // part of the sentence
}

func checkAll(t *testing.T, table []judged) {
	t.Helper()
	seen := map[State]bool{}
	for _, row := range table {
		seen[row.state] = true
		if row.result.State != row.state || !strings.Contains(row.result.Found, row.text) {
			t.Errorf("%s: %s %q; want %s with %q", row.name, row.result.State, row.result.Found, row.state, row.text)
		}
		if !strings.HasSuffix(row.result.Found, ".") || strings.HasSuffix(row.result.Found, "..") {
			t.Errorf("%s: %q is no sentence", row.name, row.result.Found)
		}
	}
	if !seen[OK] {
		t.Error("the table has no good row")
	}
}

var (
	refused = Failure{Text: "connection refused", Answered: true}
	silent  = Failure{Text: "deadline exceeded"}
)

func TestKubernetes(t *testing.T) {
	checkAll(t, []judged{
		{"tested version", KubernetesVersion(Version{1, 37, "v1.37.1"}), OK, "v1.37.1"},
		{"older version", KubernetesVersion(Version{1, 31, "v1.31.0"}), Warning, "tested with 1.37"},
		{"all APIs", APIs([]API{{Name: "a", Served: true}, {Name: "b", Served: true, Optional: true}}), OK, "2 APIs"},
		{"no optional API", APIs([]API{{Name: "a", Served: true}, {Name: "b", Optional: true}}), Warning, "does not serve b"},
		{"no required API", APIs([]API{{Name: "a"}, {Name: "b", Optional: true}}), Failed, "does not serve a"},
	})
}

func TestRights(t *testing.T) {
	allowed := Right{Verb: "get", Resource: "pods", Allowed: true}
	denied := Right{Verb: "create", Group: "apps", Resource: "deployments", Namespace: "x"}
	unclear := Right{Verb: "list", Resource: "nodes", Failure: silent}
	escalate := Right{Verb: "escalate", Resource: "clusterroles", Optional: true}
	both := func(rights ...Right) []Identity {
		return []Identity{{"account", rights}, {"user", []Right{denied, denied}}}
	}
	checkAll(t, []judged{
		{"all", InstallRights([]Right{allowed, allowed}), OK, "all 2 rights"},
		{"one denied", InstallRights([]Right{allowed, denied, unclear}), Failed, "create deployments.apps in x"},
		{"one unclear", InstallRights([]Right{allowed, unclear}), Unknown, "list nodes"},
		{"an optional one denied", InstallRights([]Right{allowed, escalate}), Warning, "but you may not escalate"},
		{"server with all", ServerRights("slicesvc", true, both(allowed, allowed)), OK, "account has all"},
		{"server without one", ServerRights("slicesvc", true, both(allowed, denied)), Failed, "account may not create"},
		{"server with another identity", ServerRights("slicesvc", true, both(denied, denied)), Unknown, "no known identity"},
		{"server that does not run", ServerRights("slicesvc", false, both(allowed, denied)), Skipped, "No replica"},
		{"server, no decision", ServerRights("slicesvc", true, []Identity{{"account", []Right{allowed, unclear}}}), Unknown, "deadline"},
	})
}

func TestClocks(t *testing.T) {
	clock := func(offset, uncertain time.Duration) []Clock {
		return []Clock{{"a", 0, 0}, {"b", offset, uncertain}}
	}
	checkAll(t, []judged{
		{"agree", Clocks(clock(-time.Second, 0)), OK, "2 servers"},
		{"ahead", Clocks(clock(5*time.Second, 0)), Warning, "of b is 5s ahead of"},
		{"slow answer", Clocks(clock(5*time.Second, 4*time.Second)), OK, "agree"},
		{"far behind", Clocks(clock(-2*time.Minute, 0)), Failed, "2m0s behind"},
		{"none", Clocks(nil), Unknown, "no server"},
	})
}

func TestCertificates(t *testing.T) {
	lasting := func(before, after time.Duration) Certificate {
		return Certificate{Name: "c", NotBefore: now.Add(-before), NotAfter: now.Add(after)}
	}
	checkAll(t, []judged{
		{"fresh", Certificates([]Certificate{lasting(time.Hour, 9*time.Hour), lasting(time.Hour, 8*time.Hour)}, now), OK, "2026-01-02 11:04"},
		{"last tenth", Certificates([]Certificate{lasting(95*time.Hour, 5*time.Hour)}, now), Warning, "expires at"},
		{"expired", Certificates([]Certificate{lasting(9*time.Hour, -time.Hour), lasting(0, time.Hour)}, now), Failed, "expired at"},
		{"not yet valid", Certificates([]Certificate{lasting(-time.Hour, 2*time.Hour)}, now), Failed, "valid only from"},
		{"unreadable", Certificates([]Certificate{{Name: "c", Problem: "no certificate found"}, lasting(0, time.Hour)}, now), Failed, "no certificate found"},
		{"none", Certificates(nil, now), Skipped, "no certificate"},
	})
}

func TestEtcd(t *testing.T) {
	good := EtcdMember{Endpoint: "a", Version: "3.7.0"}
	checkAll(t, []judged{
		{"all", EtcdMembers([]EtcdMember{good, good}), OK, "2 members"},
		{"one refuses", EtcdMembers([]EtcdMember{good, {Endpoint: "b", Failure: refused}}), Warning, "1 of 2"},
		{"one is silent", EtcdMembers([]EtcdMember{good, {Endpoint: "b", Failure: silent}}), Warning, "b: deadline"},
		{"old", EtcdMembers([]EtcdMember{{Endpoint: "a", Version: "3.4.30"}}), Warning, "3.4.30"},
		{"all refuse", EtcdMembers([]EtcdMember{{Endpoint: "a", Failure: refused}}), Failed, "connection refused"},
		{"one refuses, one is silent", EtcdMembers([]EtcdMember{{Endpoint: "a", Failure: refused}, {Endpoint: "b", Failure: silent}}), Unknown, "no member"},
		{"alarm", EtcdMembers([]EtcdMember{good, {Endpoint: "b", Version: "3.7.0", Alarms: []string{"NOSPACE"}}}), Failed, "NOSPACE"},
		{"fast", EtcdTransactions(EtcdTransaction{Took: 2 * time.Millisecond}), OK, "2ms"},
		{"slow", EtcdTransactions(EtcdTransaction{Took: 900 * time.Millisecond}), Warning, "900ms"},
		{"kine", EtcdTransactions(EtcdTransaction{Wrong: "a transaction ignores its condition"}), Failed, "no etcd with v3"},
		{"denied", EtcdTransactions(EtcdTransaction{Step: "grant a lease", Failure: refused}), Failed, "refused to grant a lease"},
		{"silent", EtcdTransactions(EtcdTransaction{Step: "grant a lease", Failure: silent}), Unknown, "grant a lease"},
	})
}

func TestMachine(t *testing.T) {
	node := KubeletIdentity{Path: "f", User: "system:node:n1", Groups: []string{"system:nodes"}, Certificate: Certificate{NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}}
	person, expired := node, node
	person.User = "ann"
	expired.Certificate.NotAfter = now.Add(-time.Minute)
	conditions := func(runtime, network bool) map[string]bool {
		return map[string]bool{"RuntimeReady": runtime, "NetworkReady": network}
	}
	checkAll(t, []judged{
		{"free ports", Ports([]Port{{Address: ":1"}}), OK, "1 port"},
		{"used port", Ports([]Port{{Address: ":1"}, {Server: "slicesvc", Address: ":2", Failure: refused}}), Failed, ":2 (slicesvc)"},
		{"unclear port", Ports([]Port{{Address: ":1", Failure: silent}}), Unknown, ":1"},
		{"healthy kubelet", KubeletHealth(Healthz{URL: "u", Code: 200}), OK, "healthy"},
		{"unhealthy kubelet", KubeletHealth(Healthz{URL: "u", Code: 500, Body: "pleg"}), Failed, "500 at u: pleg"},
		{"no kubelet", KubeletHealth(Healthz{Failure: refused}), Failed, "does not listen"},
		{"silent kubelet", KubeletHealth(Healthz{URL: "u", Failure: silent}), Unknown, "no answer"},
		{"identity of a node", KubeletKubeconfig(node, now), OK, "node n1"},
		{"identity of a person", KubeletKubeconfig(person, now), Failed, `user "ann"`},
		{"expired identity", KubeletKubeconfig(expired, now), Failed, "expired"},
		{"no kubeconfig", KubeletKubeconfig(KubeletIdentity{Path: "f", Failure: refused}, now), Failed, "f cannot be used"},
		{"kubeconfig of root", KubeletKubeconfig(KubeletIdentity{Path: "f", Failure: silent}, now), Unknown, "f: "},
		{"runtime", ContainerRuntime(Runtime{Name: "containerd", Version: "2", Conditions: conditions(true, true)}), OK, "containerd 2"},
		{"runtime without network", ContainerRuntime(Runtime{Name: "containerd", Conditions: conditions(true, false)}), Warning, "hostNetwork"},
		{"runtime not ready", ContainerRuntime(Runtime{Name: "containerd", Conditions: conditions(false, true)}), Failed, "not ready"},
		{"no runtime", ContainerRuntime(Runtime{Failure: refused}), Failed, "cannot be used"},
		{"silent runtime", ContainerRuntime(Runtime{Failure: silent}), Unknown, "deadline"},
	})
}

func TestSummarize_FailedBeforeUnknownBeforeWarning(t *testing.T) {
	results := []Result{{State: Skipped}, {State: OK}}
	for _, state := range []State{OK, Warning, Unknown, Failed} {
		results = append(results, Result{State: state})
		if worst := Summarize(results).Worst(); worst != state {
			t.Errorf("worst = %s, want %s", worst, state)
		}
	}
}

func TestCatalogue_EntriesAreWholeAndUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Catalogue() {
		if seen[c.ID] || c.Category == "" || c.Reads == "" || c.Action == "" || strings.HasSuffix(c.Action, ".") {
			t.Errorf("entry %+v", c)
		}
		if c.Pre != strings.HasPrefix(c.ID, "pre-") {
			t.Errorf("%s: Pre is %t", c.ID, c.Pre)
		}
		seen[c.ID] = true
	}
}

func TestPods(t *testing.T) {
	of := func(server, agent string) Result {
		return Pods(PodAdmissions{Namespace: "trivet-system", Pods: []PodAdmission{{ServerPod, server}, {JobPod, ""}, {AgentPod, agent}}})
	}
	checkAll(t, []judged{
		{"all are taken", of("", ""), OK, "takes the Pods"},
		{"a server is refused", of("violates PodSecurity", ""), Failed, "the servers (violates PodSecurity)"},
		{"an agent is refused", of("", "violates PodSecurity"), Warning, "the agents (violates PodSecurity)"},
		{"a quota is missing", of("insufficient quota to match these scopes: [{PriorityClass In [system-cluster-critical]}]", ""), Warning, "PriorityClass In"},
		{"no namespace", Pods(PodAdmissions{Namespace: "trivet-system", Absent: true}), Skipped, "trivet-system does not exist"},
	})
}
