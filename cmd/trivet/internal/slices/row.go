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

// The values of STATE.
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
			{Title: "NAME"}, {Title: "STATE", State: true, MinWidth: len(contended)}, {Title: "READY", MinWidth: len("100/100")},
			{Title: "SLICES", MinWidth: len("10/10")}, {Title: "FILL", MinWidth: barWidth + len(" 100%")}, {Title: "PLANNED", MinWidth: len("59m59s")},
			{Title: "FOR", MinWidth: len("COMPACTION")}, {Title: "WRITES", MinWidth: len("+1 ~1 -1")},
			{Title: "TOPOLOGY", Wide: true}, {Title: "LATENCY", Wide: true}, {Title: "SYNCED", Wide: true}, {Title: "SHARD", Wide: true},
			{Title: "EPOCH", Wide: true}, {Title: "UID", Wide: true}, {Title: "REASON"},
		},
		Row:             row,
		State:           state,
		Severity:        severity,
		Problem:         func(service *slicev1.ServiceSlices) string { return cmp.Or(reason(service), state(service)) },
		Summary:         summary,
		WithoutVolatile: withoutVolatile,
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

func severity(service *slicev1.ServiceSlices) list.Severity {
	switch state(service) {
	case contended, failing:
		return list.Critical
	}
	if service.GetTopologyProblem() != "" {
		return list.Warning
	}
	return list.Healthy
}

func stateStyle(service *slicev1.ServiceSlices) printer.Style {
	switch state(service) {
	case kept:
		return printer.Success
	case unmanaged:
		return printer.Dim
	default:
		return printer.Failure
	}
}

func row(now time.Time, service *slicev1.ServiceSlices) []printer.Cell {
	plan := service.GetLastPlan()
	latency := "-"
	if plan.GetLatency() != nil {
		latency = plan.GetLatency().AsDuration().Round(time.Millisecond).String()
	}
	return []printer.Cell{
		{Text: ShortName(service.GetName())}, {Text: state(service), Style: stateStyle(service)},
		{Text: fmt.Sprintf("%d/%d", service.GetReadyEndpoints(), service.GetEndpoints())}, {Text: sliceCount(service)}, {Text: fill(service)},
		{Text: printer.Since(now, plan.GetTime())}, {Text: cmp.Or(plan.GetTrigger(), "-")}, {Text: writes(plan)},
		{Text: cmp.Or(service.GetTopology(), "-")}, {Text: latency}, {Text: printer.Since(now, service.GetLastSyncTime())},
		{Text: fmt.Sprint(service.GetShard())}, {Text: fmt.Sprint(service.GetEpoch())}, {Text: cmp.Or(service.GetUid(), "-")},
		{Text: reason(service)},
	}
}

// sliceCount returns the number of slices, and the smallest possible number of a managed Service.
func sliceCount(service *slicev1.ServiceSlices) string {
	if !service.GetManaged() {
		return fmt.Sprint(len(service.GetSlices()))
	}
	return fmt.Sprintf("%d/%d", len(service.GetSlices()), service.GetIdealSlices())
}

const barWidth = 8

// fill returns the fill of all slices: "████··   57%".
func fill(service *slicev1.ServiceSlices) string {
	capacity := int64(0)
	for _, slice := range service.GetSlices() {
		capacity += int64(slice.GetCapacity())
	}
	if capacity <= 0 {
		return "-"
	}
	share := min(max(float64(service.GetEndpoints())/float64(capacity), 0), 1)
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
		parts = append(parts, by+" changes the same slices")
	}
	if service.GetLastError() != "" {
		parts = append(parts, fmt.Sprintf("%s failed: %s", printer.Count(int(service.GetFailures()), "sync"), service.GetLastError()))
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

func summary(services []*slicev1.ServiceSlices) string {
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
	return fmt.Sprintf("%s: %s; %s in %s, at least %d", printer.Count(len(services), "service"),
		printer.Counts(counts, kept, failing, contended, unmanaged), printer.Count(endpoints, "endpoint"), printer.Count(slices, "slice"), ideal)
}

// withoutVolatile omits versions, syncs without writes, and the fields that depend on the replica
// that holds the shard.
func withoutVolatile(service *slicev1.ServiceSlices) *slicev1.ServiceSlices {
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
