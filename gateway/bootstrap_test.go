package gateway_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/gateway/internal/api"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// clientOfBootstrapsvc is a client of the services that bootstrapsvc and the gateway have.
type clientOfBootstrapsvc struct {
	bootstrapv1.BaselineServiceClient
	bootstrapv1.APIServerServiceClient
	bootstrapv1.FindingServiceClient
	bootstrapv1.RepairServiceClient
}

func newClientOfBootstrapsvc(conn grpc.ClientConnInterface) clientOfBootstrapsvc {
	return clientOfBootstrapsvc{
		BaselineServiceClient: bootstrapv1.NewBaselineServiceClient(conn), APIServerServiceClient: bootstrapv1.NewAPIServerServiceClient(conn),
		FindingServiceClient: bootstrapv1.NewFindingServiceClient(conn), RepairServiceClient: bootstrapv1.NewRepairServiceClient(conn),
	}
}

// bootstrapClient runs a gateway over the members and returns a client of it.
func bootstrapClient(t *testing.T, members *directory, timeout time.Duration) clientOfBootstrapsvc {
	t.Helper()
	service := startGateway(t, members, timeout)
	return newClientOfBootstrapsvc(testkit.Serve(t, service.Register))
}

// answered is an answer of a replica.
type answered interface{ GetSources() []*metav1.Source }

// by returns the id of the replica that answered.
func by(answer answered, err error) (string, error) {
	if err != nil {
		return "", err
	}
	if len(answer.GetSources()) != 1 {
		return "", fmt.Errorf("%d sources, want one", len(answer.GetSources()))
	}
	return answer.GetSources()[0].ReplicaId, nil
}

// leaderCalls are the unary calls that only the leader answers. They return the id of the replica
// that answered.
var leaderCalls = map[string]func(*testing.T, clientOfBootstrapsvc) (string, error){
	"ListFindings": func(t *testing.T, client clientOfBootstrapsvc) (string, error) {
		return by(client.ListFindings(t.Context(), &bootstrapv1.ListFindingsRequest{}))
	},
	"AuditAllocations": func(t *testing.T, client clientOfBootstrapsvc) (string, error) {
		return by(client.AuditAllocations(t.Context(), &bootstrapv1.AuditAllocationsRequest{}))
	},
	"ReconcileBaseline": func(t *testing.T, client clientOfBootstrapsvc) (string, error) {
		return by(client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{}))
	},
	"CreateRepairPlan": func(t *testing.T, client clientOfBootstrapsvc) (string, error) {
		return by(client.CreateRepairPlan(t.Context(), &bootstrapv1.CreateRepairPlanRequest{}))
	},
	"ApplyRepairPlan": func(t *testing.T, client clientOfBootstrapsvc) (string, error) {
		return by(client.ApplyRepairPlan(t.Context(), &bootstrapv1.ApplyRepairPlanRequest{Name: "repairplans/p", Etag: "e1"}))
	},
}

// anyCalls are the unary calls that each replica answers.
var anyCalls = map[string]func(*testing.T, clientOfBootstrapsvc) (string, error){
	"GetBaseline": func(t *testing.T, client clientOfBootstrapsvc) (string, error) {
		return by(client.GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{}))
	},
	"ReconcileBaseline with validate_only": func(t *testing.T, client clientOfBootstrapsvc) (string, error) {
		return by(client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{ValidateOnly: true}))
	},
	"ListAPIServers": func(t *testing.T, client clientOfBootstrapsvc) (string, error) {
		return by(client.ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{}))
	},
	"ListRepairs": func(t *testing.T, client clientOfBootstrapsvc) (string, error) {
		return by(client.ListRepairs(t.Context(), &bootstrapv1.ListRepairsRequest{}))
	},
}

func TestBootstrap_CallsForTheLeaderFollowIt(t *testing.T) {
	t.Parallel()
	c := newBootstrapsvc("b2")
	one, m1 := c.start(t, "b1")
	_, m2 := c.start(t, "b2")
	client := bootstrapClient(t, newDirectory(m1, m2), longTimeout)
	for name, ask := range leaderCalls {
		for _, leader := range []string{"b2", "b1", "b2"} {
			c.elect(leader)
			if by, err := ask(t, client); err != nil || by != leader {
				t.Errorf("%s is answered by %q (%v), want the leader %s", name, by, err, leader)
			}
		}
	}
	for name, read := range anyCalls {
		before := one.calls.Load()
		if by, err := read(t, client); err != nil || by != "b2" || one.calls.Load() != before {
			t.Errorf("%s is answered by %q (%v), want only b2, which leads", name, by, err)
		}
	}
}

