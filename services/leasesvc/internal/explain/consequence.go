package explain

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

func noScheduleLink(f Facts) Link {
	l := f.nodeLink(CodeNoSchedule)
	missing, extra := nodehealth.NoScheduleDrift(f.Node)
	var keys []string
	for _, t := range f.Node.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoSchedule && strings.HasPrefix(t.Key, "node.kubernetes.io/") {
			keys = append(keys, t.Key)
			l.Time = since(f.Node, t.Key, t.Effect)
		}
	}
	switch {
	case len(missing) > 0:
		l.Verdict, l.Finding = Doubtful, fmt.Sprintf("%s is about to be added, as its conditions ask for.", strings.Join(missing, ", "))
	case len(extra) > 0:
		l.Verdict, l.Finding = Doubtful, fmt.Sprintf("%s is about to be removed, as its conditions do not ask for it.", strings.Join(extra, ", "))
	case len(keys) == 0:
		l.Verdict, l.Finding = Good, "No condition keeps new pods away."
	case len(keys) == 1 && keys[0] == corev1.TaintNodeUnschedulable:
		l.Verdict, l.Finding = Doubtful, "It is cordoned: somebody set spec.unschedulable, so no new pods come."
	default:
		l.Verdict, l.Finding = Broken, fmt.Sprintf("New pods are kept away by %s.", strings.Join(keys, ", "))
	}
	return l
}

func zoneLink(f Facts) Link {
	l := Link{Code: CodeZone, Source: fromHealth}
	zone := "Its zone"
	if f.Zone.Name == "" {
		zone = "The zone of nodes without zone labels"
	}
	count := fmt.Sprintf("%d of %s not ready", f.Zone.NotReady, plural(f.Zone.Size, "node"))
	if f.Excluded {
		count += ", this one not counted"
	}
	switch {
	case f.TaintsHeldBy != "":
		l.Verdict, l.Next = Doubtful, "It ends by itself once a self-check has passed."
		l.Finding = fmt.Sprintf("%s has %s; nothing is declared or newly evicted: %s.", zone, count, f.TaintsHeldBy)
	case f.Zone.State == nodehealth.Normal:
		l.Verdict, l.Finding = Good, fmt.Sprintf("%s is normal, with %s.", zone, count)
	case f.Zone.Rate == 0:
		l.Verdict, l.Next = Doubtful, "So many nodes at once have one cause more often than many: look at the network and power of the zone first."
		l.Finding = fmt.Sprintf("%s is %s, with %s: no node of it gets a taint that evicts.", zone, disrupted(f.Zone.State), count)
	default:
		l.Verdict, l.Next = Doubtful, "So many nodes at once have one cause more often than many: look at the network and power of the zone first."
		l.Finding = fmt.Sprintf("%s is %s, with %s: its nodes get a taint that evicts at %g per second.", zone, disrupted(f.Zone.State), count, f.Zone.Rate)
	}
	return l
}

func disrupted(state nodehealth.ZoneState) string {
	if state == nodehealth.FullDisruption {
		return "fully disrupted"
	}
	return "partially disrupted"
}

