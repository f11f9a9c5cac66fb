package explain

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/evidence"
	"github.com/trivet-dev/trivet/internal/wording"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

const nextZone = "So many nodes at once have one cause more often than many: look at the network and power of the zone first."

func noScheduleLink(f Facts) evidence.Link {
	l := f.nodeLink(CodeNoSchedule)
	missing, extra := nodehealth.NoScheduleDrift(f.Node)
	var keys []string
	for _, t := range f.Node.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoSchedule && strings.HasPrefix(t.Key, "node.kubernetes.io/") {
			keys = append(keys, t.Key)
			l.Time = addedAt(f.Node, t.Key, t.Effect)
		}
	}
	switch {
	case len(missing) > 0:
		return l.Say(evidence.Warning, fmt.Sprintf("%s %s, as its conditions ask for.", strings.Join(missing, ", "), f.due("added")))
	case len(extra) > 0:
		return l.Say(evidence.Warning, fmt.Sprintf("%s %s, as its conditions do not ask for it.", strings.Join(extra, ", "), f.due("removed")))
	case len(keys) == 0:
		return l.Say(evidence.OK, "No condition keeps new pods away.")
	case len(keys) == 1 && keys[0] == corev1.TaintNodeUnschedulable:
		return l.Say(evidence.Warning, "It is cordoned: spec.unschedulable is set, so no new pods come.")
	}
	return l.Say(evidence.Failed, fmt.Sprintf("New pods are kept away by %s.", strings.Join(keys, ", ")))
}

func zoneLink(f Facts) evidence.Link {
	l := evidence.Link{Code: CodeZone, Source: fromHealth}
	zone := "Its zone"
	if f.Zone.Name == "" {
		zone = "The zone of nodes without zone labels"
	}
	count := fmt.Sprintf("%d of %s not ready", f.Zone.NotReady, wording.Count(f.Zone.Size, "node"))
	if f.Excluded {
		count += ", this one not counted"
	}
	disrupted := map[nodehealth.ZoneState]string{
		nodehealth.PartialDisruption: "partially disrupted", nodehealth.FullDisruption: "fully disrupted",
	}[f.Zone.State]
	switch {
	case f.TaintHold.Active():
		return l.Say(evidence.Warning, fmt.Sprintf("%s has %s; no node gets a taint that evicts: %s.", zone, count, f.TaintHold.Message),
			"It ends by itself when node health has read the cluster and a zone has a ready node.")
	case f.Zone.State == nodehealth.Normal:
		return l.Say(evidence.OK, fmt.Sprintf("%s is normal, with %s.", zone, count))
	case f.DryRun:
		return l.Say(evidence.Warning, fmt.Sprintf("%s is %s, with %s; node-health is in dry run and adds no taint.", zone, disrupted, count), nextZone)
	case f.Zone.Rate == 0:
		return l.Say(evidence.Warning, fmt.Sprintf("%s is %s, with %s: no node of it gets a taint that evicts.", zone, disrupted, count), nextZone)
	}
	return l.Say(evidence.Warning, fmt.Sprintf("%s is %s, with %s: its nodes get a taint that evicts at %g per second.", zone, disrupted, count, f.Zone.Rate), nextZone)
}