func TestBootstrap_WithoutALeader(t *testing.T) {
	t.Parallel()
	c := newBootstrapsvc("")
	_, m1 := c.start(t, "b1")
	_, m2 := c.start(t, "b2")
	client := bootstrapClient(t, newDirectory(m1, m2), longTimeout)
	for name, ask := range leaderCalls {
		if _, err := ask(t, client); status.Code(err) != codes.Unavailable || rpcerror.ReasonOf(err) != rpcerror.NoLeaderReason {
			t.Errorf("%s = %v, want UNAVAILABLE with reason NO_LEADER", name, err)
		}
	}
	for name, read := range anyCalls {
		if by, err := read(t, client); err != nil || by == "" {
			t.Errorf("%s = %v, want the answer of any replica", name, err)
		}
	}
}

func TestBootstrap_NoReplicaAnswers(t *testing.T) {
	t.Parallel()
	client := bootstrapClient(t, newDirectory(dead(t, "bootstrapsvc", "b1"), healthy(t, "leasesvc", "l1")), longTimeout)
	for _, calls := range []map[string]func(*testing.T, clientOfBootstrapsvc) (string, error){leaderCalls, anyCalls} {
		for _, call := range calls {
			_, err := call(t, client)
			checkNoSource(t, err, "bootstrapsvc b1", "refused")
		}
	}
}

// Each replica has its own kube-apiserver: another one may be able to answer.
func TestBootstrap_CallsForAnyReplicaSkipOneThatCannotAnswer(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*bootstrapReplica){
		"its kube-apiserver is down": func(s *bootstrapReplica) { s.disconnected.Store(true) },
		"it is stopping":             func(s *bootstrapReplica) { s.stopping.Store(true) },
		"it hangs":                   func(s *bootstrapReplica) { s.hanging.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newBootstrapsvc("b1")
			one, m1 := c.start(t, "b1")
			_, m2 := c.start(t, "b2")
			client := bootstrapClient(t, newDirectory(m1, m2), time.Second)
			// On a busy machine a second is too short for a replica that can answer.
			answered := func(name, want string, call func(*testing.T, clientOfBootstrapsvc) (string, error)) {
				testkit.Eventually(t, time.Minute, func() error {
					if by, err := call(t, client); err != nil || by != want {
						return fmt.Errorf("%s is answered by %q (%w), want %s", name, by, err, want)
					}
					return nil
				})
			}
			answered("ListFindings", "b1", leaderCalls["ListFindings"]) // so that it is the known leader
			fail(one)
			for name, read := range anyCalls {
				answered(name, "b2", read)
			}
		})
	}
}

