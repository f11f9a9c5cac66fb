package nodes

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

func kind() list.Kind[*leasev1.NodeHealth] {
	return list.Kind[*leasev1.NodeHealth]{
		Noun: "node",
		Columns: []list.Column{
			{Title: "NAME"}, {Title: "HEALTH", State: true, Width: len("not-ready")}, {Title: "READY", Width: len("Unknown")}, {Title: "ZONE"}, {Title: "SEEN", Width: len("59m59s")},
			{Title: "SOURCE", Width: len("session")}, {Title: "SESSION"},
			{Title: "DEADLINE", Wide: true}, {Title: "CHANGED", Wide: true}, {Title: "SHARD", Wide: true}, {Title: "EPOCH", Wide: true},
			{Title: "VERSION", Wide: true}, {Title: "UID", Wide: true}, {Title: "TAINTS"}, {Title: "REASON"},
		},
		Row:     row,
		State:   func(node *leasev1.NodeHealth) string { return Word(node.GetHealth()) },
		Concern: func(node *leasev1.NodeHealth) list.Concern { return concern(node.GetHealth()) },
		Trouble: func(node *leasev1.NodeHealth) string { return Word(node.GetHealth()) },
		Tally:   tally,
		Quiet:   quiet,
		Watched: watched,
	}
}

func row(now time.Time, node *leasev1.NodeHealth) []printer.Cell {
	return []printer.Cell{
		{Text: ShortName(node)}, {Text: Word(node.GetHealth()), Tone: Tone(node.GetHealth())}, {Text: cmp.Or(node.GetReady(), "-")},
		{Text: cmp.Or(node.GetZone(), "-")}, {Text: seen(now, node)}, {Text: sourceWord(node.GetSignSource())}, {Text: sessionWord(node.GetSession())},
		{Text: printer.Due(now, node.GetDeadline())}, {Text: printer.Since(now, node.GetChangeTime())}, {Text: fmt.Sprint(node.GetShard())},
		{Text: fmt.Sprint(node.GetEpoch())}, {Text: cmp.Or(node.GetResourceVersion(), "-")}, {Text: cmp.Or(node.GetUid(), "-")},
		{Text: taintList(node.GetTaints())}, {Text: reason(node)},
	}
}

// ShortName is a Node's name as Kubernetes has it.
func ShortName(node *leasev1.NodeHealth) string { return strings.TrimPrefix(node.GetName(), "nodes/") }

// seen is how long ago the last sign of life was; "live" stands for signs that come all the time.
func seen(now time.Time, node *leasev1.NodeHealth) string {
	switch {
	case node.GetSignSource() == leasev1.NodeHealth_SIGN_SOURCE_UNSPECIFIED:
		return "never"
	case node.GetSignTime() == nil && isLive(node):
		return "live"
	default:
		return printer.Since(now, node.GetSignTime())
	}
}

// isLive says whether a Node gives signs of life.
func isLive(node *leasev1.NodeHealth) bool {
	switch node.GetHealth() {
	case leasev1.NodeHealth_HEALTH_STARTING, leasev1.NodeHealth_HEALTH_READY, leasev1.NodeHealth_HEALTH_NOT_READY:
		return true
	default:
		return false
	}
}

// watched leaves out when a Node that lives was seen, because no event tells when it is seen again.
func watched(node *leasev1.NodeHealth) *leasev1.NodeHealth {
	if !isLive(node) {
		return node
	}
	copied := proto.CloneOf(node)
	copied.SignTime, copied.Deadline = nil, nil
	return copied
}

func sourceWord(source leasev1.NodeHealth_SignSource) string {
	if source == leasev1.NodeHealth_SIGN_SOURCE_UNSPECIFIED {
		return "-"
	}
	return strings.ToLower(strings.TrimPrefix(source.String(), "SIGN_SOURCE_"))
}

func sessionWord(state leasev1.Lease_State) string {
	if state == leasev1.Lease_STATE_UNSPECIFIED {
		return "-"
	}
	return strings.ToLower(strings.TrimPrefix(state.String(), "STATE_"))
}

// taintList says taints without what all of them have in common, and a key once with all its effects:
// "unreachable:NoExecute+NoSchedule".
func taintList(taints []string) string {
	var said []string
	last := ""
	for _, taint := range taints { // they are ordered, so that those of one key are neighbours
		key, effect, _ := strings.Cut(strings.TrimPrefix(taint, "node.kubernetes.io/"), ":")
		if key == last {
			said[len(said)-1] += "+" + effect
			continue
		}
		said, last = append(said, key+":"+effect), key
	}
	return cmp.Or(strings.Join(said, ","), "-")
}

func reason(node *leasev1.NodeHealth) string {
	if held := node.GetHeldBy(); held != "" {
		return strings.TrimPrefix(strings.TrimSuffix(node.GetReason(), ".")+"; ", "; ") + "not declared: " + held
	}
	return node.GetReason()
}

func tally(nodes []*leasev1.NodeHealth) string {
	if len(nodes) == 0 {
		return "no nodes"
	}
	counts := map[string]int{}
	for _, node := range nodes {
		counts[Word(node.GetHealth())]++
	}
	var parts []string
	for _, word := range append(words(), "-") {
		if counts[word] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[word], word))
		}
	}
	return printer.Count(len(nodes), "node") + ": " + strings.Join(parts, ", ")
}

// quiet leaves out signs of life, which come all the time; versions, which say nothing by themselves; and what differs only
// because another replica judges the Node now.
func quiet(node *leasev1.NodeHealth) *leasev1.NodeHealth {
	copied := proto.CloneOf(node)
	copied.SignTime, copied.Deadline, copied.ResourceVersion = nil, nil, ""
	copied.ChangeTime, copied.Epoch = nil, 0
	return copied
}
