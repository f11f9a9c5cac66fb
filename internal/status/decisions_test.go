package status_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/status"
	"github.com/trivet-dev/trivet/internal/term"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

var decider = term.Member{ID: "a-x7k2p", Service: "leasesvc"}

func TestDecision_EveryActionIsInTheAPI(t *testing.T) {
	known := map[string]bool{}
	for _, action := range decisions.Actions() {
		known["ACTION_"+action.String()] = true
		if _, has := statusv1.Decision_Action_value["ACTION_"+action.String()]; !has {
			t.Errorf("the API has no action %v", action)
		}
	}
	for name, number := range statusv1.Decision_Action_value {
		if number != 0 && !known[name] {
			t.Errorf("no decision has the action %s", name)
		}
	}
}

func list(t *testing.T, server *status.DecisionServer, request *statusv1.ListDecisionsRequest) *statusv1.ListDecisionsResponse {
	t.Helper()
	response, err := server.ListDecisions(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

func TestListDecisions_FiltersAndPages(t *testing.T) {
	log := decisions.NewLog()
	server := status.NewDecisionServer(decider, log)
	node := decisions.Object{APIVersion: "v1", Kind: "Node", Name: "n1"}
	log.Record(decisions.Decision{Action: decisions.TermTaken, Object: decisions.Object{Kind: "Shard", Name: "3"}, Shard: 3, Epoch: 42})
	log.Record(decisions.Decision{Action: decisions.NodeMarkedUnknown, Object: node, Message: "silent \xff", InputAge: 50 * time.Second, ResourceVersion: "7"})
	middle := time.Now()
	log.Record(decisions.Decision{Action: decisions.PodEvicted, Object: decisions.Object{Kind: "Pod", Namespace: "shop", Name: "web"}, Node: "n1"})
	log.Record(decisions.Decision{Action: decisions.SlicesWritten, Object: decisions.Object{Kind: "Service", Namespace: "shop", Name: "web"}, Created: 2, Deleted: 1})

	for name, c := range map[string]struct {
		request *statusv1.ListDecisionsRequest
		want    []statusv1.Decision_Action
	}{
		"all": {&statusv1.ListDecisionsRequest{}, []statusv1.Decision_Action{
			statusv1.Decision_ACTION_TERM_TAKEN, statusv1.Decision_ACTION_NODE_MARKED_UNKNOWN,
			statusv1.Decision_ACTION_POD_EVICTED, statusv1.Decision_ACTION_SLICES_WRITTEN,
		}},
		"of a Node with its Pods": {&statusv1.ListDecisionsRequest{Resources: []string{"nodes/n1"}}, []statusv1.Decision_Action{
			statusv1.Decision_ACTION_NODE_MARKED_UNKNOWN, statusv1.Decision_ACTION_POD_EVICTED,
		}},
		"of a Service": {&statusv1.ListDecisionsRequest{Resources: []string{"namespaces/shop/services/web"}}, []statusv1.Decision_Action{
			statusv1.Decision_ACTION_SLICES_WRITTEN,
		}},
		"of a shard": {&statusv1.ListDecisionsRequest{Resources: []string{"shards/leasesvc/3"}}, []statusv1.Decision_Action{statusv1.Decision_ACTION_TERM_TAKEN}},
		"by action": {&statusv1.ListDecisionsRequest{Actions: []statusv1.Decision_Action{statusv1.Decision_ACTION_POD_EVICTED}}, []statusv1.Decision_Action{
			statusv1.Decision_ACTION_POD_EVICTED,
		}},
		"since": {&statusv1.ListDecisionsRequest{StartTime: timestamppb.New(middle)}, []statusv1.Decision_Action{
			statusv1.Decision_ACTION_POD_EVICTED, statusv1.Decision_ACTION_SLICES_WRITTEN,
		}},
		"of another service": {&statusv1.ListDecisionsRequest{Services: []string{"slicesvc"}}, nil},
	} {
		var got []statusv1.Decision_Action
		c.request.PageSize = 1
		for {
			response := list(t, server, c.request)
			for _, d := range response.GetDecisions() {
				got = append(got, d.GetAction())
			}
			if c.request.PageToken = response.GetNextPageToken(); c.request.PageToken == "" {
				break
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	all := list(t, server, &statusv1.ListDecisionsRequest{}).GetDecisions()
	if d := all[1]; d.GetMessage() != "silent �" || d.GetInputAge().AsDuration() != 50*time.Second || d.GetResourceVersion() != "7" || d.Shard != nil {
		t.Errorf("decision about a Node: %v", d)
	}
	if d := all[0]; d.GetShard() != 3 || d.GetEpoch() != 42 {
		t.Errorf("decision of a term: %v", d)
	}
	if want := "EndpointSlices: 2 created, 1 deleted"; all[3].GetMessage() != want {
		t.Errorf("message %q, want %q", all[3].GetMessage(), want)
	}
}

func TestListDecisions_RefusesATokenOfAnotherList(t *testing.T) {
	log := decisions.NewLog()
	server := status.NewDecisionServer(decider, log)
	for range 2 {
		log.Record(decisions.Decision{Action: decisions.TermTaken})
	}
	token := list(t, server, &statusv1.ListDecisionsRequest{PageSize: 1}).GetNextPageToken()
	_, err := server.ListDecisions(t.Context(), &statusv1.ListDecisionsRequest{PageToken: token, Resources: []string{"nodes/n1"}})
	if rpcerror.ReasonOf(err) != rpcerror.InvalidPageTokenReason {
		t.Errorf("ListDecisions() = %v, want INVALID_PAGE_TOKEN", err)
	}
}

// watchStream is the server's side of a watch.
type watchStream struct {
	grpc.ServerStream
	ctx    context.Context
	events chan *statusv1.WatchDecisionsResponse
}

func (s watchStream) Context() context.Context { return s.ctx }

func (s watchStream) Send(event *statusv1.WatchDecisionsResponse) error {
	select {
	case s.events <- event:
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// A watch sends what is kept, a bookmark, what is new, and DELETED for what the rings drop.
func TestWatchDecisions_SendsNewAndDropped(t *testing.T) {
	log := decisions.NewLog()
	server := status.NewDecisionServer(decider, log)
	log.Record(decisions.Decision{Action: decisions.TermTaken, Message: "first"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := watchStream{ctx: ctx, events: make(chan *statusv1.WatchDecisionsResponse)}
	ended := make(chan error, 1)
	go func() { ended <- server.WatchDecisions(&statusv1.WatchDecisionsRequest{}, stream) }()

	if event := <-stream.events; event.GetType() != metav1.EventType_EVENT_TYPE_ADDED || event.GetDecision().GetMessage() != "first" {
		t.Fatalf("first event: %v", event)
	}
	if event := <-stream.events; !event.GetBookmark().GetInitialEventsEnd() || event.GetBookmark().GetSources()[0].GetReplicaId() != decider.ID {
		t.Fatalf("second event: %v", event)
	}
	// The ring of the first decision has 2,048 places.
	const later = 2500
	for i := range later {
		log.Record(decisions.Decision{Action: decisions.TermLost, Message: fmt.Sprint(i)})
	}
	dropped := false
	for last := ""; !dropped || last != fmt.Sprint(later-1); {
		event := <-stream.events
		switch event.GetType() {
		case metav1.EventType_EVENT_TYPE_ADDED:
			last = event.GetDecision().GetMessage()
		case metav1.EventType_EVENT_TYPE_DELETED:
			dropped = dropped || event.GetDecision().GetMessage() == "first"
		case metav1.EventType_EVENT_TYPE_BOOKMARK:
		default:
			t.Fatalf("event: %v", event)
		}
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("WatchDecisions() = nil, want the cause of the context")
	}
}
