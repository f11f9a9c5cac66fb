package nodes

import (
	"cmp"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
)

func kind() list.Kind[*nodev1.NodeHealth] {
	return list.Kind[*nodev1.NodeHealth]{
		Noun: "node",
		Columns: []list.Column{
			{Title: "NAME"}, {Title: "HEALTH", State: true, MinWidth: len("not-ready")}, {Title: "READY", MinWidth: len("Unknown")},
			{Title: "ZONE"}, {Title: "SEEN", MinWidth: len("59m59s")}, {Title: "SIGNAL", MinWidth: len("lease-object")}, {Title: "LEASE"},
			{Title: "AGENT", Wide: true}, {Title: "KUBELET", Wide: true, MinWidth: len("59m59s")},
			{Title: "EXPIRES", Wide: true}, {Title: "CHANGED", Wide: true}, {Title: "SHARD", Wide: true}, {Title: "EPOCH", Wide: true},
			{Title: "REPLICA", Wide: true}, {Title: "VERSION", Wide: true}, {Title: "UID", Wide: true}, {Title: "REASON", Wide: true},
			{Title: "TAINTS"}, {Title: "MESSAGE"},
		},
		Row:             row,
		State:           func(node *nodev1.NodeHealth) string { return Word(node.GetHealth()) },
		Severity:        func(node *nodev1.NodeHealth) list.Severity { return severity(node.GetHealth()) },
		Problem:         func(node *nodev1.NodeHealth) string { return Word(node.GetHealth()) },
		Summary:         summary,
		WithoutVolatile: withoutVolatile,
		WithoutStale:    withoutStale,
	}
}

// healthPrefix begins the names of healths in the API.
const healthPrefix = "HEALTH_"

// Word returns a health as --health takes it, such as "not-ready".
func Word(health nodev1.NodeHealth_Health) string { return printer.EnumWord(health, healthPrefix) }

// NeedsAttention reports whether a Node of this health needs attention.
func NeedsAttention(health nodev1.NodeHealth_Health) bool { return severity(health) == list.Critical }

func severity(health nodev1.NodeHealth_Health) list.Severity {
	switch health {
	case nodev1.NodeHealth_HEALTH_READY:
		return list.Fine
	case nodev1.NodeHealth_HEALTH_NOT_READY, nodev1.NodeHealth_HEALTH_SILENT, nodev1.NodeHealth_HEALTH_UNKNOWN:
		return list.Critical
	default:
		return list.Warning
	}
}

// healthWords returns the values of --health.
func healthWords() []string { return printer.EnumWords[nodev1.NodeHealth_Health](healthPrefix) }

func row(now time.Time, node *nodev1.NodeHealth) []printer.Cell {
	shard, epoch, replica := printer.Owner(node.GetOwner())
	return []printer.Cell{
		{Text: ShortName(node)}, {Text: Word(node.GetHealth()), Style: severity(node.GetHealth()).Style()}, {Text: cmp.Or(node.GetReady(), "-")},
		{Text: cmp.Or(strings.TrimPrefix(node.GetZone(), "zones/"), "-")}, {Text: age(now, node, lastSignal(node))},
		{Text: printer.EnumWord(lastSignal(node).GetSource(), "SIGNAL_SOURCE_")}, {Text: printer.EnumWord(node.GetLeaseState(), "STATE_")},
		{Text: agent(node)}, {Text: age(now, node, kubeletSignal(node))}, {Text: printer.Due(now, expireTime(node))}, {Text: printer.Since(now, node.GetChangeTime())}, {Text: shard}, {Text: epoch},
		{Text: replica}, {Text: cmp.Or(node.GetResourceVersion(), "-")}, {Text: cmp.Or(node.GetUid(), "-")}, {Text: cmp.Or(node.GetReason(), "-")},
		{Text: taintList(node.GetTaints())}, {Text: message(node)},
	}
}

// lastSignal returns the latest signal of life, which is the first; nil without one.
func lastSignal(node *nodev1.NodeHealth) *nodev1.Signal {
	if signals := node.GetSignals(); len(signals) > 0 {
		return signals[0]
	}
	return nil
}

// expireTime returns when the last signal expires, which decides; nil if none does.
func expireTime(node *nodev1.NodeHealth) *timestamppb.Timestamp {
	var last *timestamppb.Timestamp
	for _, signal := range node.GetSignals() {
		if at := signal.GetExpireTime(); at != nil && (last == nil || at.AsTime().After(last.AsTime())) {
			last = at
		}
	}
	return last
}

