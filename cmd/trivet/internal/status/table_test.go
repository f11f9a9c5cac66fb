package status

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

var noon = time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC)

// replica returns the answer of a ready replica that leads shards.
func replica(service, id string, up time.Duration, shards int32, led []int32, counts map[string]int64, loops ...*statusv1.Loop) *statusv1.ReplicaStatus {
	return &statusv1.ReplicaStatus{
		Replica: &statusv1.Replica{Id: id, Service: service, Cluster: "main", Version: "v0.1.0", GrpcAddress: "127.0.0.1:7601", StartTime: timestamppb.New(noon.Add(-up))},
		Ready:   true, ShardCount: shards, LedShards: led, Counts: counts, Loops: loops,
	}
}

func unready(answer *statusv1.ReplicaStatus, dependency string) *statusv1.ReplicaStatus {
	answer.Ready = false
	answer.Dependencies = []*statusv1.Dependency{{Name: "etcd", Message: dependency}, {Name: "kube-apiserver", Healthy: true}}
	return answer
}

func loop(name string, state statusv1.Loop_State, lastError string) *statusv1.Loop {
	return &statusv1.Loop{Name: name, State: state, LastError: lastError, RunCount: 120, FailureCount: int64(len(lastError))}
}

func running(name string) *statusv1.Loop { return loop(name, statusv1.Loop_STATE_RUNNING, "") }

func problem(severity metav1.Problem_Severity, service, resource, message, next string) *metav1.Problem {
	return &metav1.Problem{Code: "SOME_CODE", Severity: severity, Service: service, Resource: resource, Message: message, Next: next}
}

// verdict returns the verdict that follows from problems, of which the first is the worst.
func verdict(problems ...*metav1.Problem) *metav1.Verdict {
	state := metav1.Verdict_STATE_OK
	if len(problems) > 0 {
		state = metav1.Verdict_State(problems[0].Severity)
	}
	return &metav1.Verdict{State: state, Problems: problems}
}

// service returns the status of a service. The verdict has the problems of the cluster that are
// about the service.
func service(name string, verdict *metav1.Verdict, answers ...*statusv1.ReplicaStatus) *gatewayv1.ServiceStatus {
	s := &gatewayv1.ServiceStatus{Service: name, Verdict: verdict}
	for _, answer := range answers {
		s.ShardCount = answer.ShardCount
		s.LedShardCount += int32(len(answer.LedShards))
		s.Replicas = append(s.Replicas, &gatewayv1.ReplicaResult{Replica: answer.Replica, Status: answer, Latency: durationpb.New(time.Millisecond)})
	}
	return s
}

// cluster returns the status of services.
func cluster(services ...*gatewayv1.ServiceStatus) *gatewayv1.GetClusterStatusResponse {
	var problems []*metav1.Problem
	for _, service := range services {
		problems = append(problems, service.GetVerdict().GetProblems()...)
	}
	slices.SortStableFunc(problems, func(a, b *metav1.Problem) int { return cmp.Compare(b.Severity, a.Severity) })
	return &gatewayv1.GetClusterStatusResponse{Status: &gatewayv1.ClusterStatus{
		Cluster: "main", Verdict: verdict(problems...), Services: services, MergeTime: timestamppb.New(noon),
	}}
}

func okCluster() *gatewayv1.GetClusterStatusResponse {
	disabled, standby := loop("repair", statusv1.Loop_STATE_DISABLED, ""), loop("apiservers", statusv1.Loop_STATE_STANDBY, "")
	return cluster(
		service("leasesvc", verdict(), replica("leasesvc", "node-1-h3d9c", 3*time.Hour+12*time.Minute, 1, []int32{0}, map[string]int64{"holders": 20, "leases": 20}, running("expiry"), running("writeback"))),
		service("bootstrapsvc", verdict(),
			replica("bootstrapsvc", "node-1-x7k2p", 42*time.Second, 1, []int32{0}, map[string]int64{"namespaces": 4}, running("apiservers"), disabled),
			replica("bootstrapsvc", "node-2-q1w2e", 50*time.Hour, 1, nil, nil, standby)),
		service("slicesvc", verdict(), replica("slicesvc", "node-1-b8m1f", 61*time.Second, 1, []int32{0}, map[string]int64{"endpoint_slices": 12}, running("reconcile"))),
		service("gateway", verdict(), replica("gateway", "node-1-p0q4z", -time.Second, 0, nil, nil)),
	)
}

func failedCluster() *gatewayv1.GetClusterStatusResponse {
	const failure, unknown, warning = metav1.Problem_SEVERITY_ERROR, metav1.Problem_SEVERITY_UNKNOWN, metav1.Problem_SEVERITY_WARNING
	lease := service("leasesvc", verdict(problem(unknown, "leasesvc", "replicas/node-2-slow1", "replica node-2-slow1 did not answer within 1s", "look at its log"),
		problem(warning, "leasesvc", "nodes/node-7", "node-7 is silent and 2 more", "")),
		replica("leasesvc", "node-1-h3d9c", time.Hour, 4, []int32{0, 1, 2}, nil, running("expiry"), loop("writeback", statusv1.Loop_STATE_FAILING, "put lease kube-node-lease/node-7: conflict")))
	lease.Replicas = append(lease.Replicas, &gatewayv1.ReplicaResult{Replica: &statusv1.Replica{Id: "node-2-slow1", Service: "leasesvc"}})
	leaderless := problem(failure, "bootstrapsvc", "shards/bootstrapsvc/0", "shard 0 of bootstrapsvc has no leader", "start a replica of bootstrapsvc, or read its log")
	leaderless.HelpUrl = "docs/operations.md"
	response := cluster(lease,
		service("bootstrapsvc", verdict(leaderless), unready(replica("bootstrapsvc", "node-1-x7k2p", time.Hour, 1, nil, nil, loop("namespaces", statusv1.Loop_STATE_STALLED, "")), "connection refused")),
		service("slicesvc", verdict(problem(failure, "slicesvc", "", "no replica of slicesvc is registered", ""))),
		service("gateway", verdict(), replica("gateway", "node-1-p0q4z", time.Hour, 0, nil, nil)))
	response.Missing = []*metav1.MissingPart{
		{Service: "leasesvc", ReplicaId: "node-2-slow1", Code: code.Code_DEADLINE_EXCEEDED, Message: "no answer within 1s"},
		{Service: "leasesvc", Shards: []int32{3}, Code: code.Code_UNAVAILABLE, Message: "no leader"},
	}
	return response
}

