package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/trivet-dev/trivet/internal/cli/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// drawTable returns a status for people: the verdict, its problems, a row for each replica, and the
// details of what fails. It depends on the status alone; ages are relative to its merge time.
func (c *command) drawTable(response *gatewayv1.GetClusterStatusResponse) string {
	colors := c.Colors()
	status := response.GetStatus()
	var text strings.Builder
	fmt.Fprintln(&text, headline(status, colors))
	writeProblems(&text, colors, status.GetVerdict().GetProblems())
	fmt.Fprintln(&text)
	table := c.NewTable("SERVICE", "VERDICT", "REPLICA", "ROLE", "READY", "LOOPS", "UP", "COUNTS")
	for _, service := range status.GetServices() {
		addService(table, status, service)
	}
	_, _ = table.WriteTo(&text) // a strings.Builder never fails
	writeDetails(&text, colors, status)
	for i, line := range printer.Missing(response.GetMissing()) {
		if i == 0 {
			fmt.Fprintln(&text)
		}
		fmt.Fprintln(&text, colors.Apply(printer.Warning, printer.Sanitize(line)))
	}
	return text.String()
}

func headline(status *gatewayv1.ClusterStatus, colors printer.Colors) string {
	answered, replicas := 0, 0
	for _, service := range status.GetServices() {
		for _, result := range service.GetReplicas() {
			replicas++
			if result.GetStatus() != nil {
				answered++
			}
		}
	}
	verdict := verdictCell(status.GetVerdict())
	return fmt.Sprintf("%s: %s, %d of %s answered", colors.Apply(printer.Bold, printer.Sanitize(cmp.Or(status.GetCluster(), "cluster"))),
		colors.Apply(verdict.Style, verdict.Text), answered, printer.Count(replicas, "replica"))
}

func verdictCell(verdict *metav1.Verdict) printer.Cell {
	cell := printer.Cell{Text: stateOf(verdict), Style: printer.Warning}
	switch verdict.GetState() {
	case metav1.Verdict_STATE_OK:
		cell.Style = printer.Success
	case metav1.Verdict_STATE_FAILED:
		cell.Style = printer.Failure
	}
	return cell
}

// writeProblems writes the problems of a verdict, the worst first, each with what to do next.
func writeProblems(text *strings.Builder, colors printer.Colors, problems []*metav1.Problem) {
	if len(problems) == 0 {
		return
	}
	fmt.Fprintln(text)
	table := printer.Table{Colors: colors}
	for _, problem := range problems {
		resource := cmp.Or(problem.GetResource(), printer.ObjectWithKind(problem.GetObject()), problem.GetService(), "cluster")
		severity := strings.TrimPrefix(problem.GetSeverity().String(), "SEVERITY_")
		table.Add(printer.Cell{Text: severity, Style: printer.SeverityStyle(problem.GetSeverity())},
			printer.Cell{Text: resource}, printer.Cell{Text: cmp.Or(problem.GetMessage(), problem.GetCode())})
		for _, line := range []string{problem.GetNext(), problem.GetHelpUrl()} {
			if line != "" {
				table.Add(printer.Cell{}, printer.Cell{}, printer.Cell{Text: "→ " + line, Style: printer.Dim})
			}
		}
	}
	_, _ = table.WriteTo(text)
}

// addService adds a row for each replica of a service, or one row without a replica.
func addService(table *printer.Table, status *gatewayv1.ClusterStatus, service *gatewayv1.ServiceStatus) {
	name, verdict := printer.Cell{Text: service.GetService()}, verdictCell(service.GetVerdict())
	if len(service.GetReplicas()) == 0 {
		table.Add(name, verdict, printer.Cell{Text: "none", Style: printer.Failure}, printer.Cell{Text: "-"}, printer.Cell{Text: "-"},
			printer.Cell{Text: "-"}, printer.Cell{Text: "-"}, printer.Cell{Text: "-"})
	}
	for _, result := range service.GetReplicas() {
		id, answer := printer.Cell{Text: result.GetReplica().GetId()}, result.GetStatus()
		if answer == nil {
			table.Add(name, verdict, id, printer.Cell{Text: "-"}, printer.Cell{Text: "no answer", Style: printer.Failure},
				printer.Cell{Text: "-"}, printer.Cell{Text: "-"}, printer.Cell{Text: "-"})
			continue
		}
		table.Add(name, verdict, id, printer.Cell{Text: role(answer)}, readiness(answer), printer.Cell{Text: loopSummary(answer.GetLoops())},
			printer.Cell{Text: uptime(status, answer)}, printer.Cell{Text: countList(answer.GetCounts())})
	}
}

