package findings

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

func kind() list.Kind[*bootstrapv1.Finding] {
	return list.Kind[*bootstrapv1.Finding]{
		Noun: "finding",
		Columns: []list.Column{
			{Title: "NAME", MinWidth: len("not-allocated.ip-addresses.10.96.100.100")}, {Title: "STATE", State: true, MinWidth: len("repaired")},
			{Title: "AGE", MinWidth: len("59m59s")}, {Title: "REPAIR", MinWidth: len("manual")}, {Title: "OBJECT"},
			{Title: "SEEN", Wide: true}, {Title: "OBSERVED", Wide: true}, {Title: "CHANGE", Wide: true}, {Title: "NOT-AUTO", Wide: true},
			{Title: "IGNORED", Wide: true}, {Title: "MESSAGE"},
		},
		Row:             row,
		State:           State,
		Severity:        severity,
		Problem:         func(finding *bootstrapv1.Finding) string { return cmp.Or(finding.GetMessage(), finding.GetCode()) },
		CriticalWord:    "open",
		Summary:         summary,
		WithoutVolatile: withoutVolatile,
	}
}

// statePrefix begins the names of states in the API.
const statePrefix = "STATE_"

// State returns the state of a finding in one word.
func State(finding *bootstrapv1.Finding) string {
	return printer.EnumWord(finding.GetState(), statePrefix)
}

// stateWords returns the values of --state.
func stateWords() []string { return printer.EnumWords[bootstrapv1.Finding_State](statePrefix) }

// endedWords returns the states of findings that have ended, standingWords all others.
func endedWords() []string { return []string{"repaired", "resolved", "ended"} }

func standingWords() []string {
	return slices.DeleteFunc(stateWords(), func(word string) bool { return slices.Contains(endedWords(), word) })
}

// HasEnded reports whether a finding does not stand any more.
func HasEnded(finding *bootstrapv1.Finding) bool {
	return slices.Contains(endedWords(), State(finding))
}

func severity(finding *bootstrapv1.Finding) list.Severity {
	switch {
	case finding.GetState() == bootstrapv1.Finding_STATE_OPEN:
		return list.Critical
	case HasEnded(finding), finding.GetState() == bootstrapv1.Finding_STATE_IGNORED:
		return list.Fine
	default:
		return list.Warning
	}
}

func row(now time.Time, finding *bootstrapv1.Finding) []printer.Cell {
	return []printer.Cell{
		{Text: ShortName(finding.GetName())}, {Text: State(finding), Style: severity(finding).Style()},
		{Text: age(now, finding)}, {Text: repairMode(finding)}, {Text: objects(finding.GetObjects())},
		{Text: printer.Since(now, finding.GetLastObserveTime())}, {Text: fmt.Sprint(finding.GetObservationCount())},
		{Text: cmp.Or(finding.GetRepair(), "-")}, {Text: cmp.Or(finding.GetRepairModeMessage(), "-")},
		{Text: cmp.Or(Ignored(finding), "-")}, {Text: finding.GetMessage()},
	}
}

// age returns the time since the first observation; of an ended finding, until its end.
func age(now time.Time, finding *bootstrapv1.Finding) string {
	if end := finding.GetEndTime(); end != nil {
		now = end.AsTime()
	}
	return printer.Since(now, finding.GetFirstObserveTime())
}

// repairMode returns the value of REPAIR.
func repairMode(finding *bootstrapv1.Finding) string {
	if finding.GetState() != bootstrapv1.Finding_STATE_OPEN {
		return "-"
	}
	return printer.EnumWord(finding.GetRepairMode(), "REPAIR_MODE_")
}

// Ignored returns the user that ignores a finding, the end and the comment: "by ada until
// 2026-01-02 03:04:05 UTC: it is wanted". It is empty if the finding is not ignored.
func Ignored(finding *bootstrapv1.Finding) string {
	ignore := finding.GetIgnore()
	if ignore == nil {
		return ""
	}
	text := "until it ends"
	if expiry := ignore.GetExpireTime(); expiry != nil {
		text = "until " + expiry.AsTime().UTC().Format(time.DateTime) + " UTC"
	}
	if user := ignore.GetCaller().GetUser(); user != "" {
		text = "by " + user + " " + text
	}
	if comment := ignore.GetComment(); comment != "" {
		text += ": " + comment
	}
	return text
}

// objects returns the first object that uses the subject and the number of further ones.
func objects(objects []*metav1.ObjectReference) string {
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
	return printer.Count(len(findings), "finding") + ": " + printer.Counts(counts, "open", "pending", "ignored", "repaired", "resolved", "ended", "-")
}

// withoutVolatile omits what each pass changes, and the owner.
func withoutVolatile(finding *bootstrapv1.Finding) *bootstrapv1.Finding {
	copied := proto.CloneOf(finding)
	copied.LastObserveTime, copied.ObservationCount, copied.Owner = nil, 0, nil
	return copied
}