// kubeletSignal returns the latest signal of the kubelet itself; nil without one.
func kubeletSignal(node *nodev1.NodeHealth) *nodev1.Signal {
	for _, signal := range node.GetSignals() {
		if signal.GetSource() != nodev1.SignalSource_SIGNAL_SOURCE_AGENT {
			return signal
		}
	}
	return nil
}

// agent returns the mode of the agent, or the name of one that says no mode. It is "none" for a
// Node without a lease, and "-" if the replica does not know the agent of the lease yet.
func agent(node *nodev1.NodeHealth) string {
	if node.GetAgent() == nil && node.GetLeaseState() == leasev1.Lease_STATE_UNSPECIFIED {
		return "none"
	}
	return cmp.Or(node.GetAgent().GetMode(), node.GetAgent().GetName(), "-")
}

// age returns the age of a signal of life; "live" if only missing signals are reported. It is "-"
// for a Node that is alive by its conditions, of which its new leader has no signal yet.
func age(now time.Time, node *nodev1.NodeHealth, signal *nodev1.Signal) string {
	switch {
	case signal == nil || signal.GetSource() == nodev1.SignalSource_SIGNAL_SOURCE_NONE:
		if isAlive(node) && node.GetHealth() != nodev1.NodeHealth_HEALTH_STARTING {
			return "-"
		}
		return "never"
	case signal.GetSeenTime() == nil && isAlive(node):
		return "live"
	default:
		return printer.Since(now, signal.GetSeenTime())
	}
}

func isAlive(node *nodev1.NodeHealth) bool {
	switch node.GetHealth() {
	case nodev1.NodeHealth_HEALTH_STARTING, nodev1.NodeHealth_HEALTH_READY, nodev1.NodeHealth_HEALTH_NOT_READY:
		return true
	default:
		return false
	}
}

// taintList joins taints without their common prefix and names a key once with all its effects:
// "unreachable:NoExecute+NoSchedule". The taints are sorted.
func taintList(taints []string) string {
	var parts []string
	last := ""
	for _, taint := range taints {
		key, effect, _ := strings.Cut(strings.TrimPrefix(taint, "node.kubernetes.io/"), ":")
		if key == last {
			parts[len(parts)-1] += "+" + effect
			continue
		}
		parts, last = append(parts, key+":"+effect), key
	}
	return cmp.Or(strings.Join(parts, ","), "-")
}

// message returns why the Node has its health, and what delays the consequences.
func message(node *nodev1.NodeHealth) string {
	parts := []string{strings.TrimSuffix(node.GetMessage(), ".")}
	if held := Held(node); held != "" {
		parts = append(parts, held)
	}
	return strings.TrimPrefix(strings.Join(parts, "; "), "; ")
}

// Held returns what delays that a Node is marked Unknown or that its Pods are evicted; empty if
// nothing does.
func Held(node *nodev1.NodeHealth) string {
	var parts []string
	if cause := printer.ConditionMessage(node.GetConditions(), "MarkingSuspended", metav1.Condition_STATUS_TRUE); cause != "" {
		parts = append(parts, "not marked Unknown: "+strings.TrimSuffix(cause, "."))
	}
	if cause := printer.ConditionMessage(node.GetConditions(), "EvictionSuspended", metav1.Condition_STATUS_TRUE); cause != "" {
		parts = append(parts, "no Pod is evicted: "+strings.TrimSuffix(cause, "."))
	}
	return strings.Join(parts, "; ")
}

func summary(nodes []*nodev1.NodeHealth) string {
	if len(nodes) == 0 {
		return "no nodes"
	}
	counts := map[string]int{}
	for _, node := range nodes {
		counts[Word(node.GetHealth())]++
	}
	return printer.Count(len(nodes), "node") + ": " + printer.Counts(counts, append(healthWords(), "-")...)
}

// withoutVolatile omits the times of signals, versions, and the fields that depend on the replica
// that leads the shard.
func withoutVolatile(node *nodev1.NodeHealth) *nodev1.NodeHealth {
	copied := withoutTimes(node)
	copied.ResourceVersion, copied.ChangeTime, copied.Owner = "", nil, nil
	for _, condition := range copied.GetConditions() {
		condition.TransitionTime = nil
	}
	return copied
}

// withoutStale omits the times of signals of a Node that is alive, because no event reports the
// next ones.
func withoutStale(node *nodev1.NodeHealth) *nodev1.NodeHealth {
	if !isAlive(node) {
		return node
	}
	return withoutTimes(node)
}

func withoutTimes(node *nodev1.NodeHealth) *nodev1.NodeHealth {
	copied := proto.CloneOf(node)
	for _, signal := range copied.GetSignals() {
		signal.SeenTime, signal.ExpireTime = nil, nil
	}
	return copied
}