func noExecuteLink(f Facts) Link {
	l := f.nodeLink(CodeNoExecute)
	wanted, present := nodehealth.NoExecuteTaints(f.Node)
	switch {
	case present != "" && present == wanted:
		l.Verdict, l.Time = Broken, since(f.Node, present, corev1.TaintEffectNoExecute)
		l.Finding = fmt.Sprintf("It has %s:NoExecute: pods that do not tolerate that have to leave.", present)
	case present != "" && wanted == "":
		l.Verdict, l.Time = Doubtful, since(f.Node, present, corev1.TaintEffectNoExecute)
		l.Finding = fmt.Sprintf("It has %s:NoExecute, which is about to be removed.", present)
	case present != "":
		l.Verdict, l.Finding = Broken, fmt.Sprintf("It has %s:NoExecute, which is about to give way to %s.", present, wanted)
	case wanted == "":
		l.Verdict, l.Finding = Good, "No taint evicts its pods."
	case f.TaintsHeldBy != "":
		l.Verdict, l.Finding = Doubtful, fmt.Sprintf("It is to get %s:NoExecute, but not while there is doubt: %s.", wanted, f.TaintsHeldBy)
	case f.Zone.Rate == 0:
		l.Verdict, l.Finding = Doubtful, fmt.Sprintf("It is to get %s:NoExecute, but none is given in a zone as disrupted as its own.", wanted)
	default:
		l.Verdict = Doubtful
		l.Finding = fmt.Sprintf("It waits for its turn to get %s:NoExecute, as %s of its zone, at %g per second.",
			wanted, waiting(f.Zone.Waiting), f.Zone.Rate)
	}
	return l
}

func waiting(n int) string {
	if n == 1 {
		return "the only one"
	}
	return fmt.Sprintf("one of %d", n)
}

func podsLink(f Facts) Link {
	l := Link{Code: CodePods, Source: fromPods}
	ready, strayed := 0, 0
	for _, pod := range f.Pods {
		if c := nodehealth.PodReadyCondition(pod); c != nil && c.Status == corev1.ConditionTrue {
			ready++
		}
		if f.Health == Unknown && nodehealth.ReadyOnLostNode(f.Node, pod) {
			strayed++
		}
	}
	healthy := condition(f.Node, corev1.NodeReady)
	switch {
	case len(f.Pods) == 0:
		l.Verdict, l.Finding = Absent, "There are no pods on it."
	case healthy == nil || healthy.Status == corev1.ConditionTrue:
		l.Verdict, l.Finding = Good, fmt.Sprintf("It has %s, %d ready.", plural(len(f.Pods), "pod"), ready)
	case strayed > 0:
		l.Verdict = Doubtful
		l.Finding = fmt.Sprintf("It has %s, of which %d still count as ready and are about to be marked.", plural(len(f.Pods), "pod"), strayed)
	default:
		l.Verdict = Broken
		l.Finding = fmt.Sprintf("It has %s, %d ready: no other gets the traffic of Services.", plural(len(f.Pods), "pod"), ready)
	}
	return l
}

func evictionLink(f Facts) Link {
	l := Link{Code: CodeEviction, Source: fromEviction}
	_, present := nodehealth.NoExecuteTaints(f.Node)
	switch {
	case present == "" && (f.Eviction == nil || len(f.Eviction.Pending) == 0):
		l.Verdict, l.Finding = Absent, "None of the taints of node health evicts its pods."
		return l
	case f.Eviction == nil:
		l.Verdict = Unseen
		l.Finding = "Pods that do not tolerate the taint are deleted by upstream's taint-eviction controller, or by the replica that holds shard 0."
		l.Next = "Ask that replica, or look at the Events of the pods: TaintManagerEviction."
		return l
	case len(f.Eviction.Pending) == 0:
		l.Verdict, l.Finding = Good, "All of its pods tolerate its taints without an end, or are gone."
		return l
	}
	first := f.Eviction.Pending[0]
	l.Verdict, l.Time = Broken, first.Due
	l.Finding = fmt.Sprintf("%s to leave for %s, the first, %s, at %s.", has(len(f.Eviction.Pending)), first.Taint, first.Name, at(f.Now, first.Due))
	switch {
	case first.Held != "":
		l.Verdict = Doubtful
		l.Finding = fmt.Sprintf("%s to leave for %s, but not while there is doubt: %s.", has(len(f.Eviction.Pending)), first.Taint, first.Held)
	case first.LastError != "":
		l.Next = "The last try failed: " + first.LastError
	}
	return l
}

func has(n int) string {
	if n == 1 {
		return "1 pod has"
	}
	return fmt.Sprintf("%d pods have", n)
}
