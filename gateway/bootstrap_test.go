package gateway_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/testkit"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// bootstrapClient runs a gateway over the members and returns a client of its BootstrapService.
func bootstrapClient(t *testing.T, members *directory, timeout time.Duration) gatewayv1.BootstrapServiceClient {
	t.Helper()
	service := startGateway(t, members, timeout)
	return gatewayv1.NewBootstrapServiceClient(testkit.Serve(t, service.Register))
}

// holderCalls are the unary calls that only the holder of the term answers. They return the id of
// the replica that answered.
var holderCalls = map[string]func(*testing.T, gatewayv1.BootstrapServiceClient) (string, error){
	"ListFindings": func(t *testing.T, client gatewayv1.BootstrapServiceClient) (string, error) {
		answer, err := client.ListFindings(t.Context(), &gatewayv1.ListFindingsRequest{})
		return answer.GetFreshness().GetReplicaId(), err
	},
	"Audit": func(t *testing.T, client gatewayv1.BootstrapServiceClient) (string, error) {
		answer, err := client.Audit(t.Context(), &gatewayv1.AuditRequest{})
		return answer.GetFreshness().GetReplicaId(), err
	},
	"PlanRepair": func(t *testing.T, client gatewayv1.BootstrapServiceClient) (string, error) {
		answer, err := client.PlanRepair(t.Context(), &gatewayv1.PlanRepairRequest{})
		return answer.GetFreshness().GetReplicaId(), err
	},
	"ApplyRepair": func(t *testing.T, client gatewayv1.BootstrapServiceClient) (string, error) {
		answer, err := client.ApplyRepair(t.Context(), &gatewayv1.ApplyRepairRequest{Token: "t"})
		return answer.GetFreshness().GetReplicaId(), err
	},
}

// anyCalls are the unary calls that each replica answers.
var anyCalls = map[string]func(*testing.T, gatewayv1.BootstrapServiceClient) (string, error){
	"GetBaseline": func(t *testing.T, client gatewayv1.BootstrapServiceClient) (string, error) {
		answer, err := client.GetBaseline(t.Context(), &gatewayv1.GetBaselineRequest{})
		return answer.GetFreshness().GetReplicaId(), err
	},
	"ListAPIServers": func(t *testing.T, client gatewayv1.BootstrapServiceClient) (string, error) {
		answer, err := client.ListAPIServers(t.Context(), &gatewayv1.ListAPIServersRequest{})
		return answer.GetFreshness().GetReplicaId(), err
	},
	"ListRepairs": func(t *testing.T, client gatewayv1.BootstrapServiceClient) (string, error) {
		answer, err := client.ListRepairs(t.Context(), &gatewayv1.ListRepairsRequest{})
		return answer.GetFreshness().GetReplicaId(), err
	},
}

func TestBootstrap_CallsForTheHolderFollowTheTerm(t *testing.T) {
	c := newBootstrapsvc("b2")
	one, m1 := c.start(t, "b1")
	_, m2 := c.start(t, "b2")
	client := bootstrapClient(t, newDirectory(m1, m2), longTimeout)
	for name, ask := range holderCalls {
		for _, holder := range []string{"b2", "b1", "b2"} {
			c.elect(holder)
			if by, err := ask(t, client); err != nil || by != holder {
				t.Errorf("%s is answered by %q (%v), want the holder %s", name, by, err, holder)
			}
		}
	}
	for name, read := range anyCalls {
		before := one.calls.Load()
		if by, err := read(t, client); err != nil || by != "b2" || one.calls.Load() != before {
			t.Errorf("%s is answered by %q (%v), want only b2, which holds the term", name, by, err)
		}
	}
}