func TestBootstrap_AnswersPassUnchanged(t *testing.T) {
	t.Parallel()
	c := newBootstrapsvc("b1")
	c.find("30080")
	c.find("30081")
	one, m1 := c.start(t, "b1")
	client := bootstrapClient(t, newDirectory(m1), longTimeout)

	created, err := client.CreateRepairPlan(t.Context(), &bootstrapv1.CreateRepairPlanRequest{Findings: []string{"findings/leaked.node-ports.30081"}})
	plan := created.GetRepairPlan()
	if err != nil || len(plan.Steps) != 1 || plan.Steps[0].Change.Message != "bit 30081 is cleared" || plan.Etag == "" || plan.ExpireTime == nil || plan.SkippedFindingCount != 3 {
		t.Errorf("CreateRepairPlan() = %v, %v; want one step for 30081, with an etag, and that three are skipped", plan, err)
	}
	audit, err := client.AuditAllocations(t.Context(), &bootstrapv1.AuditAllocationsRequest{})
	if err != nil || audit.FindingCount != 2 || len(audit.Stores) != 1 {
		t.Errorf("AuditAllocations() = %v, %v; want two findings in one store", audit, err)
	}
	list, err := client.ListFindings(t.Context(), &bootstrapv1.ListFindingsRequest{PageSize: 1})
	if err != nil || len(list.Findings) != 1 || list.NextPageToken == "" {
		t.Fatalf("ListFindings() = %v, %v; want one of two", list, err)
	}
	list, err = client.ListFindings(t.Context(), &bootstrapv1.ListFindingsRequest{PageSize: 1, PageToken: list.NextPageToken})
	if err != nil || len(list.Findings) != 1 || list.Findings[0].Subject != "30081" || list.NextPageToken != "" {
		t.Errorf("ListFindings() = %v, %v; want the other one", list, err)
	}
	applied, err := client.ApplyRepairPlan(t.Context(), &bootstrapv1.ApplyRepairPlanRequest{Name: plan.Name, Etag: plan.Etag})
	if err != nil || applied.Repair.Plan != plan.Name {
		t.Errorf("ApplyRepairPlan() = %v, %v; want a repair of %s", applied, err, plan.Name)
	}
	repairs, err := client.ListRepairs(t.Context(), &bootstrapv1.ListRepairsRequest{})
	if err != nil || len(repairs.Repairs) != 1 {
		t.Errorf("ListRepairs() = %v, %v; want one", repairs, err)
	}

	_, err = client.CreateRepairPlan(t.Context(), &bootstrapv1.CreateRepairPlanRequest{Findings: []string{"findings/none"}})
	checkReason(t, err, codes.NotFound, "FINDING_NOT_FOUND")
	_, err = client.GetRepairPlan(t.Context(), &bootstrapv1.GetRepairPlanRequest{Name: "repairplans/none"})
	checkReason(t, err, codes.NotFound, "PLAN_NOT_FOUND")
	_, err = client.ApplyRepairPlan(t.Context(), &bootstrapv1.ApplyRepairPlanRequest{Name: "repairplans/old", Etag: "e1"})
	checkReason(t, err, codes.FailedPrecondition, "PLAN_EXPIRED")
	_, err = client.ListFindings(t.Context(), &bootstrapv1.ListFindingsRequest{PageToken: "forged"})
	checkReason(t, err, codes.InvalidArgument, rpcerror.InvalidPageTokenReason)
	one.disconnected.Store(true)
	_, err = client.CreateRepairPlan(t.Context(), &bootstrapv1.CreateRepairPlanRequest{})
	checkReason(t, err, codes.Unavailable, "APISERVER_UNREACHABLE")
	_, err = client.GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{})
	checkReason(t, err, codes.Unavailable, "APISERVER_UNREACHABLE")
}

// watchedFindings is a client of WatchFindings that keeps the findings.
type watchedFindings struct {
	t      *testing.T
	stream grpc.ServerStreamingClient[bootstrapv1.WatchFindingsResponse]
	seen   map[string]*bootstrapv1.Finding
}