func noExecuteLink(f Facts) evidence.Link {
	l := f.nodeLink(CodeNoExecute)
	wanted, present := nodehealth.NoExecuteTaints(f.Node)
	added := addedAt(f.Node, present, corev1.TaintEffectNoExecute)
	switch {
	case present != "" && present == wanted:
		return l.At(added).Say(evidence.Failed, fmt.Sprintf("It has %s:NoExecute: pods that do not tolerate that have to leave.", present))
	case present != "" && wanted == "":
		return l.At(added).Say(evidence.Warning, fmt.Sprintf("It has %s:NoExecute, which %s.", present, f.due("removed")))
	case present != "":
		return l.Say(evidence.Failed, fmt.Sprintf("It has %s:NoExecute, which %s.", present, f.due("replaced by "+wanted)))
	case wanted == "":
		return l.Say(evidence.OK, "No taint evicts its pods.")
	}
	needs := fmt.Sprintf("It needs %s:NoExecute, ", wanted)
	switch {
	case f.DryRun:
		return l.Say(evidence.Warning, needs+"which node-health, in dry run, does not add.")
	case f.TaintHold.Active():
		return l.Say(evidence.Warning, needs+fmt.Sprintf("but no taint is added now: %s.", f.TaintHold.Message))
	case f.Zone.Rate == 0:
		return l.Say(evidence.Warning, needs+"but no taint is added in a zone as disrupted as its own.")
	case f.Zone.Waiting == 1:
		return l.Say(evidence.Warning, needs+fmt.Sprintf("and waits as the only one of its zone, at %g per second.", f.Zone.Rate))
	}
	return l.Say(evidence.Warning, needs+fmt.Sprintf("and waits as one of %d of its zone, at %g per second.", f.Zone.Waiting, f.Zone.Rate))
}

func podsLink(f Facts) evidence.Link {
	l := evidence.Link{Code: CodePods, Source: fromPods}
	ready, toMark := 0, 0
	for _, pod := range f.Pods {
		if c := nodehealth.PodReadyCondition(pod); c != nil && c.Status == corev1.ConditionTrue {
			ready++
		}
		if f.Health == Unknown && nodehealth.ReadyOnUnreadyNode(f.Node, pod) {
			toMark++
		}
	}
	pods := wording.Count(len(f.Pods), "pod")
	c := nodehealth.ConditionOf(f.Node, corev1.NodeReady)
	switch {
	case len(f.Pods) == 0:
		return l.Say(evidence.NotApplicable, "There are no pods on it.")
	case c == nil || c.Status == corev1.ConditionTrue:
		return l.Say(evidence.OK, fmt.Sprintf("It has %s, %d ready.", pods, ready))
	case toMark > 0:
		return l.Say(evidence.Warning, fmt.Sprintf("It has %s, of which %d still count as ready, and each %s.", pods, toMark, f.due("marked")))
	}
	return l.Say(evidence.Failed, fmt.Sprintf("It has %s, %d ready: no other gets the traffic of Services.", pods, ready))
}

func evictionLink(f Facts) evidence.Link {
	l := evidence.Link{Code: CodeEviction, Source: fromEviction}
	_, present := nodehealth.NoExecuteTaints(f.Node)
	switch {
	case present == "" && len(f.Pending) == 0:
		return l.Say(evidence.NotApplicable, "None of the taints of node health evicts its pods.")
	case !f.Evicts:
		return l.Say(evidence.Unknown, "Pods that do not tolerate the taint are deleted by the taint-eviction controller of Kubernetes, or by the replica that holds shard 0.",
			"Ask that replica, or look at the Events of the pods: TaintManagerEviction.")
	case len(f.Pending) == 0:
		return l.Say(evidence.OK, "All of its pods tolerate its taints without an end, or are gone.")
	}
	first, pods := f.Pending[0], "1 pod has"
	if n := len(f.Pending); n > 1 {
		pods = fmt.Sprintf("%d pods have", n)
	}
	l.Time = first.Due
	if first.Hold.Active() {
		return l.Say(evidence.Warning, fmt.Sprintf("%s to leave for %s, but not while node health is unreliable: %s.", pods, first.Taint, first.Hold.Message))
	}
	l = l.Say(evidence.Failed, fmt.Sprintf("%s to leave for %s, the first, %s, at %s.", pods, first.Taint, first.Name, wording.Clock(f.Now, first.Due)))
	if first.LastError != "" {
		l.Next = "The last try failed: " + first.LastError
	}
	return l
}

func addedAt(node *corev1.Node, key string, effect corev1.TaintEffect) time.Time {
	for _, t := range node.Spec.Taints {
		if t.Key == key && t.Effect == effect && t.TimeAdded != nil {
			return t.TimeAdded.Time
		}
	}
	return time.Time{}
}
