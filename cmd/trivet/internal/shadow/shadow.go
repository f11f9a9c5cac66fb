// Package shadow is `trivet shadow nodes`, `slices` and `endpoints`: what the loops in dry run
// would write differently from the programs that write now.
//
// A difference of content without a known reason needs attention, with exit code 1. No answer about
// a part of the objects is exit code 2. Package list has the rules of lists.
package shadow

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	shadowv1 "github.com/trivet-dev/trivet/proto/trivet/shadow/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// subject is what a subcommand compares.
type subject struct {
	name, short, service string
	loops                []string
	// objects are what a loop compares.
	objects string
	long    string
}

func subjects() []subject {
	return []subject{{
		name: "nodes", short: "Compare Nodes and their Pods with what leasesvc would write", service: "leasesvc",
		loops: []string{"node-health", "taint-eviction"}, objects: "nodes",
		long: `Compare conditions, taints and labels of Nodes, and the readiness of Pods on Nodes that are marked Unknown, with
what node-health of leasesvc would write. A note says how much earlier or later it found silent Nodes. Pods that
taint-eviction would have deleted are compared if it is in dry run.`,
	}, {
		name: "slices", short: "Compare EndpointSlices with what slicesvc would write", service: "slicesvc",
		loops: []string{"endpointslices", "endpointslice-mirroring"}, objects: "Services",
		long: `Compare the EndpointSlices of each Service, and of each Endpoints object that is mirrored, with what slicesvc
would write: endpoints, ports, conditions and hints, whatever slice they are in. KIND packing says that the same
endpoints lie in other slices.`,
	}, {
		name: "endpoints", short: "Compare the kubernetes Service and its endpoints with what bootstrapsvc would write", service: "bootstrapsvc",
		loops: []string{"system-namespaces", "kubernetes-service", "kubernetes-endpoints"}, objects: "objects",
		long: `Compare the system namespaces, the Service default/kubernetes and its endpoints with what bootstrapsvc would
write.`,
	}}
}

// NewCommand returns `trivet shadow`.
func NewCommand(streams printer.Streams) *cobra.Command {
	command := &cobra.Command{
		Use:   "shadow",
		Short: "Show what loops in dry run would write differently",
		Long: `Show what loops in dry run would write differently from the programs that do their work now. The services run
such a loop with --dry-run=LOOP: it plans, compares and writes nothing. docs/shadow.md explains how.`,
		Args: cobra.ArbitraryArgs,
		RunE: exit.UnknownCommand,
	}
	for _, of := range subjects() {
		command.AddCommand(newSubcommand(streams, of))
	}
	return command
}

func newSubcommand(streams printer.Streams, of subject) *cobra.Command {
	var flags list.Flags
	var duration time.Duration
	return list.NewCommand(streams, list.Command[*shadowv1.Difference]{
		Flags: &flags,
		Use:   of.name,
		Short: of.short,
		Long: of.long + `

A difference is listed after it has stayed the same for the settling time of the service (--dry-run-settle, 30 s).
One with a REASON is intended: docs/reasons.md explains it.`,
		ExitOne: "There is a difference without a reason, other than of packing.",
		Example: fmt.Sprintf(`  trivet shadow %[1]s
  trivet shadow %[1]s -o wide
  trivet shadow %[1]s --for 10m && echo "no difference in ten minutes"`, of.name),
		RegisterFlags: func(command *cobra.Command) {
			command.Flags().DurationVar(&duration, "for", 0, "Ask again for so long, and list every difference that was there.")
		},
		Validate: func() []error {
			if duration < 0 {
				return []error{fmt.Errorf("--for=%s: must not be negative", duration)}
			}
			return nil
		},
		Kind: kind,
		Source: func(conn grpc.ClientConnInterface) list.Source[*shadowv1.Difference] {
			a := &asker{conn: conn, of: of, until: time.Now().Add(duration), pause: min(askAgain, flags.Timeout/2), listed: map[[2]string]bool{}}
			return list.Source[*shadowv1.Difference]{Page: a.page, Response: a.response, Notes: a.notes}
		},
	})
}

// askAgain is the pause between two questions with --for.
const askAgain = 2 * time.Second

// asker asks once, or again and again until a time. It is used by one goroutine.
type asker struct {
	conn  grpc.ClientConnInterface
	of    subject
	until time.Time
	pause time.Duration
	// listed has the names of listed differences with their reasons: one that is intended for a
	// time is listed again when it is not any more.
	listed map[[2]string]bool
	// comparisons are those of the last answer.
	comparisons []*shadowv1.Comparison
}