func watchFindings(t *testing.T, client clientOfBootstrapsvc) *watchedFindings {
	t.Helper()
	stream, err := client.WatchFindings(t.Context(), &bootstrapv1.WatchFindingsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return &watchedFindings{t: t, stream: stream, seen: map[string]*bootstrapv1.Finding{}}
}

// until receives events up to one that is accepted, and returns it. A contradiction fails the test.
func (w *watchedFindings) until(accepts func(*bootstrapv1.WatchFindingsResponse) bool) *bootstrapv1.WatchFindingsResponse {
	w.t.Helper()
	for {
		event, err := w.stream.Recv()
		if err != nil {
			w.t.Fatal(err)
		}
		switch event.Type {
		case added:
			w.seen[event.Finding.Name] = event.Finding
		case modified:
			if w.seen[event.Finding.Name] == nil {
				w.t.Fatalf("%v although it was never added", event)
			}
			w.seen[event.Finding.Name] = event.Finding
		case deleted:
			if w.seen[event.Finding.Name] == nil {
				w.t.Fatalf("%v although it was never added", event)
			}
			delete(w.seen, event.Finding.Name)
		}
		if accepts(event) {
			return event
		}
	}
}

// isComplete accepts a bookmark without missing replicas.
func isComplete(event *bootstrapv1.WatchFindingsResponse) bool {
	return event.Type == bookmark && len(event.Bookmark.Missing) == 0
}

// isIncomplete accepts a bookmark with missing replicas.
func isIncomplete(event *bootstrapv1.WatchFindingsResponse) bool {
	return len(event.Bookmark.GetMissing()) > 0
}

func (w *watchedFindings) check(ports ...string) {
	w.t.Helper()
	want, got := map[string]bool{}, map[string]bool{}
	for _, port := range ports {
		want[port] = true
	}
	for _, finding := range w.seen {
		got[finding.Subject] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestWatchFindings_FollowsTheTermFromReplicaToReplica(t *testing.T) {
	t.Parallel()
	c := newBootstrapsvc("b1")
	c.find("30080")
	c.find("30081")
	one, m1 := c.start(t, "b1")
	two, m2 := c.start(t, "b2")
	watcher := watchFindings(t, bootstrapClient(t, newDirectory(m1, m2), longTimeout))
	watcher.until(isComplete)
	watcher.check("30080", "30081")

	c.find("30082")
	watcher.until(func(event *bootstrapv1.WatchFindingsResponse) bool { return event.GetFinding().GetSubject() == "30082" })
	c.repair("30080")
	ended := watcher.until(func(event *bootstrapv1.WatchFindingsResponse) bool {
		return event.Type == deleted
	})
	if ended.Finding.Subject != "30080" || ended.Finding.State != bootstrapv1.Finding_STATE_REPAIRED {
		t.Errorf("the end of a finding is %v, want 30080 as repaired", ended)
	}

	// Another replica leads. What ended in between is deleted, what remains stays.
	c.change(func() {
		delete(c.findings, "findings/leaked.node-ports.30081")
		c.epoch++
		c.leaders[0], c.epochs[0] = "b2", c.epoch
	})
	events := map[string]metav1.EventType{}
	watcher.until(func(event *bootstrapv1.WatchFindingsResponse) bool {
		if event.Finding != nil {
			events[event.Finding.Subject] = event.Type
		}
		return len(events) == 1 && isComplete(event)
	})
	want := map[string]metav1.EventType{
		"30081": deleted,
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("events of the next leader (-want +got):\n%s", diff)
	}
	watcher.check("30082")
	if one.watches.Load() != 0 || two.watches.Load() != 1 {
		t.Errorf("%d and %d streams, want one to the leader", one.watches.Load(), two.watches.Load())
	}
}

func TestWatchFindings_LeaderIsMissingUntilTheNextTerm(t *testing.T) {
	t.Parallel()
	c := newBootstrapsvc("b1")
	c.find("30080")
	one, m1 := c.start(t, "b1")
	_, m2 := c.start(t, "b2")
	members := newDirectory(m1, m2)
	client := bootstrapClient(t, members, longTimeout)
	watcher := watchFindings(t, client)
	watcher.until(isComplete)

	one.stopping.Store(true)
	c.elect("")
	missing := watcher.until(isIncomplete)
	watcher.check("30080") // unchanged
	if source := missing.Bookmark.Missing[0]; source.Service != "bootstrapsvc" || source.Code == code.Code_OK || source.Message == "" {
		t.Errorf("missing = %v, want a replica of bootstrapsvc, and why", missing.Bookmark.Missing)
	}
	late, err := client.WatchFindings(t.Context(), &bootstrapv1.WatchFindingsRequest{})
	if err == nil {
		_, err = late.Recv()
	}
	if rpcerror.ReasonOf(err) == "" {
		t.Errorf("a watch that starts now = %v, want an error with a reason", err)
	}

	members.set(m2)
	c.elect("b2")
	watcher.until(isComplete)
	watcher.check("30080")
}

func TestWatchFindings_NoLeaderAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		members func(*testing.T) *directory
		reason  rpcerror.Reason
	}{
		"no replica":       {members: func(*testing.T) *directory { return newDirectory() }, reason: "REPLICAS_UNREACHABLE"},
		"a dead replica":   {members: func(t *testing.T) *directory { return newDirectory(dead(t, "bootstrapsvc", "b1")) }, reason: "REPLICAS_UNREACHABLE"},
		"no leader":        {members: withoutLeader, reason: "NO_LEADER"},
		"a hanging leader": {members: hangingLeader, reason: "REPLICAS_UNREACHABLE"},
		"an older version": {members: olderVersion, reason: "UNKNOWN_METHOD"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := bootstrapClient(t, c.members(t), longTimeout)
			stream, err := client.WatchFindings(t.Context(), &bootstrapv1.WatchFindingsRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			if rpcerror.ReasonOf(err) != c.reason {
				t.Errorf("WatchFindings() = %v, want reason %s", err, c.reason)
			}
		})
	}
}

func withoutLeader(t *testing.T) *directory {
	_, member := newBootstrapsvc("").start(t, "b1")
	return newDirectory(member)
}

func hangingLeader(t *testing.T) *directory {
	one, member := newBootstrapsvc("b1").start(t, "b1")
	one.hanging.Store(true)
	return newDirectory(member)
}

// olderVersion is a replica without BootstrapService.
func olderVersion(t *testing.T) *directory {
	return newDirectory(serve(t, replica("bootstrapsvc", "b1"), func(grpc.ServiceRegistrar) {}))
}

func TestWatchFindings_ManyWatchersShareOneStream(t *testing.T) {
	t.Parallel()
	c := newBootstrapsvc("b1")
	c.find("30080")
	one, m1 := c.start(t, "b1")
	client := bootstrapClient(t, newDirectory(m1), longTimeout)
	var watchers []*watchedFindings
	for range 20 {
		watcher := watchFindings(t, client)
		watcher.until(isComplete)
		watchers = append(watchers, watcher)
	}
	c.find("30081")
	for _, watcher := range watchers {
		watcher.until(func(event *bootstrapv1.WatchFindingsResponse) bool { return event.GetFinding().GetSubject() == "30081" })
	}
	if streams := one.watches.Load(); streams != 1 {
		t.Errorf("%d streams for 20 watchers, want one", streams)
	}
}

func apiserver(address string, ready bool) *bootstrapv1.APIServer {
	return &bootstrapv1.APIServer{Name: "apiservers/" + address, Address: address, Port: 6443, Ready: ready}
}

// watchAPIServers returns a function that receives events until the known addresses are these.
func watchAPIServers(t *testing.T, client clientOfBootstrapsvc, token string) (until func(addresses ...string), stream grpc.ServerStreamingClient[bootstrapv1.WatchAPIServersResponse]) {
	t.Helper()
	stream, err := client.WatchAPIServers(t.Context(), &bootstrapv1.WatchAPIServersRequest{ResumeToken: token})
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	return func(addresses ...string) {
		t.Helper()
		for !slices.Equal(slices.Sorted(maps.Keys(known)), addresses) {
			event, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if event.Apiserver == nil {
				continue
			}
			if delete(known, event.Apiserver.Address); event.Type != deleted {
				known[event.Apiserver.Address] = true
			}
		}
	}, stream
}

func TestWatchAPIServers_ContinuesAtAnotherReplica(t *testing.T) {
	t.Parallel()
	c := newBootstrapsvc("b1")
	c.setAPIServers(apiserver("10.0.0.1", true))
	one, m1 := c.start(t, "b1")
	two, m2 := c.start(t, "b2")
	until, _ := watchAPIServers(t, bootstrapClient(t, newDirectory(m1, m2), longTimeout), "")
	until("10.0.0.1")
	c.setAPIServers(apiserver("10.0.0.1", true), apiserver("10.0.0.2", false))
	until("10.0.0.1", "10.0.0.2")
	one.stopping.Store(true)
	c.setAPIServers(apiserver("10.0.0.2", false))
	until("10.0.0.2")
	if one.watches.Load() != 0 || two.watches.Load() != 1 {
		t.Errorf("%d and %d streams, want one to b2", one.watches.Load(), two.watches.Load())
	}
}

// What was reported stays, and a bookmark says that it may be out of date.
func TestWatchAPIServers_IsIncompleteWithoutAReplica(t *testing.T) {
	t.Parallel()
	c := newBootstrapsvc("b1")
	c.setAPIServers(apiserver("10.0.0.1", true))
	one, m1 := c.start(t, "b1")
	until, stream := watchAPIServers(t, bootstrapClient(t, newDirectory(m1), longTimeout), "")
	until("10.0.0.1")
	one.stopping.Store(true)
	c.change(func() {})
	for {
		event, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if event.Type == deleted {
			t.Errorf("%v although no replica says so", event)
		}
		if len(event.Bookmark.GetMissing()) > 0 {
			return
		}
	}
}

func TestWatchBaselineAndRepairs_SendChanges(t *testing.T) {
	t.Parallel()
	c := newBootstrapsvc("b1")
	_, m1 := c.start(t, "b1")
	client := bootstrapClient(t, newDirectory(m1), longTimeout)
	baselines, err := client.WatchBaseline(t.Context(), &bootstrapv1.WatchBaselineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	repairs, err := client.WatchRepairs(t.Context(), &bootstrapv1.WatchRepairsRequest{States: []bootstrapv1.Repair_State{bootstrapv1.Repair_STATE_SUCCEEDED}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"lease", "static"} {
		for got := ""; got != want; {
			event, err := baselines.Recv()
			if err != nil {
				t.Fatal(err)
			}
			got = event.Baseline.GetEndpointReconciler()
		}
		c.change(func() {
			c.baseline = &bootstrapv1.Baseline{Name: "baseline", EndpointReconciler: "static"}
			c.repairs["repairs/a"] = &bootstrapv1.Repair{Name: "repairs/a", State: bootstrapv1.Repair_STATE_RUNNING}
			c.repairs["repairs/b"] = &bootstrapv1.Repair{Name: "repairs/b", State: bootstrapv1.Repair_STATE_SUCCEEDED}
		})
	}
	for got := ""; got != "repairs/b"; {
		event, err := repairs.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got = event.Repair.GetName(); got == "repairs/a" {
			t.Errorf("%v although the filter does not select it", event)
		}
	}
}

// A list and a watch with its token together miss nothing and repeat nothing.
func TestLists_WatchGoesOnAfterThem(t *testing.T) {
	t.Parallel()
	c := newBootstrapsvc("b1")
	c.setAPIServers(apiserver("10.0.0.1", true))
	_, m1 := c.start(t, "b1")
	_, m2 := c.start(t, "b2")
	client := bootstrapClient(t, newDirectory(m1, m2), longTimeout)
	list, err := client.ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{})
	if err != nil || list.ResumeToken != "" {
		t.Errorf("ListAPIServers() = %v, %v; want no token, because nothing is watched", list, err)
	}
	until, _ := watchAPIServers(t, client, "")
	until("10.0.0.1")
	if list, err = client.ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{}); err != nil || list.ResumeToken == "" || list.ResumeToken == "of b1" {
		t.Fatalf("ListAPIServers() = %v, %v; want a token of the gateway", list, err)
	}
	c.setAPIServers(apiserver("10.0.0.1", true), apiserver("10.0.0.2", true))
	until("10.0.0.1", "10.0.0.2")
	resumed, _ := watchAPIServers(t, client, list.ResumeToken)
	resumed("10.0.0.2")
	stream, err := client.WatchAPIServers(t.Context(), &bootstrapv1.WatchAPIServersRequest{ResumeToken: "of b1"})
	if err == nil {
		_, err = stream.Recv()
	}
	checkReason(t, err, codes.OutOfRange, rpcerror.ResumeTokenExpiredReason)
}

// An ended finding is deleted for a reader that did not ask for ended ones.
func TestWatchFindings_FilterDecidesWhatExists(t *testing.T) {
	t.Parallel()
	c := newBootstrapsvc("b1")
	c.find("30080")
	c.find("30081")
	c.repair("30081")
	_, m1 := c.start(t, "b1")
	client := bootstrapClient(t, newDirectory(m1), longTimeout)
	stream, err := client.WatchFindings(t.Context(), &bootstrapv1.WatchFindingsRequest{States: []bootstrapv1.Finding_State{bootstrapv1.Finding_STATE_REPAIRED}})
	if err != nil {
		t.Fatal(err)
	}
	ended := &watchedFindings{t: t, stream: stream, seen: map[string]*bootstrapv1.Finding{}}
	standing := watchFindings(t, client)
	ended.until(isComplete)
	standing.until(isComplete)
	ended.check("30081")
	standing.check("30080")
	c.repair("30080")
	ended.until(func(event *bootstrapv1.WatchFindingsResponse) bool { return event.Type == added })
	standing.until(func(event *bootstrapv1.WatchFindingsResponse) bool {
		return event.Type == deleted && event.Finding.State == bootstrapv1.Finding_STATE_REPAIRED
	})
	ended.check("30080", "30081")
	standing.check()
}

// A request that writes is repeated only at the replica that knows it by its id.
func TestWrites_LostAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lost    int64
		id      string
		repairs int
		failed  bool
	}{
		"the second answer arrives": {lost: 1, repairs: 1},
		"with an id of the client":  {lost: 1, id: "7b0f2f0c-8b1f-4b8e-9a52-8d1f6e1c9f60", repairs: 1},
		"no answer arrives":         {lost: 2, id: "7b0f2f0c-8b1f-4b8e-9a52-8d1f6e1c9f60", repairs: 1, failed: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newBootstrapsvc("b1")
			one, m1 := s.start(t, "b1")
			two, m2 := s.start(t, "b2")
			client := bootstrapClient(t, newDirectory(m1, m2), longTimeout)
			if _, err := client.ListFindings(t.Context(), &bootstrapv1.ListFindingsRequest{}); err != nil {
				t.Fatal(err) // b1 is the known leader now
			}
			one.dropped.Store(c.lost)
			request := &bootstrapv1.ApplyRepairPlanRequest{Name: "repairplans/p", Etag: "e1", RequestId: c.id}
			answer, err := client.ApplyRepairPlan(t.Context(), request)
			if c.failed {
				checkReason(t, err, codes.Unavailable, api.ReplicasUnreachableReason)
				if id := rpcerror.MetadataOf(err, "request_id"); id != c.id || !strings.Contains(err.Error(), "not known whether") {
					t.Errorf("ApplyRepairPlan() = %v with request id %q, want that the outcome is unknown and the id", err, id)
				}
			} else if err != nil || answer.Repair == nil {
				t.Errorf("ApplyRepairPlan() = %v, %v; want the repair", answer, err)
			}
			if len(one.allRepairs()) != c.repairs || two.calls.Load() != 0 {
				t.Errorf("%d repairs and %d calls of the other replica, want %d and none", len(one.allRepairs()), two.calls.Load(), c.repairs)
			}
			if _, known := s.applied[c.id]; c.id != "" && !known {
				t.Errorf("the replica knows the requests %v, want %s", s.applied, c.id)
			}
		})
	}
}

