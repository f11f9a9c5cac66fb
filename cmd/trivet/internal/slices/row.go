package slices

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

// The values of STATE.
const (
	kept      = "kept"
	failing   = "failing"
	contended = "contended"
	partial   = "partial"
	mixed     = "mixed"
	unmanaged = "unmanaged"
)

func kind() list.Kind[*slicev1.ServiceSlices] {
	return list.Kind[*slicev1.ServiceSlices]{
		Noun: "service",
		Columns: []list.Column{
			{Title: "NAME"}, {Title: "STATE", State: true, MinWidth: len(contended)}, {Title: "READY", MinWidth: len("100/100")},
			{Title: "SOURCE", MinWidth: len("endpoints")}, {Title: "SLICES", MinWidth: len("10/10")}, {Title: "FILL", MinWidth: barWidth + len(" 100%")}, {Title: "PLANNED", MinWidth: len("59m59s")},
			{Title: "TRIGGER", MinWidth: len("COMPACTION")}, {Title: "WRITES", MinWidth: len("+1 ~1 -1")},
			{Title: "DROPPED", Wide: true}, {Title: "TOPOLOGY", Wide: true}, {Title: "LATENCY", Wide: true}, {Title: "SYNCED", Wide: true},
			{Title: "SHARD", Wide: true}, {Title: "EPOCH", Wide: true}, {Title: "REPLICA", Wide: true}, {Title: "UID", Wide: true}, {Title: "MESSAGE"},
		},
		Row:             row,
		State:           state,
		Severity:        severity,
		Problem:         func(service *slicev1.ServiceSlices) string { return cmp.Or(message(service), state(service)) },
		Summary:         summary,
		WithoutVolatile: withoutVolatile,
	}
}

func state(service *slicev1.ServiceSlices) string {
	switch {
	case isTrue(service, contendedByOther):
		return contended
	case isFailing(service):
		return failing
	case !isManaged(service):
		return unmanaged
	case isTrue(service, addressesDropped) || droppedAddresses(service) > 0:
		return partial
	case isTrue(service, sourcesOverlap):
		return mixed
	default:
		return kept
	}
}

// Types of conditions.
const (
	contendedByOther = "Contended"
	addressesDropped = "AddressesDropped"
	sourcesOverlap   = "SourcesOverlap"
)

func isTrue(service *slicev1.ServiceSlices, condition string) bool {
	return printer.Condition(service.GetConditions(), condition).GetStatus() == metav1.Condition_STATUS_TRUE
}

// whileTrue returns the message of a condition that is TRUE; empty otherwise.
func whileTrue(service *slicev1.ServiceSlices, condition string) string {
	return printer.ConditionMessage(service.GetConditions(), condition, metav1.Condition_STATUS_TRUE)
}

func isManaged(service *slicev1.ServiceSlices) bool {
	return printer.Condition(service.GetConditions(), "Managed").GetStatus() != metav1.Condition_STATUS_FALSE
}

func isFailing(service *slicev1.ServiceSlices) bool {
	for _, sync := range service.GetSyncs() {
		if sync.GetFailureCount() > 0 {
			return true
		}
	}
	return false
}

// lastSync returns the sync that wrote last; nil if the leader did not answer.
func lastSync(service *slicev1.ServiceSlices) *slicev1.ServiceSlices_Sync {
	var last *slicev1.ServiceSlices_Sync
	for _, sync := range service.GetSyncs() {
		if last == nil || sync.GetLastPlan().GetStartTime().AsTime().After(last.GetLastPlan().GetStartTime().AsTime()) {
			last = sync
		}
	}
	return last
}

func severity(service *slicev1.ServiceSlices) list.Severity {
	switch state(service) {
	case contended, failing:
		return list.Critical
	case partial, mixed:
		return list.Warning
	}
	if noHints(service) != "" {
		return list.Warning
	}
	return list.Fine
}

// noHints returns why slices have no hints although hints are asked for; empty if they have some.
func noHints(service *slicev1.ServiceSlices) string {
	return printer.ConditionMessage(service.GetConditions(), "TopologyHints", metav1.Condition_STATUS_FALSE)
}

func droppedAddresses(service *slicev1.ServiceSlices) int {
	dropped := 0
	for _, sync := range service.GetSyncs() {
		dropped += int(sync.GetDroppedAddressCount())
	}
	return dropped
}

func stateStyle(service *slicev1.ServiceSlices) printer.Style {
	switch state(service) {
	case kept:
		return printer.Success
	case unmanaged:
		return printer.Dim
	case partial, mixed:
		return printer.Warning
	default:
		return printer.Failure
	}
}

func row(now time.Time, service *slicev1.ServiceSlices) []printer.Cell {
	sync := lastSync(service)
	plan := sync.GetLastPlan()
	latency := "-"
	if plan.GetLatency() != nil {
		latency = plan.GetLatency().AsDuration().Round(time.Millisecond).String()
	}
	shard, epoch, replica := printer.Owner(service.GetOwner())
	return []printer.Cell{
		{Text: ShortName(service.GetName())}, {Text: state(service), Style: stateStyle(service)},
		{Text: fmt.Sprintf("%d/%d", service.GetReadyEndpointCount(), service.GetEndpointCount())},
		{Text: sources(service)}, {Text: sliceCount(service)}, {Text: fill(service)},
		{Text: printer.Since(now, plan.GetStartTime())}, {Text: cmp.Or(plan.GetTrigger(), "-")}, {Text: writes(plan)},
		dropped(service), {Text: cmp.Or(service.GetTopology(), "-")}, {Text: latency}, {Text: printer.Since(now, sync.GetLastSuccessTime())},
		{Text: shard}, {Text: epoch}, {Text: replica}, {Text: cmp.Or(service.GetUid(), "-")}, {Text: message(service)},
	}
}

