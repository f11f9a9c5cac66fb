package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// drawTable returns a status for people: a headline, a row for each replica, and the problems. It
// depends on the status alone; ages are relative to its merge time.
func drawTable(status *gatewayv1.ClusterStatus, colors printer.Colors) string {
	var text strings.Builder
	fmt.Fprintln(&text, headline(status, colors))
	fmt.Fprintln(&text)
	table := printer.Table{Colors: colors}
	table.AddStyled(printer.Bold, "SERVICE", "REPLICA", "ROLE", "EPOCH", "READY", "LOOPS", "UP", "COUNTS")
	for _, service := range status.GetServices() {
		addService(&table, status, service)
	}
	_, _ = table.WriteTo(&text) // a strings.Builder never fails
	writeProblems(&text, colors, "Problems", serviceProblems(status))
	writeProblems(&text, colors, "Failing loops", loopProblems(status))
	return text.String()
}

func headline(status *gatewayv1.ClusterStatus, colors printer.Colors) string {
	answered := 0
	for _, source := range status.GetSources() {
		if source.GetOk() {
			answered++
		}
	}
	verdict := colors.Apply(printer.Success, "healthy")
	if !status.GetHealthy() {
		verdict = colors.Apply(printer.Failure, "not healthy")
	}
	return fmt.Sprintf("%s: %s, %d of %s answered", colors.Apply(printer.Bold, printer.Sanitize(cmp.Or(status.GetCluster(), "cluster"))), verdict,
		answered, printer.Count(len(status.GetSources()), "replica"))
}

// addService adds a row for each replica of a service, or one row without a replica.
func addService(table *printer.Table, status *gatewayv1.ClusterStatus, service *gatewayv1.ServiceStatus) {
	found := false
	for _, source := range status.GetSources() {
		if source.GetReplica().GetService() != service.GetService() {
			continue
		}
		found = true
		id := source.GetReplica().GetId()
		role, epoch := roleOf(service, id)
		answer := answerOf(service, id)
		if answer == nil {
			if epoch == "-" {
				role = "-" // whether a replica without an answer is a standby is unknown
			}
			table.AddStyled(printer.Failure, service.GetService(), id, role, epoch, "no answer", "-", "-", "-")
			continue
		}
		table.AddStyled(rowStyle(answer), service.GetService(), id, role, epoch, readiness(answer), loopSummary(answer.GetLoops()),
			uptime(status, answer), countList(answer.GetCounts()))
	}
	if !found {
		table.AddStyled(printer.Failure, service.GetService(), "none", "-", "-", "-", "-", "-", "-")
	}
}

func rowStyle(answer *statusv1.GetStatusResponse) printer.Style {
	if answer.GetReady() {
		return printer.Normal
	}
	return printer.Warning
}

func answerOf(service *gatewayv1.ServiceStatus, id string) *statusv1.GetStatusResponse {
	for _, answer := range service.GetReplicas() {
		if answer.GetReplica().GetId() == id {
			return answer
		}
	}
	return nil
}

// roleOf returns the role of a replica and the epoch of its newest term. A service with several
// shards has no leader: each replica holds some shards.
func roleOf(service *gatewayv1.ServiceStatus, id string) (role, epoch string) {
	held, newest := 0, int64(0)
	for _, term := range service.GetTerms() {
		if term.GetReplicaId() == id {
			held++
			newest = max(newest, term.GetEpoch())
		}
	}
	switch total := len(service.GetTerms()); {
	case total == 0:
		return "-", "-"
	case held == 0:
		return "standby", "-"
	case total == 1:
		return "* leader", fmt.Sprint(newest)
	default:
		return fmt.Sprintf("holds %d of %d shards", held, total), fmt.Sprint(newest)
	}
}

func readiness(answer *statusv1.GetStatusResponse) string {
	if answer.GetReady() {
		return "yes"
	}
	return "no"
}

// loopSummary returns the number of loops in each state, the worst state first.
func loopSummary(loops []*statusv1.Loop) string {
	counts := map[statusv1.Loop_State]int{}
	for _, loop := range loops {
		counts[loop.GetState()]++
	}
	var parts []string
	for _, state := range slices.Backward(slices.Sorted(maps.Keys(counts))) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[state], printer.EnumWord(state, "STATE_")))
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

func uptime(status *gatewayv1.ClusterStatus, answer *statusv1.GetStatusResponse) string {
	start := answer.GetReplica().GetStartTime()
	if start == nil {
		return "-"
	}
	return printer.Age(status.GetMergeTime().AsTime().Sub(start.AsTime()))
}

// problem is a problem of a service.
type problem struct{ service, text string }

// serviceProblems returns the reasons why the cluster is not healthy.
func serviceProblems(status *gatewayv1.ClusterStatus) []problem {
	var problems []problem
	for _, service := range status.GetServices() {
		for _, text := range service.GetProblems() {
			problems = append(problems, problem{service: service.GetService(), text: text})
		}
	}
	return problems
}

func firstProblem(status *gatewayv1.ClusterStatus) string {
	problems := serviceProblems(status)
	if len(problems) == 0 {
		return "the gateway names no problem" // a later version may have problems without a service
	}
	first := problems[0].service + ": " + problems[0].text
	if more := len(problems) - 1; more > 0 {
		return fmt.Sprintf("%s (and %d more)", first, more)
	}
	return first
}

// loopProblems returns the failing and stalled loops. Their replicas may still be ready, so they
// are listed apart from the problems of services.
func loopProblems(status *gatewayv1.ClusterStatus) []problem {
	var problems []problem
	for _, service := range status.GetServices() {
		for _, replica := range service.GetReplicas() {
			for _, loop := range replica.GetLoops() {
				if text := loopProblem(loop); text != "" {
					problems = append(problems, problem{service: service.GetService(), text: replica.GetReplica().GetId() + ": loop " + text})
				}
			}
		}
	}
	return problems
}

func loopProblem(loop *statusv1.Loop) string {
	switch loop.GetState() {
	case statusv1.Loop_STATE_FAILING:
		return fmt.Sprintf("%s fails (%d of %s): %s", loop.GetName(), loop.GetFailures(), printer.Count(int(loop.GetRuns()), "pass", "passes"), loop.GetLastError())
	case statusv1.Loop_STATE_STALLED:
		return fmt.Sprintf("%s is stalled since pass %d", loop.GetName(), loop.GetRuns())
	default:
		return ""
	}
}

func writeProblems(text *strings.Builder, colors printer.Colors, title string, problems []problem) {
	if len(problems) == 0 {
		return
	}
	fmt.Fprintf(text, "\n%s\n", colors.Apply(printer.Bold, title))
	table := printer.Table{Colors: colors}
	for _, problem := range problems {
		table.Add(printer.Cell{Text: "  " + problem.service, Style: printer.Failure}, printer.Cell{Text: problem.text})
	}
	_, _ = table.WriteTo(text)
}