func TestBootstrap_StopEndsWatches(t *testing.T) {
	t.Parallel()
	c := newBootstrapsvc("b1")
	_, m1 := c.start(t, "b1")
	service := newGateway(t, newDirectory(m1), longTimeout)
	stop := run(t, service)
	client := newClientOfBootstrapsvc(testkit.Serve(t, service.Register))
	watcher := watchFindings(t, client)
	watcher.until(isComplete)
	apiservers, err := client.WatchAPIServers(t.Context(), &bootstrapv1.WatchAPIServersRequest{})
	if err != nil {
		t.Fatal(err)
	}

	stop()

	findings := func() error { _, err := watcher.stream.Recv(); return err }
	list := func() error { _, err := apiservers.Recv(); return err }
	for name, receive := range map[string]func() error{"findings": findings, "apiservers": list} {
		for err = nil; err == nil; {
			err = receive()
		}
		if rpcerror.ReasonOf(err) != rpcerror.ShuttingDownReason {
			t.Errorf("the watch of %s ended with %v, want SHUTTING_DOWN", name, err)
		}
	}
}

// postJSON sends a body to a path of the gateway.
func postJSON(t *testing.T, service *gateway.Service, path, body string) (*http.Response, []byte) {
	t.Helper()
	r := request(t, service, http.MethodPost, path)
	r.Header.Set("Content-Type", "application/json")
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	return do(t, r)
}