// role says which shards of its service a replica leads.
func role(answer *statusv1.ReplicaStatus) string {
	switch led := len(answer.GetLedShards()); {
	case answer.GetShardCount() == 0:
		return "-"
	case led == 0:
		return "standby"
	case answer.GetShardCount() == 1:
		return "leader"
	default:
		return fmt.Sprintf("leads %d of %d shards", led, answer.GetShardCount())
	}
}

func readiness(answer *statusv1.ReplicaStatus) printer.Cell {
	if answer.GetReady() {
		return printer.Cell{Text: "yes"}
	}
	return printer.Cell{Text: "no", Style: printer.Warning}
}

// loopSummary returns the number of loops in each state, the worst state first.
func loopSummary(loops []*statusv1.Loop) string {
	counts := map[statusv1.Loop_State]int{}
	var dry, switched []string
	for _, loop := range loops {
		counts[loop.GetState()]++
		if loop.GetMode() == metav1.Mode_MODE_SHADOW {
			dry = append(dry, printer.Sanitize(loop.GetName()))
		}
		if loop.GetSwitchTime() != nil {
			switched = append(switched, printer.Sanitize(loop.GetName()))
		}
	}
	var parts []string
	for _, state := range slices.Backward(slices.Sorted(maps.Keys(counts))) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[state], printer.EnumWord(state, "STATE_")))
	}
	if len(dry) > 0 {
		parts = append(parts, "in dry run, writing nothing: "+strings.Join(dry, ", "))
	}
	if len(switched) > 0 {
		parts = append(parts, "in --dry-run and switched on: "+strings.Join(switched, ", "))
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

func countList(counts map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s=%d", name, counts[name]))
	}
	return cmp.Or(strings.Join(parts, " "), "-")
}

func uptime(status *gatewayv1.ClusterStatus, answer *statusv1.ReplicaStatus) string {
	start := answer.GetReplica().GetStartTime()
	if start == nil {
		return "-"
	}
	return printer.Age(status.GetMergeTime().AsTime().Sub(start.AsTime()))
}

// writeDetails writes the loops that fail or are stalled, and the dependencies that do not answer.
// They are details of the problems, or of what is no problem yet.
func writeDetails(text *strings.Builder, colors printer.Colors, status *gatewayv1.ClusterStatus) {
	table := printer.Table{Colors: colors}
	found := false
	for _, service := range status.GetServices() {
		for _, result := range service.GetReplicas() {
			for _, detail := range details(result.GetStatus()) {
				found = true
				table.Add(printer.Cell{Text: "  " + result.GetReplica().GetId(), Style: printer.Failure}, printer.Cell{Text: detail})
			}
		}
	}
	if found {
		fmt.Fprintf(text, "\n%s\n", colors.Apply(printer.Bold, "Failing loops and dependencies"))
		_, _ = table.WriteTo(text)
	}
}

func details(answer *statusv1.ReplicaStatus) []string {
	var details []string
	for _, loop := range answer.GetLoops() {
		switch loop.GetState() {
		case statusv1.Loop_STATE_FAILING:
			details = append(details, fmt.Sprintf("loop %s fails (%d of %s): %s", loop.GetName(), loop.GetFailureCount(),
				printer.Count(int(loop.GetRunCount()), "pass", "passes"), loop.GetLastError()))
		case statusv1.Loop_STATE_STALLED:
			details = append(details, fmt.Sprintf("loop %s is stalled since pass %d", loop.GetName(), loop.GetRunCount()))
		}
	}
	for _, dependency := range answer.GetDependencies() {
		if !dependency.GetHealthy() {
			details = append(details, fmt.Sprintf("%s: %s", dependency.GetName(), cmp.Or(dependency.GetMessage(), "no contact")))
		}
	}
	return details
}
