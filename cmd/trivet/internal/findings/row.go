package findings

import (
	"cmp"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

func kind() list.Kind[*bootstrapv1.Finding] {
	return list.Kind[*bootstrapv1.Finding]{
		Noun: "finding",
		Columns: []list.Column{
			{Title: "NAME", MinWidth: len("not-allocated.ip-addresses.10.96.100.100")}, {Title: "STATE", State: true, MinWidth: len("repaired")},
			{Title: "AGE", MinWidth: len("59m59s")}, {Title: "REPAIR", MinWidth: len("manual")}, {Title: "OWNER"},
			{Title: "SEEN", Wide: true}, {Title: "OBSERVED", Wide: true}, {Title: "CHANGE", Wide: true}, {Title: "NOT-AUTO", Wide: true},
			{Title: "MESSAGE"},
		},
		Row:      row,
		State:    State,
		Severity: severity,
		Problem: func(finding *bootstrapv1.Finding) string {
			return cmp.Or(finding.GetMessage(), codeWord(finding.GetCode()))
		},
		CriticalWord:    "open",
		DeleteHasState:  true,
		Summary:         summary,
		WithoutVolatile: withoutVolatile,
	}
}

// State returns the state of a finding in one word.
func State(finding *bootstrapv1.Finding) string { return stateWord(finding.GetState()) }

func stateWord(state bootstrapv1.Finding_State) string { return printer.EnumWord(state, "STATE_") }

// HasEnded reports whether a finding was repaired or ended by itself.
func HasEnded(finding *bootstrapv1.Finding) bool {
	return finding.GetState() == bootstrapv1.Finding_STATE_REPAIRED || finding.GetState() == bootstrapv1.Finding_STATE_GONE
}

func severity(finding *bootstrapv1.Finding) list.Severity {
	switch {
	case finding.GetState() == bootstrapv1.Finding_STATE_OPEN:
		return list.Critical
	case HasEnded(finding):
		return list.Healthy
	default:
		return list.Warning
	}
}

func row(now time.Time, finding *bootstrapv1.Finding) []printer.Cell {
	return []printer.Cell{
		{Text: ShortName(finding.GetName())}, {Text: State(finding), Style: severity(finding).Style()},
		{Text: age(now, finding)}, {Text: repairKind(finding)}, {Text: owners(finding.GetOwners())},
		{Text: printer.Since(now, finding.GetLastSeenTime())}, {Text: fmt.Sprint(finding.GetSightings())},
		{Text: cmp.Or(finding.GetRepair(), "-")}, {Text: cmp.Or(finding.GetUnsafeReason(), "-")},
		{Text: finding.GetMessage()},
	}
}

// age returns the time since the first observation; of an ended finding, until its end.
func age(now time.Time, finding *bootstrapv1.Finding) string {
	if end := finding.GetEndTime(); end != nil {
		now = end.AsTime()
	}
	return printer.Since(now, finding.GetFirstSeenTime())
}

// repairKind returns the value of REPAIR.
func repairKind(finding *bootstrapv1.Finding) string {
	switch {
	case HasEnded(finding), finding.GetState() == bootstrapv1.Finding_STATE_PENDING:
		return "-"
	case finding.GetSafe():
		return "auto"
	case finding.GetRepair() != "":
		return "plan"
	default:
		return "manual"
	}
}

// owners returns the first owner and the number of further ones.
func owners(objects []*statusv1.ObjectReference) string {
	if len(objects) == 0 {
		return "-"
	}
	text := printer.Object(objects[0])
	if len(objects) > 1 {
		text += fmt.Sprintf(" and %d more", len(objects)-1)
	}
	return text
}

func summary(findings []*bootstrapv1.Finding) string {
	if len(findings) == 0 {
		return "no findings"
	}
	counts := map[string]int{}
	for _, finding := range findings {
		counts[State(finding)]++
	}
	return printer.Count(len(findings), "finding") + ": " + printer.Counts(counts,
		stateWord(bootstrapv1.Finding_STATE_OPEN), stateWord(bootstrapv1.Finding_STATE_PENDING),
		stateWord(bootstrapv1.Finding_STATE_REPAIRED), stateWord(bootstrapv1.Finding_STATE_GONE))
}

// withoutVolatile omits what each pass changes.
func withoutVolatile(finding *bootstrapv1.Finding) *bootstrapv1.Finding {
	copied := proto.CloneOf(finding)
	copied.LastSeenTime, copied.Sightings = nil, 0
	for _, evidence := range copied.GetEvidence() {
		evidence.Version, evidence.ObserveTime, evidence.ReplicaId = "", nil, ""
	}
	return copied
}