func TestBootstrap_WithoutAHolder(t *testing.T) {
	c := newBootstrapsvc("")
	_, m1 := c.start(t, "b1")
	_, m2 := c.start(t, "b2")
	client := bootstrapClient(t, newDirectory(m1, m2), longTimeout)
	for name, ask := range holderCalls {
		if _, err := ask(t, client); status.Code(err) != codes.Unavailable || rpcerror.ReasonOf(err) != rpcerror.NotLeaderReason {
			t.Errorf("%s = %v, want UNAVAILABLE with reason NOT_LEADER", name, err)
		}
	}
	for name, read := range anyCalls {
		if by, err := read(t, client); err != nil || by == "" {
			t.Errorf("%s = %v, want the answer of any replica", name, err)
		}
	}
}

func TestBootstrap_NoReplicaAnswers(t *testing.T) {
	client := bootstrapClient(t, newDirectory(dead(t, "bootstrapsvc", "b1"), healthy(t, "leasesvc", "l1")), longTimeout)
	for _, calls := range []map[string]func(*testing.T, gatewayv1.BootstrapServiceClient) (string, error){holderCalls, anyCalls} {
		for _, call := range calls {
			_, err := call(t, client)
			checkNoSource(t, err, "bootstrapsvc b1", "refused")
		}
	}
}

// Each replica has its own kube-apiserver: another one may be able to answer.
func TestBootstrap_CallsForAnyReplicaSkipOneThatCannotAnswer(t *testing.T) {
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
			if by, err := holderCalls["ListFindings"](t, client); err != nil || by != "b1" {
				t.Fatalf("ListFindings is answered by %q (%v), want b1, so that it is the known holder", by, err)
			}
			fail(one)
			for name, read := range anyCalls {
				if by, err := read(t, client); err != nil || by != "b2" {
					t.Errorf("%s is answered by %q (%v), want b2", name, by, err)
				}
			}
		})
	}
}

func TestBootstrap_AnswersPassUnchanged(t *testing.T) {
	c := newBootstrapsvc("b1")
	c.find("30080")
	c.find("30081")
	one, m1 := c.start(t, "b1")
	client := bootstrapClient(t, newDirectory(m1), longTimeout)

	plan, err := client.PlanRepair(t.Context(), &gatewayv1.PlanRepairRequest{Names: []string{"findings/leaked.node-ports.30081"}})
	if err != nil || len(plan.Steps) != 1 || plan.Steps[0].Change.Detail != "bit 30081 is cleared" || plan.Token == "" || plan.ExpireTime == nil || plan.LeftOmitted != 3 {
		t.Errorf("PlanRepair() = %v, %v; want one step for 30081, with a token, and that three are omitted", plan, err)
	}
	audit, err := client.Audit(t.Context(), &gatewayv1.AuditRequest{})
	if err != nil || audit.Findings != 2 || len(audit.Stores) != 1 {
		t.Errorf("Audit() = %v, %v; want two findings in one store", audit, err)
	}
	list, err := client.ListFindings(t.Context(), &gatewayv1.ListFindingsRequest{PageSize: 1})
	if err != nil || len(list.Findings) != 1 || list.NextPageToken == "" {
		t.Fatalf("ListFindings() = %v, %v; want one of two", list, err)
	}
	list, err = client.ListFindings(t.Context(), &gatewayv1.ListFindingsRequest{PageSize: 1, PageToken: list.NextPageToken})
	if err != nil || len(list.Findings) != 1 || list.Findings[0].Subject != "30081" || list.NextPageToken != "" {
		t.Errorf("ListFindings() = %v, %v; want the other one", list, err)
	}
	applied, err := client.ApplyRepair(t.Context(), &gatewayv1.ApplyRepairRequest{Token: "abc"})
	if err != nil || applied.Repair.Name != "repairs/abc" {
		t.Errorf("ApplyRepair() = %v, %v; want repairs/abc", applied, err)
	}
	repairs, err := client.ListRepairs(t.Context(), &gatewayv1.ListRepairsRequest{})
	if err != nil || len(repairs.Repairs) != 1 {
		t.Errorf("ListRepairs() = %v, %v; want one", repairs, err)
	}

	_, err = client.PlanRepair(t.Context(), &gatewayv1.PlanRepairRequest{Names: []string{"findings/none"}})
	checkReason(t, err, codes.NotFound, "FINDING_NOT_FOUND")
	_, err = client.ApplyRepair(t.Context(), &gatewayv1.ApplyRepairRequest{Token: "old"})
	checkReason(t, err, codes.FailedPrecondition, "REPAIR_TOKEN_EXPIRED")
	_, err = client.ApplyRepair(t.Context(), &gatewayv1.ApplyRepairRequest{})
	checkReason(t, err, codes.InvalidArgument, rpcerror.ValidationFailedReason)
	_, err = client.ListFindings(t.Context(), &gatewayv1.ListFindingsRequest{PageToken: "forged"})
	checkReason(t, err, codes.InvalidArgument, rpcerror.InvalidPageTokenReason)
	one.disconnected.Store(true)
	_, err = client.PlanRepair(t.Context(), &gatewayv1.PlanRepairRequest{})
	checkReason(t, err, codes.Unavailable, "APISERVER_UNREACHABLE")
	_, err = client.GetBaseline(t.Context(), &gatewayv1.GetBaselineRequest{})
	checkReason(t, err, codes.Unavailable, "APISERVER_UNREACHABLE")
}

