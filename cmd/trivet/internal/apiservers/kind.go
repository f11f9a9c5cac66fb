package apiservers

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/listing"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/terminal"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/terminal/table"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/wording"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

// prefix is what the API's names begin with.
const prefix = "apiservers/"

// The states, as people read them.
const (
	ready    = "ready"
	notReady = "not-ready"
)

func kind() listing.Kind[*bootstrapv1.APIServer] {
	return listing.Kind[*bootstrapv1.APIServer]{
		Noun: "kube-apiserver",
		Columns: []listing.Column{
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

func concern(server *bootstrapv1.APIServer) listing.Concern {
	switch {
	case !server.GetReady(), len(server.GetProblems()) > 0:
		return listing.Ill
	case !server.GetPublished():
		return listing.Doubt
	default:
		return listing.None
	}
}

func row(now time.Time, server *bootstrapv1.APIServer) []table.Cell {
	tone, published := terminal.Bad, table.Cell{Text: "no", Tone: terminal.Fair}
	if server.GetReady() {
		tone = terminal.Good
	}
	if server.GetPublished() {
		published = table.Cell{Text: "yes"}
	}
	port, ttl := "-", "-"
	if server.GetPort() != 0 {
		port = fmt.Sprint(server.GetPort())
	}
	if server.GetTtl() != nil {
		ttl = wording.Age(server.GetTtl().AsDuration())
	}
	return []table.Cell{
		{Text: server.GetAddress()}, {Text: port}, {Text: state(server), Tone: tone}, published,
		{Text: sourceOf(server)}, {Text: cmp.Or(server.GetReplicaId(), "-")},
		{Text: wording.Since(now, server.GetProbeTime())}, {Text: ttl}, {Text: cmp.Or(server.GetProbeDetail(), "-")}, {Text: cmp.Or(server.GetKey(), "-")},
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
	words := fmt.Sprintf("%s: %d ready, %s", wording.Count(len(servers), "kube-apiserver"), readies, wording.Count(published, "endpoint"))
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