func TestHTTP_RoutesOfBootstrap(t *testing.T) {
	t.Parallel()
	c := newBootstrapsvc("b2")
	c.find("30080")
	c.find("30081")
	c.setAPIServers(apiserver("10.0.0.1", true))
	c.repairs["repairs/abc"] = &bootstrapv1.Repair{Name: "repairs/abc", Requester: &metav1.Caller{User: "trivet:auto"}}
	c.plans["repairplans/p1"] = &bootstrapv1.RepairPlan{Name: "repairplans/p1"}
	_, m1 := c.start(t, "b1")
	_, m2 := c.start(t, "b2")
	service := startGateway(t, newDirectory(m1, m2), longTimeout)
	check := func(path, want string, response *http.Response, body []byte) {
		t.Helper()
		if response.StatusCode != http.StatusOK || !strings.Contains(strings.ReplaceAll(string(body), `": `, `":`), want) {
			t.Errorf("%s: %s: %s, want 200 with %s", path, response.Status, body, want)
		}
	}
	for path, want := range map[string]string{
		"/v1/baseline":               `"endpointReconciler":"lease"`,
		"/v1/apiservers":             `"name":"apiservers/10.0.0.1"`,
		"/v1/findings":               `"name":"findings/leaked.node-ports.30081"`,
		"/v1/findings?codes=ORPHAN":  `"findings":[]`,
		"/v1/findings?pageSize=1":    `"nextPageToken":"[] []|findings/leaked.node-ports.30080"`,
		"/v1/repairs":                `"user":"trivet:auto"`,
		"/v1/repairplans/p1":         `"name":"repairplans/p1"`,
		"/clusters/test/v1/baseline": `"endpointReconciler":"lease"`,
		"/v1/shards":                 `"leaderId":"b2"`,
	} {
		response, body := send(t, service, http.MethodGet, path)
		check(path, want, response, body)
	}
	for path, want := range map[string]string{
		"/v1/repairplans": `"message":"bit 30081 is cleared"`,
		"/v1/findings/leaked.node-ports.30080:ignore": `"state":"STATE_IGNORED"`,
		"/v1/baseline:reconcile":                      `"sources":[`,
	} {
		response, body := postJSON(t, service, path, `{"validateOnly": true}`)
		check(path, want, response, body)
	}
	for name, finding := range copyOf(c, func() map[string]*bootstrapv1.Finding { return c.findings }) {
		if finding.State != bootstrapv1.Finding_STATE_OPEN {
			t.Errorf("%s is %s after a request with validateOnly", name, finding.State)
		}
	}
}

