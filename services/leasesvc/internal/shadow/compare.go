package shadow

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/shadow/difference"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// Reasons of intended differences.
const (
	// EarlierVerdict: upstream waits longer than node-health.
	EarlierVerdict = "EARLIER_VERDICT"
	// TaintRate: a NoExecute taint waits for the rate of its zone.
	TaintRate = "TAINT_RATE"
	// AllZonesDown: no Node has NoExecute taints while all zones are disrupted.
	AllZonesDown = "ALL_ZONES_DOWN"
)

const (
	// UpstreamDelay is how much later than node-health upstream may mark a Node: its grace period
	// of 50 s, and a renewal of 10 s that it may have seen last, less a session's shortest grace.
	UpstreamDelay = time.Minute
	// rateSlack is for the period in which upstream looks at zones.
	rateSlack = 20 * time.Second
)

// Node is what is compared of one Node.
type Node struct {
	// Object is the Node as kube-apiserver has it.
	Object *corev1.Node
	Health nodehealth.Health
	// Judged says that the Node is silent and that a read past the cache confirmed it; JudgedFor is
	// how long ago.
	Judged    bool
	JudgedFor time.Duration
	// UnreadyFor is how long the Ready condition has not been True.
	UnreadyFor time.Duration
	// Zone is the zone of the Node. AllDown says that all zones are disrupted.
	Zone    nodehealth.Zone
	AllDown bool
	// ReadyPods are the ready Pods of a Node that is marked Unknown.
	ReadyPods []*corev1.Pod
}

// Compare returns what node-health would write differently.
func Compare(n Node) []difference.Difference {
	var found []difference.Difference
	if d, differs := n.condition(); differs {
		found = append(found, d)
	}
	found = append(found, n.noSchedule()...)
	if d, differs := n.noExecute(); differs {
		found = append(found, d)
	}
	if labels := nodehealth.LabelDrift(n.Object); len(labels) > 0 {
		d := n.difference(difference.Metadata, "f:labels", "labels follow the stable ones")
		for _, key := range slices.Sorted(maps.Keys(labels)) {
			d.Fields = append(d.Fields, planned.Field{
				Path: fmt.Sprintf("metadata.labels[%q]", key), Before: encode(n.Object.Labels[key]), After: encode(labels[key]),
			})
		}
		found = append(found, d)
	}
	for _, pod := range n.ReadyPods {
		if nodehealth.ReadyOnUnreadyNode(n.Object, pod) {
			found = append(found, readyPod(pod))
		}
	}
	return found
}

func (n *Node) ready() corev1.ConditionStatus {
	if ready := nodehealth.ConditionOf(n.Object, corev1.NodeReady); ready != nil {
		return ready.Status
	}
	return ""
}

// condition compares the verdicts about the silence of the Node.
func (n *Node) condition() (difference.Difference, bool) {
	d := n.difference(difference.Condition, `k:{"type":"Ready"}`, "")
	field := planned.Field{Path: `status.conditions["Ready"].status`, Before: encode(string(n.ready()))}
	switch marked := n.ready() == corev1.ConditionUnknown; {
	case n.Judged && n.Health == nodehealth.Silent && !marked:
		d.Message, field.After = "the node is silent", encode("Unknown")
		if n.JudgedFor < UpstreamDelay {
			d.Reason = EarlierVerdict
		}
	case marked && n.Health != nodehealth.Silent && n.Health != nodehealth.Dead:
		d.Message = fmt.Sprintf("the node is marked Unknown and is %s: it gave a sign of life since", n.Health)
	default:
		return difference.Difference{}, false
	}
	d.Fields = planned.Fields{field}
	return d, true
}

func (n *Node) noSchedule() []difference.Difference {
	missing, extra := nodehealth.NoScheduleDrift(n.Object)
	if len(missing)+len(extra) == 0 {
		return nil
	}
	d := n.difference(difference.Taint, "f:taints", "NoSchedule taints follow the conditions")
	d.Part = string(corev1.TaintEffectNoSchedule)
	for _, key := range missing {
		d.Fields = append(d.Fields, taintField(key, corev1.TaintEffectNoSchedule, false))
	}
	for _, key := range extra {
		d.Fields = append(d.Fields, taintField(key, corev1.TaintEffectNoSchedule, true))
	}
	return []difference.Difference{d}
}