// page returns what is new since the page before. Only the last page says what is missing: what is
// still settling in an earlier one has settled since.
func (a *asker) page(ctx context.Context, token string) (list.Page[*shadowv1.Difference], error) {
	number := 0
	if token != "" {
		number, _ = strconv.Atoi(token)
		if !backoff.Sleep(ctx, min(a.pause, max(time.Until(a.until), 0))) {
			return list.Page[*shadowv1.Difference]{}, ctx.Err()
		}
	}
	response, err := shadowv1.NewShadowServiceClient(a.conn).ListDifferences(ctx, &shadowv1.ListDifferencesRequest{Loops: a.of.loops})
	if err != nil {
		return list.Page[*shadowv1.Difference]{}, err
	}
	a.comparisons = response.GetComparisons()
	var page list.Page[*shadowv1.Difference]
	for _, difference := range response.GetDifferences() {
		if key := [2]string{difference.GetName(), difference.GetReason()}; !a.listed[key] {
			a.listed[key] = true
			page.Items = append(page.Items, difference)
		}
	}
	page.Sources = slices.DeleteFunc(response.GetSources(), func(source *metav1.Source) bool { return source.GetService() != a.of.service })
	if time.Now().Before(a.until) {
		page.NextToken = strconv.Itoa(number + 1)
		return page, nil
	}
	for _, part := range response.GetMissing() {
		if part.GetService() == a.of.service {
			page.Missing = append(page.Missing, part)
		}
	}
	page.Missing = append(page.Missing, a.undetermined()...)
	leaderless, err := a.leaderless(ctx)
	if err != nil {
		return list.Page[*shadowv1.Difference]{}, err
	}
	page.Missing = append(page.Missing, leaderless...)
	return page, nil
}

// undetermined returns what the replicas cannot say.
func (a *asker) undetermined() []*metav1.MissingPart {
	if len(a.comparisons) == 0 {
		return []*metav1.MissingPart{{
			Service: a.of.service, Message: "no replica compares: start it with --dry-run=" + strings.Join(a.of.loops, ","),
		}}
	}
	why := map[string][]string{}
	for _, comparison := range a.comparisons {
		if text := comparison.GetUndetermined(); text != "" {
			why[comparison.GetReplicaId()] = append(why[comparison.GetReplicaId()], comparison.GetLoop()+": "+text)
		}
	}
	var missing []*metav1.MissingPart
	for replica, texts := range why {
		missing = append(missing, &metav1.MissingPart{Service: a.of.service, ReplicaId: replica, Message: strings.Join(texts, "; ")})
	}
	slices.SortFunc(missing, func(a, b *metav1.MissingPart) int { return cmp.Compare(a.GetReplicaId(), b.GetReplicaId()) })
	return missing
}

// leaderless returns the shards whose objects no replica compares: one has no leader, or its leader
// runs no loop in dry run.
func (a *asker) leaderless(ctx context.Context) ([]*metav1.MissingPart, error) {
	response, err := statusv1.NewStatusServiceClient(a.conn).ListShards(ctx, &statusv1.ListShardsRequest{Services: []string{a.of.service}, PageSize: 5000})
	if err != nil {
		return nil, err
	}
	compares := map[string]bool{}
	for _, comparison := range a.comparisons {
		compares[comparison.GetReplicaId()] = true
	}
	var leaderless, written []int32
	for _, shard := range response.GetShards() {
		switch leader := shard.GetLeaderId(); {
		case leader == "":
			leaderless = append(leaderless, shard.GetShard())
		case len(compares) > 0 && !compares[leader]:
			written = append(written, shard.GetShard())
		}
	}
	var missing []*metav1.MissingPart
	if len(leaderless) > 0 {
		missing = append(missing, &metav1.MissingPart{Service: a.of.service, Shards: leaderless, Message: "no replica leads them, so that nothing is compared"})
	}
	if len(written) > 0 {
		missing = append(missing, &metav1.MissingPart{Service: a.of.service, Shards: written, Message: "the replica that leads them does not compare them"})
	}
	return missing, nil
}

func (a *asker) response(all list.Page[*shadowv1.Difference]) proto.Message {
	return &shadowv1.ListDifferencesResponse{Differences: all.Items, Comparisons: a.comparisons, Sources: all.Sources, Missing: all.Missing}
}

