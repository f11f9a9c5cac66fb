package findings

import (
	"cmp"
	"fmt"
	"strings"
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
			{Title: "NAME", Width: len("not-allocated.ip-addresses.10.96.100.100")}, {Title: "STATE", State: true, Width: len("repaired")},
			{Title: "FOR", Width: len("59m59s")}, {Title: "MEND", Width: len("on request")}, {Title: "OWNER"},
			{Title: "SEEN", Wide: true}, {Title: "SIGHTINGS", Wide: true}, {Title: "REPAIR", Wide: true}, {Title: "NOT-ALONE", Wide: true},
			{Title: "MESSAGE"},
		},
		Row:     row,
		State:   State,
		Concern: concern,
		Trouble: func(finding *bootstrapv1.Finding) string {
			return cmp.Or(finding.GetMessage(), Word(finding.GetCode()))
		},
		Unwell:   "open",
		TellsEnd: true,
		Tally:    tally,
		Quiet:    quiet,
		Watched:  func(finding *bootstrapv1.Finding) *bootstrapv1.Finding { return finding },
	}
}

// State says in a word how a finding stands.
func State(finding *bootstrapv1.Finding) string {
	if finding.GetState() == bootstrapv1.Finding_STATE_UNSPECIFIED {
		return "-"
	}
	return strings.ToLower(strings.TrimPrefix(finding.GetState().String(), "STATE_"))
}

// HasEnded is whether it is not so any more.
func HasEnded(finding *bootstrapv1.Finding) bool {
	return finding.GetState() == bootstrapv1.Finding_STATE_REPAIRED || finding.GetState() == bootstrapv1.Finding_STATE_GONE
}

func concern(finding *bootstrapv1.Finding) list.Concern {
	switch finding.GetState() {
	case bootstrapv1.Finding_STATE_OPEN:
		return list.Ill
	case bootstrapv1.Finding_STATE_REPAIRED, bootstrapv1.Finding_STATE_GONE:
		return list.None
	default:
		return list.Doubt
	}
}

func tone(finding *bootstrapv1.Finding) printer.Tone {
	switch concern(finding) {
	case list.Ill:
		return printer.Bad
	case list.Doubt:
		return printer.Fair
	default:
		return printer.Good
	}
}

func row(now time.Time, finding *bootstrapv1.Finding) []printer.Cell {
	return []printer.Cell{
		{Text: ShortName(finding.GetName())}, {Text: State(finding), Tone: tone(finding)},
		{Text: lasted(now, finding)}, {Text: mend(finding)}, {Text: ownersOf(finding.GetOwners())},
		{Text: printer.Since(now, finding.GetLastSeenTime())}, {Text: fmt.Sprint(finding.GetSightings())},
		{Text: cmp.Or(finding.GetRepair(), "-")}, {Text: cmp.Or(finding.GetUnsafeReason(), "-")},
		{Text: finding.GetMessage()},
	}
}

// lasted is for how long it is so, or was.
func lasted(now time.Time, finding *bootstrapv1.Finding) string {
	if end := finding.GetEndTime(); end != nil {
		now = end.AsTime()
	}
	return printer.Since(now, finding.GetFirstSeenTime())
}

// mend is who may mend it.
func mend(finding *bootstrapv1.Finding) string {
	switch {
	case HasEnded(finding):
		return "-"
	case finding.GetState() == bootstrapv1.Finding_STATE_PENDING:
		return "not yet"
	case finding.GetSafe():
		return "alone"
	case finding.GetRepair() != "":
		return "on request"
	default:
		return "by hand"
	}
}

// ownersOf names the first owner, and how many there are besides.
func ownersOf(owners []*statusv1.ObjectReference) string {
	if len(owners) == 0 {
		return "-"
	}
	words := owners[0].GetName()
	if namespace := owners[0].GetNamespace(); namespace != "" {
		words = namespace + "/" + words
	}
	if len(owners) > 1 {
		words += fmt.Sprintf(" and %d more", len(owners)-1)
	}
	return words
}

func tally(findings []*bootstrapv1.Finding) string {
	if len(findings) == 0 {
		return "no findings"
	}
	counts := map[bootstrapv1.Finding_State]int{}
	for _, finding := range findings {
		counts[finding.GetState()]++
	}
	var parts []string
	for _, state := range []bootstrapv1.Finding_State{
		bootstrapv1.Finding_STATE_OPEN, bootstrapv1.Finding_STATE_PENDING, bootstrapv1.Finding_STATE_REPAIRED, bootstrapv1.Finding_STATE_GONE,
	} {
		if counts[state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[state], State(&bootstrapv1.Finding{State: state})))
		}
	}
	return printer.Count(len(findings), "finding") + ": " + strings.Join(parts, ", ")
}

// quiet leaves out what every pass moves.
func quiet(finding *bootstrapv1.Finding) *bootstrapv1.Finding {
	copied := proto.CloneOf(finding)
	copied.LastSeenTime, copied.Sightings = nil, 0
	for _, link := range copied.GetEvidence() {
		link.Version, link.ObserveTime, link.ReplicaId = "", nil, ""
	}
	return copied
}