func (n *Node) noExecute() (difference.Difference, bool) {
	wanted, present := nodehealth.NoExecuteTaints(n.Object)
	reason := ""
	if n.AllDown {
		wanted, reason = "", AllZonesDown
	}
	if wanted == present {
		return difference.Difference{}, false
	}
	d := n.difference(difference.Taint, "f:taints", "the NoExecute taint follows the Ready condition")
	d.Part, d.Reason = string(corev1.TaintEffectNoExecute), reason
	if wanted != "" {
		d.Fields = append(d.Fields, taintField(wanted, corev1.TaintEffectNoExecute, false))
		if present == "" && n.waitsForRate() {
			d.Reason = TaintRate
		}
	}
	if present != "" {
		d.Fields = append(d.Fields, taintField(present, corev1.TaintEffectNoExecute, true))
	}
	return d, true
}

// waitsForRate returns whether so many Nodes of the zone wait for a taint that this one may not
// have its turn yet.
func (n *Node) waitsForRate() bool {
	if n.Zone.Rate == 0 {
		return true
	}
	turn := time.Duration(float64(n.Zone.Waiting) / n.Zone.Rate * float64(time.Second))
	return n.Zone.Waiting > 1 && n.UnreadyFor < turn+rateSlack
}

func taintField(key string, effect corev1.TaintEffect, present bool) planned.Field {
	field := planned.Field{Path: fmt.Sprintf("spec.taints[%q]", key+":"+string(effect))}
	if value := encode(map[string]string{"key": key, "effect": string(effect)}); present {
		field.Before = value
	} else {
		field.After = value
	}
	return field
}

// NotEvicted returns the difference of a Pod that is still there though taint-eviction would have
// deleted it for a taint.
func NotEvicted(pod *corev1.Pod, taint corev1.Taint) difference.Difference {
	return difference.Difference{
		Kind: difference.Unwanted, Message: fmt.Sprintf("the pod does not tolerate the taint %s of its node any longer", taint.ToString()),
		Object:  difference.Object{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)},
		Version: pod.ResourceVersion, Writer: writerOf(pod.ManagedFields, "f:spec"), FieldCount: 1,
		Fields: planned.Fields{{Path: fmt.Sprintf("spec.tolerations[%q]", taint.Key), Before: encode(taint.ToString())}},
	}
}

func readyPod(pod *corev1.Pod) difference.Difference {
	return difference.Difference{
		Kind: difference.Condition, Message: "the pod is ready on a node that is not",
		Object:  difference.Object{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)},
		Version: pod.ResourceVersion, Writer: writerOf(pod.ManagedFields, `k:{"type":"Ready"}`), FieldCount: 1,
		Fields: planned.Fields{{Path: `status.conditions["Ready"].status`, Before: encode("True"), After: encode("False")}},
	}
}

func (n *Node) difference(kind difference.Kind, written, message string) difference.Difference {
	return difference.Difference{
		Kind: kind, Message: message, Version: n.Object.ResourceVersion, Writer: writerOf(n.Object.ManagedFields, written),
		Object: difference.Object{APIVersion: "v1", Kind: "Node", Name: n.Object.Name, UID: string(n.Object.UID)},
	}
}

// writerOf returns the field manager that wrote a field last; "" if it is not known.
func writerOf(managed []metav1.ManagedFieldsEntry, field string) string {
	var newest *metav1.ManagedFieldsEntry
	quoted := []byte(encode(field)[1 : len(encode(field))-1]) // as a key in JSON
	for i := range managed {
		entry := &managed[i]
		if entry.FieldsV1 == nil || !bytes.Contains(entry.FieldsV1.GetRawBytes(), quoted) {
			continue
		}
		if newest == nil || entry.Time != nil && (newest.Time == nil || newest.Time.Before(entry.Time)) {
			newest = entry
		}
	}
	if newest == nil {
		return ""
	}
	return newest.Manager
}

// encode returns JSON; "" for an empty string.
func encode(value any) string {
	if value == "" {
		return ""
	}
	text, err := json.Marshal(value)
	if err != nil {
		return ""
	}
	return string(text)
}
