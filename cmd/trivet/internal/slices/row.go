package slices

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

// The states, as people read them.
const (
	kept      = "kept"
	failing   = "failing"
	contended = "contended"
	unmanaged = "unmanaged"
)

func kind() list.Kind[*slicev1.ServiceSlices] {
	return list.Kind[*slicev1.ServiceSlices]{
		Noun: "service",
		Columns: []list.Column{
			{Title: "NAME"}, {Title: "STATE", State: true, Width: len(contended)}, {Title: "READY", Width: len("100/100")},
			{Title: "SLICES", Width: len("10/10")}, {Title: "FILL", Width: barWidth + len(" 100%")}, {Title: "PLANNED", Width: len("59m59s")},
			{Title: "FOR", Width: len("COMPACTION")}, {Title: "WRITES", Width: len("+1 ~1 -1")},
			{Title: "TOPOLOGY", Wide: true}, {Title: "LATENCY", Wide: true}, {Title: "SYNCED", Wide: true}, {Title: "SHARD", Wide: true},
			{Title: "EPOCH", Wide: true}, {Title: "UID", Wide: true}, {Title: "REASON"},
		},
		Row:     row,
		State:   state,
		Concern: concern,
		Trouble: func(service *slicev1.ServiceSlices) string { return cmp.Or(reason(service), state(service)) },
		Tally:   tally,
		Quiet:   quiet,
		Watched: func(service *slicev1.ServiceSlices) *slicev1.ServiceSlices { return service },
	}
}

func state(service *slicev1.ServiceSlices) string {
	switch {
	case service.GetContendedBy() != "":
		return contended
	case service.GetFailures() > 0:
		return failing
	case !service.GetManaged():
		return unmanaged
	default:
		return kept
	}
}

func concern(service *slicev1.ServiceSlices) list.Concern {
	switch state(service) {
	case contended, failing:
		return list.Ill
	}
	if service.GetTopologyProblem() != "" {
		return list.Doubt
	}
	return list.None
}

func tone(service *slicev1.ServiceSlices) printer.Tone {
	switch state(service) {
	case kept:
		return printer.Good
	case unmanaged:
		return printer.Faint
	default:
		return printer.Bad
	}
}

func row(now time.Time, service *slicev1.ServiceSlices) []printer.Cell {
	plan := service.GetLastPlan()
	latency := "-"
	if plan.GetLatency() != nil {
		latency = plan.GetLatency().AsDuration().Round(time.Millisecond).String()
	}
	return []printer.Cell{
		{Text: ShortName(service.GetName())}, {Text: state(service), Tone: tone(service)},
		{Text: fmt.Sprintf("%d/%d", service.GetReadyEndpoints(), service.GetEndpoints())}, {Text: slicesOf(service)}, {Text: fill(service)},
		{Text: printer.Since(now, plan.GetTime())}, {Text: cmp.Or(plan.GetTrigger(), "-")}, {Text: writes(plan)},
		{Text: cmp.Or(service.GetTopology(), "-")}, {Text: latency}, {Text: printer.Since(now, service.GetLastSyncTime())},
		{Text: fmt.Sprint(service.GetShard())}, {Text: fmt.Sprint(service.GetEpoch())}, {Text: cmp.Or(service.GetUid(), "-")},
		{Text: reason(service)},
	}
}

// slicesOf is how many there are of how many that would do.
func slicesOf(service *slicev1.ServiceSlices) string {
	if !service.GetManaged() {
		return fmt.Sprint(len(service.GetSlices()))
	}
	return fmt.Sprintf("%d/%d", len(service.GetSlices()), service.GetIdealSlices())
}

const barWidth = 8

// fill is how full the slices are, all together: "████··   57%".
func fill(service *slicev1.ServiceSlices) string {
	room := int64(0)
	for _, slice := range service.GetSlices() {
		room += int64(slice.GetCapacity())
	}
	if room <= 0 {
		return "-"
	}
	share := min(max(float64(service.GetEndpoints())/float64(room), 0), 1)
	full := int(share*barWidth + 0.5)
	return fmt.Sprintf("%s%s %3.0f%%", strings.Repeat("█", full), strings.Repeat("·", barWidth-full), share*100)
}

func writes(plan *slicev1.ServiceSlices_LastPlan) string {
	switch {
	case plan == nil:
		return "-"
	case plan.Creates+plan.Updates+plan.Deletes == 0:
		return "none"
	}
	return fmt.Sprintf("+%d ~%d -%d", plan.Creates, plan.Updates, plan.Deletes)
}

func reason(service *slicev1.ServiceSlices) string {
	var parts []string
	if by := service.GetContendedBy(); by != "" {
		parts = append(parts, by+" writes the same slices")
	}
	if service.GetLastError() != "" {
		parts = append(parts, fmt.Sprintf("%s failed: %s", printer.Count(int(service.GetFailures()), "pass", "passes"), service.GetLastError()))
	}
	if problem := service.GetTopologyProblem(); problem != "" {
		parts = append(parts, "no hints: "+problem)
	}
	switch service.GetUnmanagedReason() {
	case "":
	case "NO_SELECTOR":
		parts = append(parts, "it has no selector")
	case "EXTERNAL_NAME":
		parts = append(parts, "it is an ExternalName")
	default:
		parts = append(parts, service.GetUnmanagedReason())
	}
	return strings.Join(parts, "; ")
}

func tally(services []*slicev1.ServiceSlices) string {
	if len(services) == 0 {
		return "no services"
	}
	counts, slices, ideal, endpoints := map[string]int{}, 0, 0, 0
	for _, service := range services {
		counts[state(service)]++
		slices += len(service.GetSlices())
		ideal += int(service.GetIdealSlices())
		endpoints += int(service.GetEndpoints())
	}
	var parts []string
	for _, word := range []string{kept, failing, contended, unmanaged} {
		if counts[word] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[word], word))
		}
	}
	return fmt.Sprintf("%s: %s; %s in %s, where %d would do", printer.Count(len(services), "service"), strings.Join(parts, ", "),
		printer.Count(endpoints, "endpoint"), printer.Count(slices, "slice"), ideal)
}

// quiet leaves out versions and passes that wrote nothing, and what differs only because another replica holds the shard now.
func quiet(service *slicev1.ServiceSlices) *slicev1.ServiceSlices {
	copied := proto.CloneOf(service)
	copied.LastSyncTime, copied.Epoch = nil, 0
	if plan := copied.LastPlan; plan != nil && plan.Creates+plan.Updates+plan.Deletes == 0 {
		copied.LastPlan = nil
	}
	for _, slice := range copied.Slices {
		slice.ResourceVersion, slice.WriteTime = "", nil
	}
	return copied
}