func states() map[string]*gatewayv1.GetClusterStatusResponse {
	shadow := running("endpointslices")
	shadow.Mode = metav1.Mode_MODE_SHADOW
	hostile := replica("leasesvc", "\x1b[2J\x1b]0;owned\a", time.Hour, 1, []int32{0}, map[string]int64{"a\tb": 1}, loop("x\r\n", statusv1.Loop_STATE_FAILING, "\u202eevil"))
	hostileProblem := problem(metav1.Problem_SEVERITY_ERROR, "leasesvc", "nodes/\x1b[31m", "replica \x1b[31mred\nnew line is not ready", "\x1b[2J")
	hostileProblem.HelpUrl = "\x1b]8;;evil"
	return map[string]*gatewayv1.GetClusterStatusResponse{
		"ok":     okCluster(),
		"failed": failedCluster(),
		"sharded": cluster(
			service("leasesvc", verdict(), replica("leasesvc", "a", time.Hour, 4, []int32{0, 2, 3}, nil), replica("leasesvc", "b", time.Hour, 4, []int32{1}, nil), replica("leasesvc", "c", time.Hour, 4, nil, nil)),
			service("slicesvc", verdict(), replica("slicesvc", "node-1-b8m1f", time.Hour, 64, make([]int32, 22), map[string]int64{"services": 35, "queue": 0}, shadow)),
		),
		"empty":   {},
		"hostile": cluster(service("leasesvc", verdict(hostileProblem), unready(hostile, "\x1b[2J"))),
	}
}

func TestTable(t *testing.T) {
	for name, response := range states() {
		t.Run(name, func(t *testing.T) {
			commandtest.Golden(t, name+".table", new(command).drawTable(response))
		})
	}
}

func TestTable_ColoursKeepTheColumns(t *testing.T) {
	escapes := regexp.MustCompile("\x1b\\[[0-9]+m")
	always := &command{Flags: client.Flags{OutputFlags: client.OutputFlags{Color: "always"}}}
	for name, response := range states() {
		plain, coloured := new(command).drawTable(response), always.drawTable(response)
		if !strings.Contains(coloured, "\x1b[") {
			t.Errorf("%s: no colours", name)
		}
		if diff := gocmp.Diff(plain, escapes.ReplaceAllString(coloured, "")); diff != "" {
			t.Errorf("%s: without its colours the table differs (-plain +coloured):\n%s", name, diff)
		}
	}
}

func TestDocument_JSONAndYAML(t *testing.T) {
	response := cluster(service("leasesvc", verdict(problem(metav1.Problem_SEVERITY_WARNING, "leasesvc", "nodes/n1", "n1 is silent", "look")),
		replica("leasesvc", "a", time.Hour, 1, []int32{0}, map[string]int64{"leases": 3}, running("expiry"))))
	response.Missing = []*metav1.MissingPart{{Service: "slicesvc", ReplicaId: "s", Code: code.Code_DEADLINE_EXCEEDED, Message: "no answer within 1s"}}
	for _, form := range []string{"json", "yaml"} {
		var got strings.Builder
		if _, err := printer.WriteDocument(&got, form, response); err != nil {
			t.Fatalf("print %s: %v", form, err)
		}
		commandtest.Golden(t, "partial."+form, got.String())
	}
}

func TestChangeKey_IgnoresVolatileFields(t *testing.T) {
	before, later := okCluster(), okCluster()
	later.Sources = []*metav1.Source{{ReplicaId: "node-1-h3d9c", ReadTime: timestamppb.New(noon.Add(time.Minute))}}
	later.Status.MergeTime = timestamppb.New(noon.Add(time.Minute))
	result := later.Status.Services[0].Replicas[0]
	result.Latency, result.Status.Counts["leases"], result.Status.Loops[0].RunCount = durationpb.New(time.Second), 21, 121
	if changeKey(before) != changeKey(later) {
		t.Error("a difference in volatile fields is a change")
	}
	if result.Status.Loops[0].RunCount != 121 {
		t.Error("changeKey changed the status")
	}
	result.Status.Loops[0].State = statusv1.Loop_STATE_FAILING
	if changeKey(before) == changeKey(later) {
		t.Error("a failing loop is not a change")
	}
	later = okCluster()
	later.Missing = []*metav1.MissingPart{{Service: "leasesvc", Shards: []int32{0}}}
	if changeKey(before) == changeKey(later) {
		t.Error("a missing part is not a change")
	}
}
