package status

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/terminal"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// table draws a status for people: a headline, a row per replica, then what is wrong and why. It depends on the status
// alone; ages are as of its merge.
func table(status *gatewayv1.ClusterStatus, ink terminal.Ink) (string, error) {
	var text strings.Builder
	fmt.Fprintln(&text, headline(status, ink))
	fmt.Fprintln(&text)
	rows := tabwriter.NewWriter(&text, 0, 8, 2, ' ', 0)
	writeRow(rows, ink.Strong, "SERVICE", "REPLICA", "ROLE", "EPOCH", "READY", "LOOPS", "UP", "COUNTS")
	for _, service := range status.GetServices() {
		writeService(rows, ink, status, service)
	}
	if err := rows.Flush(); err != nil {
		return "", fmt.Errorf("lay out the table: %w", err)
	}
	writeTroubles(&text, ink, "Problems", problemsOf(status))
	writeTroubles(&text, ink, "Loops in trouble", loopTroubles(status))
	return trimmed(text.String()), nil
}

func headline(status *gatewayv1.ClusterStatus, ink terminal.Ink) string {
	answered := 0
	for _, source := range status.GetSources() {
		if source.GetOk() {
			answered++
		}
	}
	verdict := ink.Good("healthy")
	if !status.GetHealthy() {
		verdict = ink.Bad("not healthy")
	}
	return fmt.Sprintf("%s: %s, %d of %s answered", ink.Strong(terminal.Plain(cmp.Or(status.GetCluster(), "cluster"))), verdict,
		answered, plural(len(status.GetSources()), "replica"))
}

// writeService writes a row per replica of a service, or one that says there is none.
func writeService(w io.Writer, ink terminal.Ink, status *gatewayv1.ClusterStatus, service *gatewayv1.ServiceStatus) {
	rows := 0
	for _, source := range status.GetSources() {
		if source.GetReplica().GetService() != service.GetService() {
			continue
		}
		rows++
		id := source.GetReplica().GetId()
		role, epoch := roleOf(service, id)
		answer := answerOf(service, id)
		if answer == nil {
			if epoch == "-" {
				role = "-" // what a silent replica does not lead, it may not stand by for either
			}
			writeRow(w, ink.Bad, service.GetService(), id, role, epoch, "no answer", "-", "-", "-")
			continue
		}
		writeRow(w, tone(ink, answer), service.GetService(), id, role, epoch, readiness(answer), loopSummary(answer.GetLoops()),
			uptime(status, answer), countList(answer.GetCounts()))
	}
	if rows == 0 {
		writeRow(w, ink.Bad, service.GetService(), "none", "-", "-", "-", "-", "-", "-")
	}
}

// writeRow writes the cells, all but the last in one tone: a column stays aligned only if each of its cells is toned.
func writeRow(w io.Writer, tone func(string) string, cells ...string) {
	for i, cell := range cells {
		cell = terminal.Plain(cell)
		if i == len(cells)-1 {
			fmt.Fprintln(w, cell)
			return
		}
		fmt.Fprint(w, tone(cell), "\t")
	}
}

func tone(ink terminal.Ink, answer *statusv1.GetStatusResponse) func(string) string {
	if answer.GetReady() {
		return ink.Usual
	}
	return ink.Fair
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
	return age(status.GetMergeTime().AsTime().Sub(start.AsTime()))
}

// age says a duration in its two largest units. Clocks of replicas may be ahead of the gateway's.
func age(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
	}
}

// trimmed takes out the spaces that pad the ends of lines.
func trimmed(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	return strings.Join(lines, "\n") + "\n"
}