func TestHTTP_ErrorsOfBootstrap(t *testing.T) {
	t.Parallel()
	c := newBootstrapsvc("b1")
	one, m1 := c.start(t, "b1")
	service := startGateway(t, newDirectory(m1), longTimeout)
	for path, want := range map[string]struct {
		status int
		reason string
	}{
		"/v1/findings?codes=leek":           {status: 400, reason: "VALIDATION_FAILED"},
		"/v1/findings?states=LEEK":          {status: 400, reason: "VALIDATION_FAILED"},
		"/v1/findings?pageSize=-1":          {status: 400, reason: "VALIDATION_FAILED"},
		"/v1/findings:watch?pageSize=1":     {status: 400, reason: "VALIDATION_FAILED"},
		"/v1/baseline?validateOnly=true":    {status: 400, reason: "VALIDATION_FAILED"},
		"/v1/repairplans/none":              {status: 404, reason: "PLAN_NOT_FOUND"},
		"/v1/shards?pageToken=noise":        {status: 400, reason: "INVALID_PAGE_TOKEN"},
		"/clusters/other/v1/baseline":       {status: 404, reason: "UNKNOWN_PATH"},
		"/v1/baseline?asOfTime=2026-01-01Z": {status: 400, reason: "VALIDATION_FAILED"},
	} {
		response, body := send(t, service, http.MethodGet, path)
		var got errorJSON
		decode(t, body, &got)
		if response.StatusCode != want.status || len(got.Details) == 0 || got.Details[0].Reason != want.reason {
			t.Errorf("%s: %s: %s, want %d with reason %s", path, response.Status, body, want.status, want.reason)
		}
	}
	before := one.calls.Load()
	for _, path := range []string{"/v1/repairplans", "/v1/repairplans/p1:apply", "/v1/findings:audit", "/v1/findings/f1:ignore", "/v1/baseline:reconcile", "/v1/repairs/r1:cancel"} {
		for _, method := range []string{http.MethodPut, http.MethodPatch, http.MethodDelete} {
			if response, body := send(t, service, method, path); response.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %s: %s, want 405", method, path, response.Status, body)
			}
		}
		if response, body := postJSON(t, service, path, `{}`); response.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %s: %s, want 405", path, response.Status, body)
		}
	}
	if calls := one.calls.Load(); calls != before {
		t.Errorf("%d calls reached the replica from requests that write", calls-before)
	}
}

