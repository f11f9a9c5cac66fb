package apiservers

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

// prefix is what the API's names begin with.
const prefix = "apiservers/"

// The states, as people read them.
const (
	ready    = "ready"
	notReady = "not-ready"
)

func kind() list.Kind[*bootstrapv1.APIServer] {
	return list.Kind[*bootstrapv1.APIServer]{
		Noun: "kube-apiserver",
		Columns: []list.Column{
			{Title: "ADDRESS"}, {Title: "PORT"}, {Title: "STATE", State: true, Width: len(notReady)}, {Title: "ENDPOINT"},
			{Title: "SOURCE", Width: len("master-lease")}, {Title: "REPLICA"},
			{Title: "PROBED", Wide: true}, {Title: "TTL", Wide: true}, {Title: "PROBE", Wide: true}, {Title: "KEY", Wide: true},
			{Title: "REASON"},
		},
		Row:     row,
		State:   state,
		Concern: concern,
		Trouble: func(server *bootstrapv1.APIServer) string { return cmp.Or(reason(server), state(server)) },
		Void:    "no kube-apiserver is known: no sidecar reports",
		Tally:   tally,
		Quiet:   quiet,
		Watched: quiet, // of probes, and of leases that are kept, no event tells
	}
}

func state(server *bootstrapv1.APIServer) string {
	if server.GetReady() {
		return ready
	}
	return notReady
}

func concern(server *bootstrapv1.APIServer) list.Concern {
	switch {
	case !server.GetReady(), len(server.GetProblems()) > 0:
		return list.Ill
	case !server.GetPublished():
		return list.Doubt
	default:
		return list.None
	}
}

func row(now time.Time, server *bootstrapv1.APIServer) []printer.Cell {
	tone, published := printer.Bad, printer.Cell{Text: "no", Tone: printer.Fair}
	if server.GetReady() {
		tone = printer.Good
	}
	if server.GetPublished() {
		published = printer.Cell{Text: "yes"}
	}
	port, ttl := "-", "-"
	if server.GetPort() != 0 {
		port = fmt.Sprint(server.GetPort())
	}
	if server.GetTtl() != nil {
		ttl = printer.Age(server.GetTtl().AsDuration())
	}
	return []printer.Cell{
		{Text: server.GetAddress()}, {Text: port}, {Text: state(server), Tone: tone}, published,
		{Text: sourceOf(server)}, {Text: cmp.Or(server.GetReplicaId(), "-")},
		{Text: printer.Since(now, server.GetProbeTime())}, {Text: ttl}, {Text: cmp.Or(server.GetProbeDetail(), "-")}, {Text: cmp.Or(server.GetKey(), "-")},
		{Text: reason(server)},
	}
}

// sourceOf is where it is known from; a sidecar, if a service older than this trivet does not say.
func sourceOf(server *bootstrapv1.APIServer) string {
	if server.GetSource() == bootstrapv1.APIServer_SOURCE_UNSPECIFIED {
		return "sidecar"
	}
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(server.GetSource().String(), "SOURCE_"), "_", "-"))
}

// reason is what is wrong with it, else why it is an endpoint or is not, else what the probe said of one that is not ready.
func reason(server *bootstrapv1.APIServer) string {
	parts := server.GetProblems()
	if why := server.GetReason(); why != "" {
		parts = append(parts[:len(parts):len(parts)], why)
	}
	if len(parts) == 0 && !server.GetReady() {
		return server.GetProbeDetail()
	}
	return strings.Join(parts, "; ")
}

func tally(servers []*bootstrapv1.APIServer) string {
	if len(servers) == 0 {
		return "no kube-apiservers"
	}
	readies, published, problems := 0, 0, 0
	for _, server := range servers {
		if server.GetReady() {
			readies++
		}
		if server.GetPublished() {
			published++
		}
		if len(server.GetProblems()) > 0 {
			problems++
		}
	}
	words := fmt.Sprintf("%s: %d ready, %s", printer.Count(len(servers), "kube-apiserver"), readies, printer.Count(published, "endpoint"))
	if problems > 0 {
		words += fmt.Sprintf(", %d with problems", problems)
	}
	return words
}

// quiet leaves out what every probe moves.
func quiet(server *bootstrapv1.APIServer) *bootstrapv1.APIServer {
	copied := proto.CloneOf(server)
	copied.ProbeTime, copied.Ttl = nil, nil
	return copied
}