// notes returns a sentence for each loop: how much was compared, and the verdicts about Nodes.
func (a *asker) notes(context.Context) []string {
	var notes []string
	for _, loop := range a.of.loops {
		var compared, settling, counted, verdicts, earlier int64
		var leads []time.Duration
		replicas := 0
		for _, comparison := range a.comparisons {
			if comparison.GetLoop() != loop {
				continue
			}
			replicas++
			compared, settling = compared+comparison.GetComparedCount(), settling+comparison.GetSettlingCount()
			verdicts, earlier = verdicts+comparison.GetVerdictCount(), earlier+comparison.GetEarlierCount()
			for _, count := range comparison.GetCounts() {
				counted += count.GetCount()
			}
			for _, verdict := range comparison.GetVerdicts() {
				leads = append(leads, verdict.GetLead().AsDuration())
			}
		}
		if replicas == 0 {
			continue
		}
		note := fmt.Sprintf("%s: %d %s compared by %s", loop, compared, a.of.objects, printer.Count(replicas, "replica"))
		if settling > 0 {
			note += fmt.Sprintf(", %d settling", settling)
		}
		notes = append(notes, note)
		if counted > int64(len(a.listed)) {
			notes = append(notes, fmt.Sprintf("%s: %d differences in all; each replica lists 200 at most", loop, counted))
		}
		if verdicts > 0 {
			slices.Sort(leads)
			notes = append(notes, fmt.Sprintf("%s: %d of %s that upstream marked Unknown were found silent earlier; by the median %s earlier",
				loop, earlier, printer.Count(int(verdicts), "node"), leads[len(leads)/2].Round(100*time.Millisecond)))
		}
	}
	return notes
}

func kind() list.Kind[*shadowv1.Difference] {
	return list.Kind[*shadowv1.Difference]{
		Noun: "difference",
		Columns: []list.Column{
			{Title: "KIND", State: true}, {Title: "OBJECT"}, {Title: "WRITER"}, {Title: "SINCE"}, {Title: "REASON"},
			{Title: "OF", Wide: true}, {Title: "VERSION", Wide: true}, {Title: "REPLICA", Wide: true}, {Title: "MESSAGE", Wide: true}, {Title: "DIFFERS"},
		},
		Row:          row,
		State:        state,
		Severity:     severity,
		Problem:      func(d *shadowv1.Difference) string { return cmp.Or(differs(d, true), d.GetMessage()) },
		CriticalWord: "not explained",
		Summary:      summary,
	}
}

func state(d *shadowv1.Difference) string { return printer.EnumWord(d.GetKind(), "KIND_") }

func severity(d *shadowv1.Difference) list.Severity {
	switch {
	case d.GetKind() == shadowv1.Difference_KIND_PACKING:
		return list.Fine
	case d.GetReason() != "":
		return list.Warning
	default:
		return list.Critical
	}
}

func row(now time.Time, d *shadowv1.Difference) []printer.Cell {
	object := d.GetObject().GetName()
	if d.GetObject().GetNamespace() != "" {
		object = d.GetObject().GetNamespace() + "/" + object
	}
	return []printer.Cell{
		{Text: state(d), Style: severity(d).Style()}, {Text: strings.ToLower(d.GetObject().GetKind()) + " " + object}, {Text: cmp.Or(d.GetWriter(), "-")},
		{Text: printer.Since(now, d.GetSinceTime())}, {Text: cmp.Or(d.GetReason(), "-")},
		{Text: d.GetSubject()}, {Text: cmp.Or(d.GetResourceVersion(), "-")}, {Text: d.GetReplicaId()}, {Text: d.GetMessage()}, {Text: cmp.Or(differs(d, false), "-")},
	}
}

// differs returns the first field with its values, what is in the cluster first, and how many more
// there are.
func differs(d *shadowv1.Difference, withMore bool) string {
	changes := d.GetFieldChanges()
	if len(changes) == 0 {
		return ""
	}
	text := fmt.Sprintf("%s: %s, not %s", changes[0].GetPath(), cmp.Or(changes[0].GetBefore(), "absent"), cmp.Or(changes[0].GetAfter(), "absent"))
	if more := max(int(d.GetFieldCount()), len(changes)) - 1; more > 0 && withMore {
		text += fmt.Sprintf(", and %d more", more)
	} else if more > 0 {
		text = fmt.Sprintf("(+%d) %s", more, text)
	}
	return text
}

func summary(differences []*shadowv1.Difference) string {
	counts := map[string]int{}
	for _, d := range differences {
		switch severity(d) {
		case list.Critical:
			counts["without a reason"]++
		case list.Warning:
			counts["intended"]++
		default:
			counts["of packing"]++
		}
	}
	if len(differences) == 0 {
		return "no differences"
	}
	return printer.Count(len(differences), "difference") + ": " + printer.Counts(counts, "without a reason", "intended", "of packing")
}
