package explain_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/evidence"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

var update = flag.Bool("update", false, "write the present chains to testdata")

func now() time.Time { return time.Date(2026, 3, 4, 3, 0, 0, 0, time.UTC) }

func before(d time.Duration) time.Time { return now().Add(-d) }

// node returns a Node that has the readiness for a while.
func node(ready corev1.ConditionStatus, since time.Duration) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-7", UID: "uid-7", ResourceVersion: "4711"}}
	if ready == "" {
		return n
	}
	c := corev1.NodeCondition{Type: corev1.NodeReady, Status: ready, LastTransitionTime: metav1.NewTime(before(since))}
	switch ready {
	case corev1.ConditionFalse:
		c.Reason, c.Message = "KubeletNotReady", "container runtime network not ready:\n  cni plugin not initialized"
	case corev1.ConditionUnknown:
		c.Reason, c.Message = "NodeStatusUnknown", "Kubelet stopped posting node status."
	}
	n.Status.Conditions = []corev1.NodeCondition{c}
	return n
}

func tainted(n *corev1.Node, since time.Duration, key string, effects ...corev1.TaintEffect) *corev1.Node {
	for _, effect := range effects {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: effect, TimeAdded: &metav1.Time{Time: before(since)}})
	}
	return n
}

// alive is a node that beats over gRPC, in a normal zone.
func alive() explain.Facts {
	return explain.Facts{
		NodeStatus: explain.NodeStatus{
			Node: node(corev1.ConditionTrue, time.Hour), Health: explain.Ready, Heard: before(3 * time.Second), By: nodehealth.SessionBeat,
		},
		Now: now(), Epoch: 901, Sessions: true, Namespace: "kube-node-lease",
		Lease: &explain.Lease{
			State: session.Alive, Boot: "b-1", Epoch: 901, Start: before(time.Hour), Beat: before(3 * time.Second),
			ExpireTime: now().Add(17 * time.Second),
		},
		LeaseObject: nodehealth.Lease{Version: "4700", RenewTime: before(20 * time.Second), Duration: 40 * time.Second, Holder: "node-7"},
		Zone:        nodehealth.Zone{Name: "eu:a", Size: 40, NotReady: 1, Rate: 0.1},
		Pods:        []*corev1.Pod{pod("web", corev1.ConditionTrue, time.Minute), pod("job", corev1.ConditionFalse, time.Minute)},
	}
}

// renews is alive without a session: its kubelet writes the Lease.
func renews() explain.Facts {
	f := alive()
	f.Lease, f.By, f.Heard, f.Deadline = nil, nodehealth.LeaseRenewal, before(4*time.Second), now().Add(46*time.Second)
	f.LeaseObject.RenewTime = before(4 * time.Second)
	return f
}

func pod(name string, ready corev1.ConditionStatus, since time.Duration) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.PodSpec{NodeName: "node-7"}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.NewTime(before(since))}}
	return p
}

// dead is a node that was marked Unknown half a minute ago, after its session had expired.
func dead() explain.Facts {
	f := alive()
	f.Node = tainted(node(corev1.ConditionUnknown, 30*time.Second), 30*time.Second, corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule)
	f.Health, f.Heard, f.Deadline = explain.Unknown, before(50*time.Second), before(30*time.Second)
	f.Lease.State, f.Lease.Beat, f.Lease.ExpireTime = session.Expired, f.Heard, f.Deadline
	f.LeaseObject.RenewTime = f.Heard
	f.Zone.NotReady, f.Zone.Waiting = 3, 2
	f.Pods = []*corev1.Pod{pod("web", corev1.ConditionFalse, 29*time.Second)}
	return f
}

// cutOff is a node that was marked Unknown half a minute ago, while its agent lives.
func cutOff() explain.Facts {
	f := dead()
	f.CutOff, f.Session, f.Heard = true, session.Alive, before(80*time.Second)
	f.Lease.State, f.Lease.Beat, f.Lease.AgentHeard, f.Lease.ExpireTime = session.Alive, before(3*time.Second), before(3*time.Second), now().Add(17*time.Second)
	f.LeaseObject.RenewTime = before(20 * time.Second)
	return f
}

// withNoExecute is dead and has its NoExecute taint, too.
func withNoExecute() explain.Facts {
	f := dead()
	tainted(f.Node, 20*time.Second, corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)
	f.Zone.Waiting = 1
	return f
}