// A thousand names exceed a URL, and fit into a body.
func TestHTTP_PlansForManyNames(t *testing.T) {
	t.Parallel()
	c := newBootstrapsvc("b1")
	var names []string
	const many = 1000
	for i := range many {
		port := fmt.Sprint(30000 + i)
		c.find(port)
		names = append(names, `"findings/leaked.node-ports.`+port+`"`)
	}
	_, m1 := c.start(t, "b1")
	service := startGateway(t, newDirectory(m1), longTimeout)
	response, body := postJSON(t, service, "/v1/repairplans", `{"validateOnly": true, "findings": [`+strings.Join(names, ",")+`]}`)
	if steps := strings.Count(string(body), `is cleared`); response.StatusCode != http.StatusOK || steps != many {
		t.Errorf("%s with %d steps, want 200 with %d", response.Status, steps, many)
	}
}

func TestBootstrap_FollowsAReplacedReplica(t *testing.T) {
	t.Parallel()
	c := newBootstrapsvc("b1")
	c.find("30080")
	_, m1 := c.start(t, "b1")
	members := newDirectory(m1)
	client := bootstrapClient(t, members, longTimeout)
	watcher := watchFindings(t, client)
	watcher.until(isComplete)
	_, m2 := c.start(t, "b2")
	c.elect("b2")
	members.set(m2)
	testkit.Eventually(t, time.Minute, func() error {
		if by, err := leaderCalls["ListFindings"](t, client); err != nil || by != "b2" {
			return errors.Join(fmt.Errorf("ListFindings is answered by %q, want b2", by), err)
		}
		return nil
	})
	watcher.until(isComplete)
}
