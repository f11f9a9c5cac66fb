// Package events is `trivet events`: what the replicas of all services decided, in the order of
// time.
//
// Every replica keeps its newest decisions in memory. A decision never changes, so a watch prints
// each one once. Package list has the rules of lists and watches.
package events

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/watch"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

const actionPrefix = "ACTION_"

// filter selects decisions; its zero value selects all.
type filter struct {
	of, types, services []string
	since               time.Duration
}

// NewCommand returns `trivet events`.
func NewCommand(streams printer.Streams) *cobra.Command {
	var flags list.Flags
	var f filter
	return list.NewCommand(streams, list.Command[*statusv1.Decision]{
		Flags:   &flags,
		Use:     "events",
		Aliases: []string{"event", "ev"},
		Short:   "Show what the services decided, in the order of time",
		Long: `Show what the services decided, in the order of time: which Node was marked Unknown and why, which taint was
added, which Pod is to be evicted and when, which EndpointSlices were written, which replica leads a shard.

Every replica keeps its newest decisions in memory, and a restart forgets them. Frequent decisions, such as
written EndpointSlices, do not push out rare ones. TIME is by the clock of the replica. OBJECT is what --for
takes. With -o wide, VERSION is the resourceVersion that the decision was made from, and INPUT-AGE how old the
decisive input was, such as the last sign of life of a Node.

--for takes KIND/NAME or KIND/NAMESPACE/NAME: node, pod, service, endpoints, lease, apiserver, finding, repair,
shard/SERVICE/NUMBER, or an API name such as nodes/node-1. A Node's events include those of its Pods and lease.`,
		Example: `  trivet events --since 10m
  trivet events --for node/node-1 -w
  trivet events --for service/shop/web,pod/shop/web-7d4b9
  trivet events --types node-marked-unknown,taint-added,pod-evicted
  trivet events --service slicesvc -o json | jq -r '.decisions[].message'`,
		NotChanges: "Each decision is printed once.",
		RegisterFlags: func(command *cobra.Command) {
			fs := command.Flags()
			fs.StringSliceVar(&f.of, "for", nil, "Only decisions about these objects, as in the column OBJECT.")
			fs.StringSliceVar(&f.types, "types", nil, "Only these decisions, as in the column ACTION.")
			fs.StringSliceVar(&f.services, "service", nil, "Only decisions of these services: "+strings.Join(serviceWords(), ", ")+".")
			fs.DurationVar(&f.since, "since", 0, "Only decisions that are younger than this; 0 means all that are kept.")
			client.CompleteListFlag(command, "types", actionWords()...)
			client.CompleteListFlag(command, "service", serviceWords()...)
		},
		Validate: func() []error { return f.validate() },
		Kind:     kind,
		Source: func(conn grpc.ClientConnInterface) list.Source[*statusv1.Decision] {
			return source(conn, f.query(time.Now()), streams)
		},
	})
}

func serviceWords() []string { return []string{"leasesvc", "bootstrapsvc", "slicesvc"} }

func actionWords() []string { return printer.EnumWords[statusv1.Decision_Action](actionPrefix) }

// validate returns all problems, and brings the values of --types into the form of the column.
func (f *filter) validate() []error {
	for i, action := range f.types {
		f.types[i] = printer.Word(strings.TrimPrefix(action, actionPrefix))
	}
	problems := []error{client.EachOf("--types", f.types, actionWords()...), client.EachOf("--service", f.services, serviceWords()...)}
	for _, object := range f.of {
		if _, err := ParseObject(object); err != nil {
			problems = append(problems, fmt.Errorf("--for: %w", err))
		}
	}
	if f.since < 0 {
		problems = append(problems, fmt.Errorf("--since=%s: must not be negative", f.since))
	}
	return problems
}

// query is a filter as the API takes it.
type query struct {
	resources, services []string
	actions             []statusv1.Decision_Action
	start               *timestamppb.Timestamp
}

func (f *filter) query(now time.Time) query {
	q := query{services: f.services, actions: printer.EnumsOf[statusv1.Decision_Action](f.types, actionPrefix, statusv1.Decision_Action_value)}
	for _, object := range f.of {
		resource, _ := ParseObject(object) // validate has checked it
		q.resources = append(q.resources, resource)
	}
	if f.since > 0 {
		q.start = timestamppb.New(now.Add(-f.since))
	}
	return q
}