// dropped returns how many addresses of the Endpoints object are in no slice, as far as the leader
// of the shard answered.
func dropped(service *slicev1.ServiceSlices) printer.Cell {
	switch count := droppedAddresses(service); {
	case count > 0:
		return printer.Cell{Text: fmt.Sprint(count), Style: printer.Warning}
	case isTrue(service, addressesDropped):
		return printer.Cell{Text: "some", Style: printer.Warning}
	default:
		return printer.Cell{Text: "-"}
	}
}

// sources returns what the endpoints of the slices come from: "selector", "endpoints" or "both".
func sources(service *slicev1.ServiceSlices) string {
	var words []string
	for _, slice := range service.GetSlices() {
		if word := printer.EnumWord(slice.GetSource(), "SLICE_SOURCE_"); !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	switch len(words) {
	case 0:
		return "-"
	case 1:
		return words[0]
	default:
		return "both"
	}
}

// sliceCount returns the number of slices, and the smallest possible number of a managed Service.
func sliceCount(service *slicev1.ServiceSlices) string {
	if !isManaged(service) {
		return fmt.Sprint(len(service.GetSlices()))
	}
	return fmt.Sprintf("%d/%d", len(service.GetSlices()), service.GetIdealSliceCount())
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
	share := min(max(float64(service.GetEndpointCount())/float64(capacity), 0), 1)
	full := int(share*barWidth + 0.5)
	return fmt.Sprintf("%s%s %3.0f%%", strings.Repeat("█", full), strings.Repeat("·", barWidth-full), share*100)
}

func writes(plan *slicev1.ServiceSlices_LastPlan) string {
	switch {
	case plan == nil:
		return "-"
	case wroteNothing(plan):
		return "none"
	}
	return fmt.Sprintf("+%d ~%d -%d", plan.CreateCount, plan.UpdateCount, plan.DeleteCount)
}

func wroteNothing(plan *slicev1.ServiceSlices_LastPlan) bool {
	return plan.GetCreateCount()+plan.GetUpdateCount()+plan.GetDeleteCount() == 0
}

// message returns what is wrong, or why the Service is unmanaged.
func message(service *slicev1.ServiceSlices) string {
	var parts []string
	if isTrue(service, contendedByOther) {
		parts = append(parts, whileTrue(service, contendedByOther))
	}
	for _, sync := range service.GetSyncs() {
		if sync.GetLastError() != "" {
			parts = append(parts, fmt.Sprintf("%s failed: %s", printer.Count(int(sync.GetFailureCount()), "sync"), sync.GetLastError()))
		}
	}
	if isTrue(service, addressesDropped) {
		parts = append(parts, whileTrue(service, addressesDropped))
	} else if dropped := droppedAddresses(service); dropped > 0 {
		parts = append(parts, printer.Count(dropped, "address is in no slice", "addresses are in no slice"))
	}
	if isTrue(service, sourcesOverlap) {
		parts = append(parts, whileTrue(service, sourcesOverlap))
	}
	if problem := noHints(service); problem != "" {
		parts = append(parts, "no hints: "+problem)
	}
	if !isManaged(service) {
		parts = append(parts, printer.ConditionMessage(service.GetConditions(), "Managed", metav1.Condition_STATUS_FALSE))
	}
	return strings.Join(parts, "; ")
}

func summary(services []*slicev1.ServiceSlices) string {
	if len(services) == 0 {
		return "no services"
	}
	counts, sliceTotal, ideal, endpoints := map[string]int{}, 0, 0, 0
	for _, service := range services {
		counts[state(service)]++
		sliceTotal += len(service.GetSlices())
		ideal += int(service.GetIdealSliceCount())
		endpoints += int(service.GetEndpointCount())
	}
	return fmt.Sprintf("%s: %s; %s in %s, at least %d", printer.Count(len(services), "service"),
		printer.Counts(counts, kept, failing, contended, partial, mixed, unmanaged), printer.Count(endpoints, "endpoint"), printer.Count(sliceTotal, "slice"), ideal)
}

// withoutVolatile omits versions, syncs without writes, and the fields that depend on the replica
// that leads the shard.
func withoutVolatile(service *slicev1.ServiceSlices) *slicev1.ServiceSlices {
	copied := proto.CloneOf(service)
	copied.Owner = nil
	for _, sync := range copied.GetSyncs() {
		sync.LastSuccessTime = nil
		if wroteNothing(sync.GetLastPlan()) {
			sync.LastPlan = nil
		}
	}
	for _, slice := range copied.GetSlices() {
		slice.ResourceVersion, slice.WriteTime = "", nil
	}
	for _, condition := range copied.GetConditions() {
		condition.TransitionTime = nil
	}
	return copied
}
