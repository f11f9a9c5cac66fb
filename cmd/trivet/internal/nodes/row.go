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
			{Title: "NAME"}, {Title: "HEALTH", State: true, MinWidth: len("not-ready")}, {Title: "READY", MinWidth: len("Unknown")},
			{Title: "ZONE"}, {Title: "SEEN", MinWidth: len("59m59s")}, {Title: "SOURCE", MinWidth: len("session")}, {Title: "SESSION"},
			{Title: "DEADLINE", Wide: true}, {Title: "CHANGED", Wide: true}, {Title: "SHARD", Wide: true}, {Title: "EPOCH", Wide: true},
			{Title: "VERSION", Wide: true}, {Title: "UID", Wide: true}, {Title: "TAINTS"}, {Title: "REASON"},
		},
		Row:             row,
		State:           func(node *leasev1.NodeHealth) string { return Word(node.GetHealth()) },
		Severity:        func(node *leasev1.NodeHealth) list.Severity { return severity(node.GetHealth()) },
		Problem:         func(node *leasev1.NodeHealth) string { return Word(node.GetHealth()) },
		Summary:         summary,
		WithoutVolatile: withoutVolatile,
		WithoutStale:    withoutStale,
	}
}

// Word returns a health as --health takes it, such as "not-ready".
func Word(health leasev1.NodeHealth_Health) string { return printer.EnumWord(health, "HEALTH_") }

// IsHealthy reports whether a Node of this health needs no attention.
func IsHealthy(health leasev1.NodeHealth_Health) bool { return severity(health) != list.Critical }

func severity(health leasev1.NodeHealth_Health) list.Severity {
	switch health {
	case leasev1.NodeHealth_HEALTH_READY:
		return list.Healthy
	case leasev1.NodeHealth_HEALTH_NOT_READY, leasev1.NodeHealth_HEALTH_SILENT, leasev1.NodeHealth_HEALTH_UNKNOWN:
		return list.Critical
	default:
		return list.Warning
	}
}

// healthWords returns the values of --health.
func healthWords() []string {
	var words []string
	for health := leasev1.NodeHealth_HEALTH_STARTING; health <= leasev1.NodeHealth_HEALTH_UNKNOWN; health++ {
		words = append(words, Word(health))
	}
	return words
}

// healthOf returns the health of a word; unspecified, which selects all, for the empty word.
func healthOf(word string) leasev1.NodeHealth_Health {
	return leasev1.NodeHealth_Health(leasev1.NodeHealth_Health_value[printer.EnumName(word, "HEALTH_")])
}

func row(now time.Time, node *leasev1.NodeHealth) []printer.Cell {
	return []printer.Cell{
		{Text: ShortName(node)}, {Text: Word(node.GetHealth()), Style: severity(node.GetHealth()).Style()}, {Text: cmp.Or(node.GetReady(), "-")},
		{Text: cmp.Or(node.GetZone(), "-")}, {Text: seen(now, node)}, {Text: printer.EnumWord(node.GetSignSource(), "SIGN_SOURCE_")},
		{Text: printer.EnumWord(node.GetSession(), "STATE_")},
		{Text: printer.Due(now, node.GetDeadline())}, {Text: printer.Since(now, node.GetChangeTime())}, {Text: fmt.Sprint(node.GetShard())},
		{Text: fmt.Sprint(node.GetEpoch())}, {Text: cmp.Or(node.GetResourceVersion(), "-")}, {Text: cmp.Or(node.GetUid(), "-")},
		{Text: taintList(node.GetTaints())}, {Text: reason(node)},
	}
}

// seen returns the age of the last sign of life; "live" if only the end of the signs is reported.
func seen(now time.Time, node *leasev1.NodeHealth) string {
	switch {
	case node.GetSignSource() == leasev1.NodeHealth_SIGN_SOURCE_UNSPECIFIED:
		return "never"
	case node.GetSignTime() == nil && isAlive(node):
		return "live"
	default:
		return printer.Since(now, node.GetSignTime())
	}
}

func isAlive(node *leasev1.NodeHealth) bool {
	switch node.GetHealth() {
	case leasev1.NodeHealth_HEALTH_STARTING, leasev1.NodeHealth_HEALTH_READY, leasev1.NodeHealth_HEALTH_NOT_READY:
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

func reason(node *leasev1.NodeHealth) string {
	if cause := node.GetHeldBy(); cause != "" {
		return strings.TrimPrefix(strings.TrimSuffix(node.GetReason(), ".")+"; ", "; ") + "not marked Unknown: " + cause
	}
	return node.GetReason()
}

func summary(nodes []*leasev1.NodeHealth) string {
	if len(nodes) == 0 {
		return "no nodes"
	}
	counts := map[string]int{}
	for _, node := range nodes {
		counts[Word(node.GetHealth())]++
	}
	return printer.Count(len(nodes), "node") + ": " + printer.Counts(counts, append(healthWords(), "-")...)
}

// withoutVolatile omits signs of life, versions, and the fields that depend on the replica that
// holds the shard.
func withoutVolatile(node *leasev1.NodeHealth) *leasev1.NodeHealth {
	copied := proto.CloneOf(node)
	copied.SignTime, copied.Deadline, copied.ResourceVersion = nil, nil, ""
	copied.ChangeTime, copied.Epoch = nil, 0
	return copied
}

// withoutStale omits the last sign of life of an alive Node, because no event reports the next one.
func withoutStale(node *leasev1.NodeHealth) *leasev1.NodeHealth {
	if !isAlive(node) {
		return node
	}
	copied := proto.CloneOf(node)
	copied.SignTime, copied.Deadline = nil, nil
	return copied
}
