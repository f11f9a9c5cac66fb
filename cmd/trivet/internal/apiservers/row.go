package apiservers

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// The values of STATE.
const (
	ready    = "ready"
	notReady = "not-ready"
)

func kind() list.Kind[*bootstrapv1.APIServer] {
	return list.Kind[*bootstrapv1.APIServer]{
		Noun: "kube-apiserver",
		Columns: []list.Column{
			{Title: "ADDRESS"}, {Title: "PORT"}, {Title: "STATE", State: true, MinWidth: len(notReady)}, {Title: "ENDPOINT"},
			{Title: "SOURCE", MinWidth: len("master-lease")}, {Title: "REPLICA"},
			{Title: "PROBED", Wide: true}, {Title: "TTL", Wide: true}, {Title: "PROBE", Wide: true}, {Title: "KEY", Wide: true},
			{Title: "MESSAGE"},
		},
		Row:             row,
		State:           state,
		Severity:        severity,
		Problem:         func(server *bootstrapv1.APIServer) string { return cmp.Or(message(server), state(server)) },
		EmptyProblem:    "no kube-apiserver is known: no sidecar is registered",
		Summary:         summary,
		WithoutVolatile: withoutProbe,
		WithoutStale:    withoutProbe,
	}
}

func state(server *bootstrapv1.APIServer) string {
	if server.GetReady() {
		return ready
	}
	return notReady
}

func severity(server *bootstrapv1.APIServer) list.Severity {
	switch {
	case !server.GetReady(), entryProblem(server) != "":
		return list.Critical
	case !isPublished(server):
		return list.Warning
	default:
		return list.Fine
	}
}

func row(now time.Time, server *bootstrapv1.APIServer) []printer.Cell {
	stateStyle, endpoint := printer.Failure, printer.Cell{Text: "no", Style: printer.Warning}
	if server.GetReady() {
		stateStyle = printer.Success
	}
	if isPublished(server) {
		endpoint = printer.Cell{Text: "yes"}
	}
	port, ttl := "-", "-"
	if server.GetPort() != 0 {
		port = fmt.Sprint(server.GetPort())
	}
	if server.GetTtl() != nil {
		ttl = printer.Age(server.GetTtl().AsDuration())
	}
	return []printer.Cell{
		{Text: server.GetAddress()}, {Text: port}, {Text: state(server), Style: stateStyle}, endpoint,
		{Text: printer.EnumWord(server.GetRegistrationSource(), "REGISTRATION_SOURCE_")}, {Text: cmp.Or(server.GetReplicaId(), "-")},
		{Text: printer.Since(now, server.GetProbeTime())}, {Text: ttl}, {Text: cmp.Or(server.GetProbeDetail(), "-")}, {Text: cmp.Or(server.GetEtcdKey(), "-")},
		{Text: message(server)},
	}
}

func isPublished(server *bootstrapv1.APIServer) bool {
	return printer.Condition(server.GetConditions(), "Published").GetStatus() == metav1.Condition_STATUS_TRUE
}

// entryProblem returns what is wrong with the entry of a kube-apiserver; empty if nothing is.
func entryProblem(server *bootstrapv1.APIServer) string {
	return printer.ConditionMessage(server.GetConditions(), "Registered", metav1.Condition_STATUS_FALSE)
}

// message returns the problem of the entry and why it is an endpoint or is not; without both, the
// result of a failed probe.
func message(server *bootstrapv1.APIServer) string {
	var parts []string
	if problem := entryProblem(server); problem != "" {
		parts = append(parts, problem)
	}
	if published := printer.Condition(server.GetConditions(), "Published"); cmp.Or(published.GetMessage(), published.GetReason()) != "" {
		parts = append(parts, cmp.Or(published.GetMessage(), published.GetReason()))
	}
	if len(parts) == 0 && !server.GetReady() {
		return server.GetProbeDetail()
	}
	return strings.Join(parts, "; ")
}

func summary(servers []*bootstrapv1.APIServer) string {
	if len(servers) == 0 {
		return "no kube-apiservers"
	}
	readyCount, endpoints, problems := 0, 0, 0
	for _, server := range servers {
		if server.GetReady() {
			readyCount++
		}
		if isPublished(server) {
			endpoints++
		}
		if entryProblem(server) != "" {
			problems++
		}
	}
	text := fmt.Sprintf("%s: %d ready, %s", printer.Count(len(servers), "kube-apiserver"), readyCount, printer.Count(endpoints, "endpoint"))
	if problems > 0 {
		text += fmt.Sprintf(", %d with problems", problems)
	}
	return text
}

// withoutProbe omits what each probe changes, because a watch has no event for it.
func withoutProbe(server *bootstrapv1.APIServer) *bootstrapv1.APIServer {
	copied := proto.CloneOf(server)
	copied.ProbeTime, copied.Ttl = nil, nil
	for _, condition := range copied.GetConditions() {
		condition.TransitionTime = nil
	}
	return copied
}
