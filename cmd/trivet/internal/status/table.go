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

// draw shows a status to people: a headline, a row per replica, then what is wrong and why. It depends on the status alone;
// ages are as of its merge.
func draw(status *gatewayv1.ClusterStatus, ink printer.Ink) string {
	var text strings.Builder
	fmt.Fprintln(&text, headline(status, ink))
	fmt.Fprintln(&text)
	rows := printer.Table{Ink: ink}
	rows.AddAll(printer.Strong, "SERVICE", "REPLICA", "ROLE", "EPOCH", "READY", "LOOPS", "UP", "COUNTS")
	for _, service := range status.GetServices() {
		addService(&rows, status, service)
	}
	_, _ = rows.WriteTo(&text) // a strings.Builder takes everything
	writeTroubles(&text, ink, "Problems", problemsOf(status))
	writeTroubles(&text, ink, "Loops in trouble", loopTroubles(status))
	return text.String()
}

func headline(status *gatewayv1.ClusterStatus, ink printer.Ink) string {
	answered := 0
	for _, source := range status.GetSources() {
		if source.GetOk() {
			answered++
		}
	}
	verdict := ink.Dye(printer.Good, "healthy")
	if !status.GetHealthy() {
		verdict = ink.Dye(printer.Bad, "not healthy")
	}
	return fmt.Sprintf("%s: %s, %d of %s answered", ink.Dye(printer.Strong, printer.Plain(cmp.Or(status.GetCluster(), "cluster"))), verdict,
		answered, printer.Count(len(status.GetSources()), "replica"))
}

// addService adds a row per replica of a service, or one that says there is none.
func addService(rows *printer.Table, status *gatewayv1.ClusterStatus, service *gatewayv1.ServiceStatus) {
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
				role = "-" // what a silent replica does not lead, it may not stand by for either
			}
			rows.AddAll(printer.Bad, service.GetService(), id, role, epoch, "no answer", "-", "-", "-")
			continue
		}
		rows.AddAll(tone(answer), service.GetService(), id, role, epoch, readiness(answer), loopSummary(answer.GetLoops()),
			uptime(status, answer), countList(answer.GetCounts()))
	}
	if !found {
		rows.AddAll(printer.Bad, service.GetService(), "none", "-", "-", "-", "-", "-", "-")
	}
}

func tone(answer *statusv1.GetStatusResponse) printer.Tone {
	if answer.GetReady() {
		return printer.Usual
	}
	return printer.Fair
}

func answerOf(service *gatewayv1.ServiceStatus, id string) *statusv1.GetStatusResponse {
	for _, answer := range service.GetReplicas() {
		if answer.GetReplica().GetId() == id {
			return answer
		}
	}
	return nil
}

// roleOf says what a replica does in its service, and the newest epoch it does it under. Where the work is divided into
// shards nobody leads: each replica holds some.
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

// loopSummary counts the loops by state, the worst first.
func loopSummary(loops []*statusv1.Loop) string {
	counts := map[statusv1.Loop_State]int{}
	for _, loop := range loops {
		counts[loop.GetState()]++
	}
	var parts []string
	for _, state := range slices.Backward(slices.Sorted(maps.Keys(counts))) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[state], stateWord(state)))
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

func stateWord(state statusv1.Loop_State) string {
	return strings.ToLower(strings.TrimPrefix(state.String(), "STATE_"))
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