// isWhole reports whether the query selects each new decision.
func (q query) isWhole() bool { return len(q.resources)+len(q.services)+len(q.actions) == 0 }

// pageSize is the API's limit, because each page costs one call to each replica.
const pageSize = 5000

func source(conn grpc.ClientConnInterface, q query, streams printer.Streams) list.Source[*statusv1.Decision] {
	service := statusv1.NewDecisionServiceClient(conn)
	gaps := newGaps(streams)
	return list.Source[*statusv1.Decision]{
		Page: func(ctx context.Context, token string) (list.Page[*statusv1.Decision], error) {
			response, err := service.ListDecisions(ctx, &statusv1.ListDecisionsRequest{
				Resources: q.resources, Actions: q.actions, Services: q.services, StartTime: q.start, PageSize: pageSize, PageToken: token,
			})
			return list.PageOf(response, response.GetDecisions(), err)
		},
		Response: func(all list.Page[*statusv1.Decision]) proto.Message {
			return &statusv1.ListDecisionsResponse{Decisions: all.Items, Sources: all.Sources, Missing: all.Missing}
		},
		Watch: func(ctx context.Context, token string) (watch.Receive[*statusv1.Decision], error) {
			stream, err := service.WatchDecisions(ctx, &statusv1.WatchDecisionsRequest{
				ResumeToken: token, Resources: q.resources, Actions: q.actions, Services: q.services,
			})
			receive, err := watch.ReceiveFrom(stream, err, (*statusv1.WatchDecisionsResponse).GetDecision)
			if err != nil {
				return nil, err
			}
			return func() (watch.Event[*statusv1.Decision], error) {
				for {
					event, err := receive()
					if err == nil && q.isWhole() {
						gaps.look(event)
					}
					if err != nil || q.start == nil || event.Item == nil || !event.Item.GetDecideTime().AsTime().Before(q.start.AsTime()) {
						return event, err
					}
				}
			}, nil
		},
	}
}

func kind() list.Kind[*statusv1.Decision] {
	return list.Kind[*statusv1.Decision]{
		Noun: "decision",
		Columns: []list.Column{
			{Title: "TIME", MinWidth: len(timeFormat)}, {Title: "SERVICE", MinWidth: len("bootstrapsvc")}, {Title: "REPLICA", MinWidth: 12},
			{Title: "OBJECT", MinWidth: 20}, {Title: "ACTION", State: true, MinWidth: len("node-marked-unknown")},
			{Title: "SHARD", Wide: true}, {Title: "EPOCH", Wide: true}, {Title: "VERSION", Wide: true}, {Title: "INPUT-AGE", Wide: true},
			{Title: "MESSAGE"},
		},
		Row:             row,
		State:           word,
		Severity:        func(*statusv1.Decision) list.Severity { return list.Fine },
		AppendOnly:      true,
		Summary:         func(all []*statusv1.Decision) string { return printer.Count(len(all), "decision") },
		WithoutVolatile: func(decision *statusv1.Decision) *statusv1.Decision { return decision },
	}
}

func word(decision *statusv1.Decision) string {
	return printer.EnumWord(decision.GetAction(), actionPrefix)
}

const timeFormat = "2006-01-02T15:04:05.000Z"

func row(_ time.Time, decision *statusv1.Decision) []printer.Cell {
	shard, epoch, version, age := "-", "-", "-", "-"
	if decision.Shard != nil {
		shard = fmt.Sprint(decision.GetShard())
	}
	if decision.GetEpoch() != 0 {
		epoch = fmt.Sprint(decision.GetEpoch())
	}
	if decision.GetResourceVersion() != "" {
		version = decision.GetResourceVersion()
	}
	if decision.GetInputAge() != nil {
		age = decision.GetInputAge().AsDuration().Round(time.Millisecond).String()
	}
	return []printer.Cell{
		{Text: decision.GetDecideTime().AsTime().Format(timeFormat), Style: printer.Dim}, {Text: decision.GetService()}, {Text: decision.GetReplicaId()},
		{Text: objectOf(decision)}, {Text: word(decision), Style: style(decision.GetAction())},
		{Text: shard}, {Text: epoch}, {Text: version}, {Text: age}, {Text: decision.GetMessage()},
	}
}

