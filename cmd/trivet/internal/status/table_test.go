package status

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/commandtest"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

var noon = time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC)

// readyReplica returns the answer of a ready replica.
func readyReplica(service, id string, up time.Duration, counts map[string]int64, loops ...*statusv1.Loop) *statusv1.GetStatusResponse {
	return &statusv1.GetStatusResponse{
		Replica: &statusv1.Replica{Id: id, Service: service, Cluster: "main", Version: "v0.1.0", GrpcAddress: "127.0.0.1:7601", StartTime: timestamppb.New(noon.Add(-up))},
		Ready:   true,
		Counts:  counts,
		Loops:   loops,
	}
}

func unready(answer *statusv1.GetStatusResponse, reasons ...string) *statusv1.GetStatusResponse {
	answer.Ready, answer.UnreadyReasons = false, reasons
	return answer
}

func loop(name string, state statusv1.Loop_State, lastError string) *statusv1.Loop {
	return &statusv1.Loop{Name: name, State: state, LastError: lastError, Runs: 120, Failures: int64(len(lastError))}
}

func running(name string) *statusv1.Loop { return loop(name, statusv1.Loop_STATE_RUNNING, "") }

// service returns the status of a service. Holder i holds shard i; "" is a shard without a holder.
func service(name string, holders []string, problems []string, answers ...*statusv1.GetStatusResponse) *gatewayv1.ServiceStatus {
	s := &gatewayv1.ServiceStatus{Service: name, Healthy: len(problems) == 0, Problems: problems, Replicas: answers}
	for shard, holder := range holders {
		term := &statusv1.Term{Shard: int32(shard), ReplicaId: holder}
		if holder != "" {
			term.Epoch = int64(18231 + shard)
		}
		if shard == 0 {
			s.Leader = holder
		}
		s.Terms = append(s.Terms, term)
	}
	return s
}

// cluster returns the status of services. The replicas without an answer come last.
func cluster(services []*gatewayv1.ServiceStatus, unanswered ...*gatewayv1.SourceStatus) *gatewayv1.ClusterStatus {
	status := &gatewayv1.ClusterStatus{Cluster: "main", Healthy: true, Services: services, MergeTime: timestamppb.New(noon)}
	for _, service := range services {
		status.Healthy = status.Healthy && service.Healthy
		for _, answer := range service.Replicas {
			status.Sources = append(status.Sources, &gatewayv1.SourceStatus{Replica: answer.Replica, Ok: true, Code: "OK", Latency: durationpb.New(time.Millisecond)})
		}
	}
	status.Sources = append(status.Sources, unanswered...)
	return status
}

func unanswered(service, id string) *gatewayv1.SourceStatus {
	return &gatewayv1.SourceStatus{Replica: &statusv1.Replica{Id: id, Service: service}, Code: "DEADLINE_EXCEEDED", Message: "no answer within 1s"}
}

func healthyCluster() *gatewayv1.ClusterStatus {
	return cluster([]*gatewayv1.ServiceStatus{
		service("leasesvc", []string{"node-1-h3d9c"}, nil,
			readyReplica("leasesvc", "node-1-h3d9c", 3*time.Hour+12*time.Minute, map[string]int64{"sessions": 20, "leases": 20}, running("expiry"), running("writeback"))),
		service("bootstrapsvc", []string{"node-1-x7k2p"}, nil,
			readyReplica("bootstrapsvc", "node-1-x7k2p", 42*time.Second, map[string]int64{"namespaces": 4}, running("apiservers"), loop("repair", statusv1.Loop_STATE_DISABLED, "")),
			readyReplica("bootstrapsvc", "node-2-q1w2e", 50*time.Hour, nil, loop("apiservers", statusv1.Loop_STATE_STANDBY, ""))),
		service("slicesvc", []string{"node-1-b8m1f"}, nil,
			readyReplica("slicesvc", "node-1-b8m1f", 61*time.Second, map[string]int64{"endpoint_slices": 12}, running("reconcile"))),
		service("gateway", nil, nil, readyReplica("gateway", "node-1-p0q4z", -time.Second, nil)),
	})
}

// holders returns the holders of shards, in turn.
func holders(shards int, holders ...string) []string {
	held := make([]string, shards)
	for shard := range held {
		held[shard] = holders[shard%len(holders)]
	}
	return held
}