func situations() map[string]func() explain.Facts {
	return map[string]func() explain.Facts{
		"healthy, beats":  alive,
		"healthy, renews": renews,
		"suspect lease": func() explain.Facts {
			f := alive()
			f.Health, f.Heard = explain.Suspect, before(14*time.Second)
			f.Lease.State, f.Lease.Beat, f.Lease.ExpireTime = session.Suspect, f.Heard, now().Add(6*time.Second)
			return f
		},
		"suspect kubelet": func() explain.Facts {
			f := renews()
			f.Health, f.Heard, f.Deadline = explain.Suspect, before(30*time.Second), now().Add(20*time.Second)
			f.LeaseObject.RenewTime = f.Heard
			return f
		},
		"silent, held": func() explain.Facts {
			f := renews()
			f.Health, f.Heard, f.Deadline = explain.Silent, before(55*time.Second), before(5*time.Second)
			f.Delay = nodehealth.ClusterState{}.CheckFailed(1, nodehealth.CheckFailure{Detail: "connection refused"}).Suspension()
			f.TaintHold, f.LeaseObject.RenewTime = nodehealth.NoZoneReadyDelay(), f.Heard
			return f
		},
		"silent, about to be marked": func() explain.Facts {
			f := dead()
			f.Node, f.Health, f.Pods = node(corev1.ConditionTrue, time.Hour), explain.Silent, []*corev1.Pod{pod("web", corev1.ConditionTrue, time.Hour)}
			f.Deadline = before(200 * time.Millisecond)
			return f
		},
		"marked unknown, waits for its rate": dead,
		"marked unknown, whole cluster down": func() explain.Facts {
			f := dead()
			f.Zone.State, f.Zone.Rate, f.Zone.NotReady = nodehealth.FullDisruption, 0, 40
			return f
		},
		"marked unknown, first seen silent": func() explain.Facts {
			f := dead()
			f.Lease, f.By, f.Heard, f.Deadline = nil, nodehealth.GraceStart, before(3*time.Hour), before(3*time.Hour-50*time.Second)
			return f
		},
		"kubelet says not ready": func() explain.Facts {
			f := renews()
			f.Node = tainted(node(corev1.ConditionFalse, 90*time.Second), 90*time.Second, corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule)
			f.Health, f.Zone.Waiting = explain.NotReady, 1
			return f
		},
		"beats but kubelet says not ready": func() explain.Facts {
			f := alive()
			f.Node = tainted(node(corev1.ConditionFalse, 90*time.Second), 90*time.Second, corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute)
			f.Health = explain.NotReady
			return f
		},
		"kubelet dead but agent beats": func() explain.Facts {
			f := dead()
			f.Lease.AgentHeard = before(2 * time.Second)
			return f
		},
		"healthy agent observes the kubelet": func() explain.Facts {
			f := alive()
			f.Lease.Agent, f.Lease.Observes = "trivet-agent v1.2.3 in mode probe", true
			return f
		},
		"cut off for a moment": func() explain.Facts {
			f := alive()
			f.Lease.Agent, f.Lease.Observes, f.Lease.CutOff = "trivet-agent v1.2.3 in mode endpoint", true, before(20*time.Second)
			return f
		},
		"cut off, as its agent says": func() explain.Facts {
			f := cutOff()
			f.By, f.Lease.CutOff = nodehealth.ServedRequest, f.Heard
			return f
		},
		"cut off, as its kubelet renews nothing": func() explain.Facts {
			f := cutOff()
			f.By, f.LeaseObject.RenewTime = nodehealth.LeaseRenewal, f.Heard
			return f
		},
		"agent dead but kubelet renews": func() explain.Facts {
			f := renews()
			f.Lease = &explain.Lease{State: session.Expired, Boot: "b-1", Epoch: 901, Beat: before(time.Minute), ExpireTime: before(40 * time.Second)}
			return f
		},
		"lease deleted": func() explain.Facts {
			f := renews()
			f.LeaseObject, f.Heard = nodehealth.Lease{}, before(8*time.Second)
			return f
		},
		"lease cannot be written": func() explain.Facts {
			f := alive()
			f.Lease.WriteError = "update lease kube-node-lease/node-7: etcdserver: request timed out"
			return f
		},
		"lease of another holder": func() explain.Facts {
			f := alive()
			f.LeaseObject.Holder = "node-8"
			return f
		},
		"never reported": func() explain.Facts {
			f := renews()
			f.Node, f.Health, f.LeaseObject, f.Pods = node("", 0), explain.Starting, nodehealth.Lease{}, nil
			f.By, f.Heard, f.Deadline = nodehealth.GraceStart, before(20*time.Second), now().Add(40*time.Second)
			return f
		},
		"beats, never reported": func() explain.Facts {
			f := alive()
			f.Node, f.Health, f.Pods = node("", 0), explain.HealthOf(node("", 0), nodehealth.Alive), nil
			return f
		},
		"excluded": func() explain.Facts {
			f := alive()
			f.Excluded = true
			return f
		},
		"cordoned": func() explain.Facts {
			f := alive()
			f.Node.Spec.Unschedulable = true
			tainted(f.Node, time.Minute, corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
			return f
		},
		"heard again, not yet reported": func() explain.Facts {
			f := withNoExecute()
			f.Health, f.Heard, f.Deadline = explain.NotReady, before(time.Second), time.Time{}
			f.Lease.State, f.Lease.Beat, f.Lease.ExpireTime = session.Alive, f.Heard, now().Add(19*time.Second)
			return f
		},
		"tainted, evicted elsewhere": withNoExecute,
		"tainted, pods tolerate": func() explain.Facts {
			f := withNoExecute()
			f.Evicts = true
			return f
		},
		"tainted, pods have to leave": func() explain.Facts {
			f := withNoExecute()
			f.Evicts, f.Pending = true, []explain.Pending{
				{Name: "shop/web", Taint: "node.kubernetes.io/unreachable:NoExecute", Due: now().Add(280 * time.Second)},
				{Name: "shop/job", Taint: "node.kubernetes.io/unreachable:NoExecute", Due: now().Add(290 * time.Second)},
			}
			return f
		},
		"tainted, eviction held": func() explain.Facts {
			f := withNoExecute()
			f.Evicts, f.Pending = true, []explain.Pending{{
				Name: "shop/web", Taint: "node.kubernetes.io/unreachable:NoExecute", Due: now(), Hold: nodehealth.NoZoneReadyDelay(),
			}}
			f.TaintHold = nodehealth.NoZoneReadyDelay()
			return f
		},
		"pods being marked": func() explain.Facts {
			f := dead()
			f.Pods = append(f.Pods, pod("late", corev1.ConditionTrue, time.Hour))
			return f
		},
		"dry run, silent": func() explain.Facts {
			f := dead()
			f.DryRun, f.Node, f.Health, f.Deadline = true, node(corev1.ConditionTrue, time.Hour), explain.Silent, before(200*time.Millisecond)
			return f
		},
		"dry run, suspect kubelet": func() explain.Facts {
			f := renews()
			f.DryRun, f.Health, f.Heard, f.Deadline = true, explain.Suspect, before(30*time.Second), now().Add(20*time.Second)
			return f
		},
		"dry run, marked unknown by another controller": func() explain.Facts {
			f := dead()
			f.DryRun, f.Zone.State, f.Zone.Rate, f.Zone.NotReady = true, nodehealth.PartialDisruption, 0.01, 30
			f.Pods = append(f.Pods, pod("late", corev1.ConditionTrue, time.Hour))
			return f
		},
		"no leases here": func() explain.Facts {
			f := renews()
			f.Sessions = false
			return f
		},
	}
}

// Each situation has a file with what a user sees.
func TestExplain(t *testing.T) {
	for name, facts := range situations() {
		t.Run(name, func(t *testing.T) {
			f := facts()
			if f.Lease != nil {
				f.Session = f.Lease.State
			}
			got := rendered(f, explain.Explain(f))
			path := filepath.Join("testdata", strings.NewReplacer(" ", "-", ",", "").Replace(name)+".txt")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("chain (-want +got):\n%s", diff)
			}
		})
	}
}

