package gateway_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/status"
	"github.com/trivet-dev/trivet/internal/term"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// decider starts a replica that records what the test records.
func decider(t *testing.T, service, id string) (term.Member, *decisions.Log) {
	t.Helper()
	log := decisions.NewLog()
	member := replica(service, id)
	return serve(t, member, status.NewDecisionServer(member, log).Register), log
}

func record(log *decisions.Log, action decisions.Action, message string) {
	log.Record(decisions.Decision{Action: action, Message: message, Object: decisions.Object{Kind: "Node", Name: "n1"}})
}

// The decisions of all replicas of all services are one list in the order of time. A replica that
// does not answer and a service without replicas are named.
func TestDecisions_OfAllReplicasInOrderOfTime(t *testing.T) {
	t.Parallel()
	l1, first := decider(t, "leasesvc", "l1")
	l2, second := decider(t, "leasesvc", "l2")
	s1, third := decider(t, "slicesvc", "s1")
	record(first, decisions.NodeMarkedUnknown, "1")
	record(second, decisions.TaintAdded, "2")
	record(third, decisions.SlicesWritten, "3")
	middle := time.Now()
	record(second, decisions.NodeBack, "4")
	record(first, decisions.TaintRemoved, "5")
	members := newDirectory(l1, l2, s1, dead(t, "slicesvc", "s2"))
	service := startGateway(t, members, longTimeout)
	client := statusv1.NewDecisionServiceClient(testkit.Serve(t, service.Register))
	missing := []string{" UNAVAILABLE []", "s2 UNAVAILABLE []"}

	for name, c := range map[string]struct {
		request *statusv1.ListDecisionsRequest
		want    []string
	}{
		"all":        {&statusv1.ListDecisionsRequest{}, []string{"1", "2", "3", "4", "5"}},
		"by pages":   {&statusv1.ListDecisionsRequest{PageSize: 1}, []string{"1", "2", "3", "4", "5"}},
		"since":      {&statusv1.ListDecisionsRequest{StartTime: timestamppb.New(middle), PageSize: 1}, []string{"4", "5"}},
		"by action":  {&statusv1.ListDecisionsRequest{Actions: []statusv1.Decision_Action{statusv1.Decision_ACTION_TAINT_ADDED}}, []string{"2"}},
		"by object":  {&statusv1.ListDecisionsRequest{Resources: []string{"nodes/n2"}}, nil},
		"by service": {&statusv1.ListDecisionsRequest{Services: []string{"slicesvc"}}, []string{"3"}},
	} {
		var got []string
		for {
			page, err := client.ListDecisions(t.Context(), c.request)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, decision := range page.GetDecisions() {
				got = append(got, decision.GetMessage())
			}
			parts := missingOf(page.GetMissing())
			slices.Sort(parts)
			if diff := cmp.Diff(missing, parts); diff != "" {
				t.Errorf("%s: missing (-want +got):\n%s", name, diff)
			}
			if c.request.PageToken = page.GetNextPageToken(); c.request.PageToken == "" {
				break
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}

	stream, err := client.WatchDecisions(t.Context(), &statusv1.WatchDecisionsRequest{Resources: []string{"nodes/n1"}, Services: []string{"leasesvc"}})
	if err != nil {
		t.Fatal(err)
	}
	sent := map[string]bool{}
	for len(sent) < 4 {
		sent[receiveDecision(t, stream).GetDecision().GetMessage()] = true
	}
	for _, message := range []string{"1", "2", "4", "5"} {
		if !sent[message] {
			t.Errorf("the watch sent %v, without %s", sent, message)
		}
	}
	event := receiveDecision(t, stream)
	parts := missingOf(event.GetBookmark().GetMissing())
	slices.Sort(parts)
	if diff := cmp.Diff(missing, parts); diff != "" {
		t.Errorf("missing at the bookmark (-want +got):\n%s", diff)
	}
	record(third, decisions.SlicesWritten, "of another service")
	record(second, decisions.TaintAdded, "new")
	for event = receiveDecision(t, stream); event.GetBookmark() != nil; {
		event = receiveDecision(t, stream)
	}
	if event.GetType() != added || event.GetDecision().GetMessage() != "new" || event.GetDecision().GetReplicaId() != "l2" {
		t.Errorf("event %v, want the new decision", event)
	}
	// A replica that is gone takes its decisions along.
	members.set(l1, s1)
	gone := map[string]bool{}
	for len(gone) < 3 {
		if event = receiveDecision(t, stream); event.GetType() == deleted {
			gone[event.GetDecision().GetMessage()] = true
		}
	}
	if !gone["2"] || !gone["4"] || !gone["new"] {
		t.Errorf("deleted were %v, want the decisions of l2", gone)
	}
}

func receiveDecision(t *testing.T, stream statusv1.DecisionService_WatchDecisionsClient) *statusv1.WatchDecisionsResponse {
	t.Helper()
	event, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return event
}