func states() map[string]*gatewayv1.ClusterStatus {
	return map[string]*gatewayv1.ClusterStatus{
		"healthy": healthyCluster(),
		"unhealthy": cluster([]*gatewayv1.ServiceStatus{
			service("leasesvc", []string{"node-1-h3d9c"}, []string{"replica node-2-slow1 did not answer: DEADLINE_EXCEEDED: no answer within 1s"},
				readyReplica("leasesvc", "node-1-h3d9c", time.Hour, nil, running("expiry"), loop("writeback", statusv1.Loop_STATE_FAILING, "put lease kube-node-lease/node-7: conflict"))),
			service("bootstrapsvc", []string{""}, []string{"replica node-1-x7k2p is not ready: etcd: connection refused", "shard 0 has no leader"},
				unready(readyReplica("bootstrapsvc", "node-1-x7k2p", time.Hour, nil, loop("namespaces", statusv1.Loop_STATE_STALLED, "")), "etcd: connection refused")),
			service("slicesvc", nil, []string{"no replica is registered"}),
			service("gateway", nil, nil, readyReplica("gateway", "node-1-p0q4z", time.Hour, nil)),
		}, unanswered("leasesvc", "node-2-slow1")),
		"sharded": cluster([]*gatewayv1.ServiceStatus{
			service("leasesvc", []string{"a", "b", "a", "a"}, nil, readyReplica("leasesvc", "a", time.Hour, nil), readyReplica("leasesvc", "b", time.Hour, nil), readyReplica("leasesvc", "c", time.Hour, nil)),
			service("slicesvc", holders(64, "node-1-b8m1f", "node-2-k2v9s", "node-3-t7r4d"), nil,
				readyReplica("slicesvc", "node-1-b8m1f", time.Hour, map[string]int64{"services": 35, "queue": 0}, running("endpointslices")),
				readyReplica("slicesvc", "node-2-k2v9s", time.Hour, map[string]int64{"services": 33, "queue": 1}, running("endpointslices")),
				readyReplica("slicesvc", "node-3-t7r4d", time.Hour, map[string]int64{"services": 32, "queue": 0}, running("endpointslices"))),
		}),
		"empty": {},
		"hostile": cluster([]*gatewayv1.ServiceStatus{
			service("leasesvc", []string{"\x1b[2J\x1b]0;owned\a"}, []string{"replica \x1b[31mred\nnew line is not ready"},
				unready(readyReplica("leasesvc", "\x1b[2J\x1b]0;owned\a", time.Hour, map[string]int64{"a\tb": 1}, loop("x\r\n", statusv1.Loop_STATE_FAILING, "\u202eevil")), "x")),
		}),
	}
}

func TestTable(t *testing.T) {
	for name, status := range states() {
		t.Run(name, func(t *testing.T) {
			commandtest.Golden(t, name+".table", drawTable(status, printer.Colors{}))
		})
	}
}

func TestTable_ColoursKeepTheColumns(t *testing.T) {
	escapes := regexp.MustCompile("\x1b\\[[0-9]+m")
	colour := printer.Streams{Env: os.Getenv}.Colors("always")
	for name, status := range states() {
		plain, coloured := drawTable(status, printer.Colors{}), drawTable(status, colour)
		if !strings.Contains(coloured, "\x1b[") {
			t.Errorf("%s: no colours", name)
		}
		if diff := cmp.Diff(plain, escapes.ReplaceAllString(coloured, "")); diff != "" {
			t.Errorf("%s: without its colours the table differs (-plain +coloured):\n%s", name, diff)
		}
	}
}

func TestEncoder_JSONAndYAML(t *testing.T) {
	response := &gatewayv1.GetClusterStatusResponse{Partial: true, Status: cluster([]*gatewayv1.ServiceStatus{
		service("leasesvc", []string{"a"}, nil, readyReplica("leasesvc", "a", time.Hour, map[string]int64{"leases": 3}, running("expiry"))),
	}, unanswered("slicesvc", "s"))}
	for _, form := range []string{"json", "yaml"} {
		var got strings.Builder
		if err := (encoder{output: form}).write(&got, response); err != nil {
			t.Fatalf("print %s: %v", form, err)
		}
		commandtest.Golden(t, "partial."+form, got.String())
	}
}

func TestChangeKey_IgnoresVolatileFields(t *testing.T) {
	before := &gatewayv1.GetClusterStatusResponse{Status: healthyCluster()}
	later := &gatewayv1.GetClusterStatusResponse{Status: healthyCluster()}
	later.Status.MergeTime = timestamppb.New(noon.Add(time.Minute))
	later.Status.Sources[0].Latency = durationpb.New(time.Second)
	later.Status.Services[0].Terms[0].Remaining = durationpb.New(time.Second)
	later.Status.Services[0].Replicas[0].Counts["leases"] = 21
	later.Status.Services[0].Replicas[0].Loops[0].Runs = 121
	if changeKey(before) != changeKey(later) {
		t.Error("a difference in volatile fields is a change")
	}
	if later.Status.Services[0].Replicas[0].Loops[0].Runs != 121 {
		t.Error("changeKey changed the status")
	}

	later.Status.Services[0].Replicas[0].Loops[0].State = statusv1.Loop_STATE_FAILING
	if changeKey(before) == changeKey(later) {
		t.Error("a failing loop is not a change")
	}
}