func rendered(f explain.Facts, c explain.Chain) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\nsilent for %v, first broken %d\n", f.Reason(), f.Message(), c.Silence, c.Broken())
	for _, l := range c.Links {
		fmt.Fprintf(&b, "\n%s %v, from %s", l.Code, l.Result, l.Source)
		if l.Object.Kind != "" {
			fmt.Fprintf(&b, " %s %s", l.Object.Kind, strings.Trim(l.Object.Namespace+"/"+l.Object.Name, "/"))
		}
		fmt.Fprintf(&b, " at version %q, %s\n  %s\n", l.Version, l.Time.Format(time.TimeOnly), l.Message)
		if l.Next != "" {
			fmt.Fprintf(&b, "  -> %s\n", l.Next)
		}
	}
	return b.String()
}

// Broken returns the first broken link of a chain, which always has all links.
func TestExplain_HasAllLinksInOrder(t *testing.T) {
	codes := []string{
		"LEASE", "LAST_BEAT", "EXPIRE_TIME", "LEASE_OBJECT", "READY_CONDITION", "NO_SCHEDULE_TAINT", "ZONE", "NO_EXECUTE_TAINT", "PODS", "EVICTION",
	}
	for name, facts := range situations() {
		chain := explain.Explain(facts())
		var got []string
		first := -1
		for i, l := range chain.Links {
			got = append(got, l.Code)
			if first < 0 && l.Result == evidence.Failed {
				first = i
			}
			if l.Message == "" || l.Result == 0 || l.Time.IsZero() || l.Source == "" {
				t.Errorf("%s: link %s is not complete: %+v", name, l.Code, l)
			}
		}
		if diff := cmp.Diff(codes, got); diff != "" {
			t.Errorf("%s: codes (-want +got):\n%s", name, diff)
		}
		if first != chain.Broken() {
			t.Errorf("%s: first broken is %d, want %d", name, chain.Broken(), first)
		}
	}
}

// Objects may contain any text; what is shown of it is bounded and one line.
func TestExplain_TakesAnyObject(t *testing.T) {
	f := renews()
	f.Health = explain.NotReady
	f.Node = node(corev1.ConditionFalse, 0)
	f.Node.Status.Conditions[0].Message = strings.Repeat("ä\n", 5000)
	f.Node.Status.Conditions[0].LastTransitionTime = metav1.Time{}
	f.LeaseObject.RenewTime, f.LeaseObject.Duration = time.Time{}, -time.Hour
	for _, l := range explain.Explain(f).Links {
		if len(l.Message) > 600 || strings.ContainsAny(l.Message, "\n\x00") {
			t.Errorf("%s: %q", l.Code, l.Message)
		}
	}
}