// watchedFindings is a client of WatchFindings that keeps the findings.
type watchedFindings struct {
	t      *testing.T
	stream grpc.ServerStreamingClient[gatewayv1.WatchFindingsResponse]
	seen   map[string]*bootstrapv1.Finding
}

func watchFindings(t *testing.T, client gatewayv1.BootstrapServiceClient) *watchedFindings {
	t.Helper()
	stream, err := client.WatchFindings(t.Context(), &gatewayv1.WatchFindingsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return &watchedFindings{t: t, stream: stream, seen: map[string]*bootstrapv1.Finding{}}
}

// until receives events up to one that is accepted, and returns it. A contradiction fails the test.
func (w *watchedFindings) until(accepts func(*gatewayv1.WatchFindingsResponse) bool) *gatewayv1.WatchFindingsResponse {
	w.t.Helper()
	for {
		event, err := w.stream.Recv()
		if err != nil {
			w.t.Fatal(err)
		}
		switch event.Type {
		case bootstrapv1.WatchFindingsResponse_TYPE_ADDED:
			w.seen[event.Finding.Name] = event.Finding
		case bootstrapv1.WatchFindingsResponse_TYPE_MODIFIED:
			if w.seen[event.Finding.Name] == nil {
				w.t.Fatalf("%v although it was never added", event)
			}
			w.seen[event.Finding.Name] = event.Finding
		case bootstrapv1.WatchFindingsResponse_TYPE_DELETED:
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
func isComplete(event *gatewayv1.WatchFindingsResponse) bool {
	return event.Type == bootstrapv1.WatchFindingsResponse_TYPE_BOOKMARK && len(event.Missing) == 0
}

// isIncomplete accepts a bookmark with missing replicas.
func isIncomplete(event *gatewayv1.WatchFindingsResponse) bool { return len(event.Missing) > 0 }

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
	c := newBootstrapsvc("b1")
	c.find("30080")
	c.find("30081")
	one, m1 := c.start(t, "b1")
	two, m2 := c.start(t, "b2")
	watcher := watchFindings(t, bootstrapClient(t, newDirectory(m1, m2), longTimeout))
	watcher.until(isComplete)
	watcher.check("30080", "30081")

	c.find("30082")
	watcher.until(func(event *gatewayv1.WatchFindingsResponse) bool { return event.GetFinding().GetSubject() == "30082" })
	c.repair("30080")
	ended := watcher.until(func(event *gatewayv1.WatchFindingsResponse) bool {
		return event.Type == bootstrapv1.WatchFindingsResponse_TYPE_DELETED
	})
	if ended.Finding.Subject != "30080" || ended.Finding.State != bootstrapv1.Finding_STATE_REPAIRED {
		t.Errorf("the end of a finding is %v, want 30080 as repaired", ended)
	}

	// The term moves. What ended in between is deleted, what remains is added again.
	c.change(func() {
		delete(c.findings, "findings/leaked.node-ports.30081")
		c.epoch++
		c.holders[0], c.epochs[0] = "b2", c.epoch
	})
	events := map[string]bootstrapv1.WatchFindingsResponse_Type{}
	watcher.until(func(event *gatewayv1.WatchFindingsResponse) bool {
		if event.Finding != nil {
			events[event.Finding.Subject] = event.Type
		}
		return len(events) == 2 && isComplete(event)
	})
	want := map[string]bootstrapv1.WatchFindingsResponse_Type{
		"30082": bootstrapv1.WatchFindingsResponse_TYPE_ADDED, "30081": bootstrapv1.WatchFindingsResponse_TYPE_DELETED,
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("events of the next holder (-want +got):\n%s", diff)
	}
	watcher.check("30082")
	if one.watches.Load() != 0 || two.watches.Load() != 1 {
		t.Errorf("%d and %d streams, want one to the holder", one.watches.Load(), two.watches.Load())
	}
}

func TestWatchFindings_HolderIsMissingUntilTheNextTerm(t *testing.T) {
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
	if source := missing.Missing[0]; source.Replica.GetService() != "bootstrapsvc" || source.Code != "UNAVAILABLE" || source.Message == "" {
		t.Errorf("missing = %v, want a replica of bootstrapsvc, unavailable, and why", missing.Missing)
	}
	late, err := client.WatchFindings(t.Context(), &gatewayv1.WatchFindingsRequest{})
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

func TestWatchFindings_NoHolderAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		members func(*testing.T) *directory
		reason  rpcerror.Reason
	}{
		"no replica":       {members: func(*testing.T) *directory { return newDirectory() }, reason: "NO_SOURCE"},
		"a dead replica":   {members: func(t *testing.T) *directory { return newDirectory(dead(t, "bootstrapsvc", "b1")) }, reason: "NO_SOURCE"},
		"no holder":        {members: withoutHolder, reason: "NOT_LEADER"},
		"a hanging holder": {members: hangingHolder, reason: "NO_SOURCE"},
		"an older version": {members: olderVersion, reason: "UNKNOWN_METHOD"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := bootstrapClient(t, c.members(t), time.Second)
			stream, err := client.WatchFindings(t.Context(), &gatewayv1.WatchFindingsRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			if rpcerror.ReasonOf(err) != c.reason {
				t.Errorf("WatchFindings() = %v, want reason %s", err, c.reason)
			}
		})
	}
}

func withoutHolder(t *testing.T) *directory {
	_, member := newBootstrapsvc("").start(t, "b1")
	return newDirectory(member)
}

func hangingHolder(t *testing.T) *directory {
	one, member := newBootstrapsvc("b1").start(t, "b1")
	one.hanging.Store(true)
	return newDirectory(member)
}

// olderVersion is a replica without BootstrapService.
func olderVersion(t *testing.T) *directory {
	return newDirectory(serve(t, replica("bootstrapsvc", "b1"), func(grpc.ServiceRegistrar) {}))
}

func TestWatchFindings_ManyWatchersShareOneStream(t *testing.T) {
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
		watcher.until(func(event *gatewayv1.WatchFindingsResponse) bool { return event.GetFinding().GetSubject() == "30081" })
	}
	if streams := one.watches.Load(); streams != 1 {
		t.Errorf("%d streams for 20 watchers, want one", streams)
	}
}

func apiserver(address string, ready bool) *bootstrapv1.APIServer {
	return &bootstrapv1.APIServer{Name: "apiservers/" + address, Address: address, Port: 6443, Ready: ready, Published: ready}
}

func TestWatchAPIServers_ContinuesAtAnotherReplica(t *testing.T) {
	c := newBootstrapsvc("b1")
	c.apiservers = []*bootstrapv1.APIServer{apiserver("10.0.0.1", true)}
	one, m1 := c.start(t, "b1")
	_, m2 := c.start(t, "b2")
	client := bootstrapClient(t, newDirectory(m1, m2), longTimeout)
	stream, err := client.WatchAPIServers(t.Context(), &gatewayv1.WatchAPIServersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	until := func(accepts func(*gatewayv1.WatchAPIServersResponse) bool) {
		t.Helper()
		for {
			list, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if accepts(list) {
				return
			}
		}
	}
	until(func(list *gatewayv1.WatchAPIServersResponse) bool {
		return len(list.Apiservers) == 1 && list.Freshness.ReplicaId == "b1"
	})
	c.change(func() { c.apiservers = append(c.apiservers, apiserver("10.0.0.2", false)) })
	until(func(list *gatewayv1.WatchAPIServersResponse) bool { return len(list.Apiservers) == 2 })
	one.stopping.Store(true)
	c.change(func() { c.apiservers = c.apiservers[:1] })
	until(func(list *gatewayv1.WatchAPIServersResponse) bool {
		return len(list.Apiservers) == 1 && list.Freshness.ReplicaId == "b2"
	})
}

// A client cannot tell an old list from a current one.
func TestWatchAPIServers_EndsWithoutAReplica(t *testing.T) {
	c := newBootstrapsvc("b1")
	one, m1 := c.start(t, "b1")
	stream, err := bootstrapClient(t, newDirectory(m1), longTimeout).WatchAPIServers(t.Context(), &gatewayv1.WatchAPIServersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	one.stopping.Store(true)
	c.change(func() {})
	for err == nil {
		_, err = stream.Recv()
	}
	if rpcerror.ReasonOf(err) != rpcerror.ShuttingDownReason {
		t.Errorf("the watch ended with %v, want the error of the replica", err)
	}
}

func TestBootstrap_StopEndsWatches(t *testing.T) {
	c := newBootstrapsvc("b1")
	_, m1 := c.start(t, "b1")
	service := newGateway(t, newDirectory(m1), longTimeout)
	stop := run(t, service)
	client := gatewayv1.NewBootstrapServiceClient(testkit.Serve(t, service.Register))
	watcher := watchFindings(t, client)
	watcher.until(isComplete)
	apiservers, err := client.WatchAPIServers(t.Context(), &gatewayv1.WatchAPIServersRequest{})
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

func TestHTTP_RoutesOfBootstrap(t *testing.T) {
	c := newBootstrapsvc("b2")
	c.find("30080")
	c.find("30081")
	c.apiservers = []*bootstrapv1.APIServer{apiserver("10.0.0.1", true)}
	c.repairs = []*bootstrapv1.Repair{{Name: "repairs/abc", Requester: "auto"}}
	_, m1 := c.start(t, "b1")
	_, m2 := c.start(t, "b2")
	service := startGateway(t, newDirectory(m1, m2), longTimeout)
	for path, want := range map[string]string{
		"/v1/baseline":                  `"endpointReconciler":"lease"`,
		"/v1/apiservers":                `"name":"apiservers/10.0.0.1"`,
		"/v1/findings":                  `"name":"findings/leaked.node-ports.30081"`,
		"/v1/findings?code=CODE_ORPHAN": `"findings":[]`,
		"/v1/findings?pageSize=1":       `"nextPageToken":"CODE_UNSPECIFIED|findings/leaked.node-ports.30080"`,
		"/v1/repairs":                   `"requester":"auto"`,
		"/v1/repairs:plan":              `"detail":"bit 30081 is cleared"`,
		"/v1/repairs:plan?names=findings/leaked.node-ports.30080&names=findings/leaked.node-ports.30081": `"detail":"bit 30081 is cleared"`,
	} {
		response, body := send(t, service, http.MethodGet, path)
		if response.StatusCode != http.StatusOK || !strings.Contains(strings.ReplaceAll(string(body), `": `, `":`), want) {
			t.Errorf("%s: %s: %s, want 200 with %s", path, response.Status, body, want)
		}
	}
}

func TestHTTP_ErrorsOfBootstrap(t *testing.T) {
	c := newBootstrapsvc("b1")
	one, m1 := c.start(t, "b1")
	service := startGateway(t, newDirectory(m1), longTimeout)
	for path, want := range map[string]struct {
		status int
		reason string
	}{
		"/v1/repairs:plan?names=findings/none":    {status: 404, reason: "FINDING_NOT_FOUND"},
		"/v1/repairs:plan?name=findings/none":     {status: 400, reason: "VALIDATION_FAILED"},
		"/v1/repairs:plan?names=nodes/n1":         {status: 400, reason: "VALIDATION_FAILED"},
		"/v1/repairs:plan?names=findings/../None": {status: 400, reason: "VALIDATION_FAILED"},
		"/v1/findings?code=99":                    {status: 400, reason: "VALIDATION_FAILED"},
		"/v1/findings?code=LEEK":                  {status: 400, reason: "VALIDATION_FAILED"},
		"/v1/findings?pageSize=-1":                {status: 400, reason: "VALIDATION_FAILED"},
		"/v1/findings:watch?code=CODE_LEAKED":     {status: 400, reason: "VALIDATION_FAILED"},
		"/v1/baseline?validateOnly=true":          {status: 400, reason: "VALIDATION_FAILED"},
	} {
		response, body := send(t, service, http.MethodGet, path)
		var got errorJSON
		decode(t, body, &got)
		if response.StatusCode != want.status || len(got.Details) == 0 || got.Details[0].Reason != want.reason {
			t.Errorf("%s: %s: %s, want %d with reason %s", path, response.Status, body, want.status, want.reason)
		}
	}
	before := one.calls.Load()
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodGet} {
		for _, path := range []string{"/v1/repairs:apply", "/v1/repairs:apply?token=t", "/v1/findings:audit", "/v1/baseline:reconcile"} {
			response, body := send(t, service, method, path)
			if response.StatusCode < 400 || response.StatusCode >= 500 {
				t.Errorf("%s %s: %s: %s, want an error", method, path, response.Status, body)
			}
		}
	}
	if calls := one.calls.Load(); calls != before {
		t.Errorf("%d calls reached the replica from requests that write", calls-before)
	}
}

func TestHTTP_PlansForManyNames(t *testing.T) {
	c := newBootstrapsvc("b1")
	var query strings.Builder
	const many = 200
	for i := range many {
		port := fmt.Sprint(30000 + i)
		c.find(port)
		fmt.Fprintf(&query, "&names=findings/leaked.node-ports.%s", port)
	}
	_, m1 := c.start(t, "b1")
	service := startGateway(t, newDirectory(m1), longTimeout)
	response, body := send(t, service, http.MethodGet, "/v1/repairs:plan?"+query.String()[1:])
	if steps := strings.Count(string(body), `is cleared`); response.StatusCode != http.StatusOK || steps != many {
		t.Errorf("%s with %d steps, want 200 with %d", response.Status, steps, many)
	}
}

func TestBootstrap_FollowsAReplacedReplica(t *testing.T) {
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
	testkit.Eventually(t, 10*time.Second, func() error {
		if by, err := holderCalls["ListFindings"](t, client); err != nil || by != "b2" {
			return errors.Join(fmt.Errorf("ListFindings is answered by %q, want b2", by), err)
		}
		return nil
	})
	watcher.until(isComplete)
}