// style marks what may harm, and what undoes it.
func style(action statusv1.Decision_Action) printer.Style {
	switch action {
	case statusv1.Decision_ACTION_TERM_LOST, statusv1.Decision_ACTION_WRITE_REFUSED, statusv1.Decision_ACTION_LEASE_DUPLICATED,
		statusv1.Decision_ACTION_SLICES_CONTENDED, statusv1.Decision_ACTION_NODE_MARKED_UNKNOWN, statusv1.Decision_ACTION_POD_EVICTED:
		return printer.Failure
	case statusv1.Decision_ACTION_MARKING_SUSPENDED, statusv1.Decision_ACTION_EVICTIONS_HELD,
		statusv1.Decision_ACTION_TAINT_ADDED, statusv1.Decision_ACTION_POD_MARKED_NOT_READY, statusv1.Decision_ACTION_EVICTION_SCHEDULED,
		statusv1.Decision_ACTION_LEASE_EXPIRED, statusv1.Decision_ACTION_APISERVER_REMOVED, statusv1.Decision_ACTION_FINDING_OPENED:
		return printer.Warning
	case statusv1.Decision_ACTION_NODE_BACK, statusv1.Decision_ACTION_MARKING_RESUMED, statusv1.Decision_ACTION_EVICTIONS_RESUMED,
		statusv1.Decision_ACTION_FINDING_CLOSED, statusv1.Decision_ACTION_EVICTION_CANCELLED:
		return printer.Success
	default:
		return printer.Normal
	}
}

// objectOf returns the object as --for takes it; "-" for the process.
func objectOf(decision *statusv1.Decision) string {
	if len(decision.GetResources()) == 0 {
		return "-"
	}
	return shortName(decision.GetResources()[0])
}

// kinds are the kinds of --for: the singular, the plural of the API, and further names.
func kinds() [][]string {
	return [][]string{
		{"node", "nodes", "no"}, {"pod", "pods", "po"}, {"service", "services", "svc"}, {"endpoints", "endpoints", "ep"},
		{"endpointslice", "endpointslices"}, {"lease", "leases"}, {"namespace", "namespaces", "ns"}, {"servicecidr", "servicecidrs"},
		{"apiserver", "apiservers"}, {"finding", "findings"}, {"repair", "repairs"}, {"shard", "shards"},
	}
}

// namespaced are the kinds whose names need a namespace.
func namespaced() []string {
	return []string{"pods", "services", "endpoints", "endpointslices", "leases"}
}

// ParseObject returns the API's name for KIND/NAME or KIND/NAMESPACE/NAME, or for the API's name.
func ParseObject(text string) (string, error) {
	parts := strings.Split(text, "/")
	if len(parts) == 4 && parts[0] == "namespaces" && slices.Contains(namespaced(), parts[2]) {
		return text, nil
	}
	plural := ""
	for _, names := range kinds() {
		if slices.Contains(names, parts[0]) {
			plural = names[1]
		}
	}
	rest := parts[1:]
	switch {
	case plural == "":
		return "", fmt.Errorf("%q: give KIND/NAME with a kind of node, pod, service, endpoints, endpointslice, lease, namespace, servicecidr, apiserver, finding, repair or shard", text)
	case slices.Contains(rest, "") || len(rest) == 0:
		return "", fmt.Errorf("%q has no name", text)
	case plural == "leases" && len(rest) == 1:
		rest = []string{"kube-node-lease", rest[0]} // the leases of Nodes
	}
	wanted, form := 1, "NAME"
	switch {
	case slices.Contains(namespaced(), plural):
		wanted, form = 2, "NAMESPACE/NAME"
	case plural == "shards":
		wanted, form = 2, "SERVICE/NUMBER"
	}
	if len(rest) != wanted {
		return "", fmt.Errorf("%q: give %s/%s", text, parts[0], form)
	}
	if wanted == 2 && plural != "shards" {
		return "namespaces/" + rest[0] + "/" + plural + "/" + rest[1], nil
	}
	return plural + "/" + strings.Join(rest, "/"), nil
}

// shortName returns what ParseObject takes for a name of the API.
func shortName(resource string) string {
	parts := strings.Split(resource, "/")
	if len(parts) == 4 && parts[0] == "namespaces" {
		parts = []string{parts[2], parts[1], parts[3]}
	}
	for _, names := range kinds() {
		if parts[0] == names[1] {
			parts[0] = names[0]
		}
	}
	return strings.Join(parts, "/")
}
