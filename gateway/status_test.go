package gateway_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trivet-dev/trivet/gateway/internal/api"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// answer has the sources and the missing replicas of a status.
type answer interface {
	GetSources() []*metav1.Source
	GetMissing() []*metav1.MissingPart
}

// outcomes returns the outcome of each question as text. Shards without a leader are no question.
func outcomes(response answer) []string {
	var all []string
	for _, source := range response.GetSources() {
		all = append(all, source.Service+" "+source.ReplicaId+" OK")
	}
	for _, part := range response.GetMissing() {
		if part.ReplicaId != "" {
			all = append(all, part.Service+" "+part.ReplicaId+" "+part.Code.String())
		}
	}
	slices.Sort(all)
	return all
}

func client(t *testing.T, members *directory, timeout time.Duration) gatewayv1.ClusterServiceClient {
	t.Helper()
	service := startGateway(t, members, timeout)
	return gatewayv1.NewClusterServiceClient(testkit.Serve(t, service.Register))
}

func TestGetClusterStatus_AllHealthy(t *testing.T) {
	t.Parallel()
	members := newDirectory(healthy(t, "bootstrapsvc", "b1"), healthy(t, "gateway", "g1"), healthy(t, "leasesvc", "l1"), healthy(t, "slicesvc", "s1"))

	response, err := client(t, members, longTimeout).GetClusterStatus(t.Context(), &gatewayv1.GetClusterStatusRequest{})

	if err != nil {
		t.Fatalf("GetClusterStatus() = %v", err)
	}
	if state := response.Status.Verdict.State; state != metav1.Verdict_STATE_OK || len(response.Missing) > 0 || response.Status.Cluster != "test" {
		t.Errorf("verdict %s, missing %v, cluster %q; want OK, none, test", response.Status.Verdict, response.Missing, response.Status.Cluster)
	}
	leases := response.Status.Services[0]
	if of := leases.Replicas[0].Status; leases.LedShardCount != 1 || of.Counts["leases"] != 20 || of.Loops[0].Name != "writeback" {
		t.Errorf("leasesvc = %v, want one led shard, 20 leases and the loop writeback", leases)
	}
}

func TestGetClusterStatus_SlowAndDeadReplicasDelayNoOthers(t *testing.T) {
	slow := hanging(t, "leasesvc", "l2")
	nowhere := replica("slicesvc", "s1")
	members := newDirectory(dead(t, "bootstrapsvc", "b1"), healthy(t, "leasesvc", "l1"), slow, nowhere)
	const timeout = 2 * time.Second // enough for the healthy replica on a busy machine
	asking := client(t, members, timeout)

	started := time.Now()
	response, err := asking.GetClusterStatus(t.Context(), &gatewayv1.GetClusterStatusRequest{})
	took := time.Since(started)

	if err != nil {
		t.Fatalf("GetClusterStatus() = %v, want an answer from the healthy replica", err)
	}
	if took > 15*timeout { // nothing waits for an answer of the slow one
		t.Errorf("took %s with a deadline of %s per replica", took, timeout)
	}
	want := []string{
		"bootstrapsvc b1 UNAVAILABLE",
		"leasesvc l1 OK",
		"leasesvc l2 DEADLINE_EXCEEDED",
		"slicesvc s1 FAILED_PRECONDITION",
	}
	if diff := cmp.Diff(want, outcomes(response)); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
	if state := response.Status.Verdict.State; state == metav1.Verdict_STATE_OK {
		t.Error("the verdict is OK although replicas are missing")
	}
	for _, part := range response.Missing {
		if part.ReplicaId == "l2" && part.Message != "no answer within 2s" {
			t.Errorf("l2 is missing because %q, want that it did not answer within 2s", part.Message)
		}
	}
}

func TestGetClusterStatus_NoReplicaAnswers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		members  []term.Member
		failure  error
		mentions []string
	}{
		{name: "no replica is registered", mentions: []string{"no replica is registered in etcd"}},
		{name: "etcd is unreachable", failure: errors.New("etcd: connection refused"), mentions: []string{"no replica is registered", "etcd: connection refused"}},
		{name: "all replicas are dead", members: []term.Member{dead(t, "leasesvc", "l1"), dead(t, "slicesvc", "s1")}, mentions: []string{"leasesvc l1", "slicesvc s1", "UNAVAILABLE", "refused"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			members := newDirectory(test.members...)
			members.failure = test.failure

			_, err := client(t, members, longTimeout).GetClusterStatus(t.Context(), &gatewayv1.GetClusterStatusRequest{})

			checkNoSource(t, err, test.mentions...)
		})
	}
}

func checkNoSource(t *testing.T, err error, mentions ...string) {
	t.Helper()
	if status.Code(err) != codes.Unavailable || rpcerror.ReasonOf(err) != api.ReplicasUnreachableReason {
		t.Fatalf("error = %v (reason %q), want UNAVAILABLE with reason %q", err, rpcerror.ReasonOf(err), api.ReplicasUnreachableReason)
	}
	for _, mention := range mentions {
		if !strings.Contains(status.Convert(err).Message(), mention) {
			t.Errorf("message %q does not mention %q", status.Convert(err).Message(), mention)
		}
	}
}

// A process at the address of a dead one must not count as the dead one, nor wait for its backoff.
func TestGetClusterStatus_SuccessorAtTheSameAddress(t *testing.T) {
	t.Parallel()
	successor := healthy(t, "leasesvc", "l2")
	gone := replica("leasesvc", "l1")
	gone.GRPCAddress = successor.GRPCAddress

	response, err := client(t, newDirectory(gone, successor), longTimeout).GetClusterStatus(t.Context(), &gatewayv1.GetClusterStatusRequest{})

	if err != nil {
		t.Fatalf("GetClusterStatus() = %v", err)
	}
	want := []string{"leasesvc l1 NOT_FOUND", "leasesvc l2 OK"}
	if diff := cmp.Diff(want, outcomes(response)); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
}

func TestWatchClusterStatus_ReplacesTheStatusAsReplicasComeAndGo(t *testing.T) {
	t.Parallel()
	up, gone := healthy(t, "leasesvc", "l1"), dead(t, "leasesvc", "l2")
	members := newDirectory(up)
	stream := watching(t, client(t, members, longTimeout), 250*time.Millisecond)

	await(t, stream, []string{"leasesvc l1 OK"})
	members.set(up, gone)
	await(t, stream, []string{"leasesvc l1 OK", "leasesvc l2 UNAVAILABLE"})
	members.set(gone) // the stream continues without a source
	await(t, stream, []string{"leasesvc l2 UNAVAILABLE"})
	members.set(up)
	await(t, stream, []string{"leasesvc l1 OK"})
}

func watching(t *testing.T, client gatewayv1.ClusterServiceClient, interval time.Duration) gatewayv1.ClusterService_WatchClusterStatusClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	stream, err := client.WatchClusterStatus(ctx, &gatewayv1.WatchClusterStatusRequest{Interval: durationpb.New(interval)})
	if err != nil {
		t.Fatalf("WatchClusterStatus() = %v", err)
	}
	return stream
}

// await receives statuses until the sources are the wanted ones.
func await(t *testing.T, stream gatewayv1.ClusterService_WatchClusterStatusClient, want []string) {
	t.Helper()
	var last []string
	for {
		response, err := stream.Recv()
		if err != nil {
			t.Fatalf("the stream ended with %v; last sources %v, want %v", err, last, want)
		}
		if last = outcomes(response); cmp.Equal(last, want) {
			return
		}
	}
}

func TestWatchClusterStatus_FirstStatusWithoutSourceIsAnError(t *testing.T) {
	t.Parallel()
	stream := watching(t, client(t, newDirectory(dead(t, "leasesvc", "l1")), longTimeout), time.Second)

	_, err := stream.Recv()

	checkNoSource(t, err, "leasesvc l1")
}

func TestWatchClusterStatus_ManyWatchersShareTheQuestions(t *testing.T) {
	t.Parallel()
	member, asked := failing(t, "slicesvc", "s1")
	members := newDirectory(healthy(t, "leasesvc", "l1"), member)
	watcher := client(t, members, longTimeout)
	want := []string{"leasesvc l1 OK", "slicesvc s1 INTERNAL"}

	started := time.Now()
	for range 30 {
		await(t, watching(t, watcher, time.Second), want)
	}
	seconds := int64(time.Since(started)/time.Second) + 1

	// Without sharing each watcher starts with its own question. gRPC does not retry INTERNAL.
	if n := asked.Load(); n > 2+2*seconds {
		t.Errorf("30 watchers asked a replica %d times within %d s", n, seconds)
	}
}

func TestWatchClusterStatus_RefusesAnImpatientInterval(t *testing.T) {
	t.Parallel()
	stream := watching(t, client(t, newDirectory(healthy(t, "leasesvc", "l1")), longTimeout), 100*time.Millisecond)

	_, err := stream.Recv()

	if status.Code(err) != codes.InvalidArgument || rpcerror.ReasonOf(err) != rpcerror.ValidationFailedReason {
		t.Errorf("error = %v, want INVALID_ARGUMENT with reason %s", err, rpcerror.ValidationFailedReason)
	}
}

func TestRun_DropsConnectionsToReplicasThatLeft(t *testing.T) {
	t.Parallel()
	members := newDirectory(healthy(t, "leasesvc", "l1"), healthy(t, "slicesvc", "s1"))
	service := startGateway(t, members, longTimeout)
	asking := gatewayv1.NewClusterServiceClient(testkit.Serve(t, service.Register))
	if _, err := asking.GetClusterStatus(t.Context(), &gatewayv1.GetClusterStatusRequest{}); err != nil {
		t.Fatalf("GetClusterStatus() = %v", err)
	}
	if connections := service.Counts()["connections"]; connections != 2 {
		t.Fatalf("%d connections are kept to 2 replicas", connections)
	}

	members.set(members.Members()[0])

	testkit.Eventually(t, time.Minute, func() error {
		if counts := service.Counts(); counts["connections"] != 1 || counts["replicas"] != 1 {
			return errors.New(cmp.Diff(map[string]int64{"connections": 1, "replicas": 1}, counts))
		}
		return nil
	})
}

func TestRun_StopEndsWatches(t *testing.T) {
	t.Parallel()
	service := newGateway(t, newDirectory(healthy(t, "leasesvc", "l1")), longTimeout)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- service.Run(ctx) }()
	stream := watching(t, gatewayv1.NewClusterServiceClient(testkit.Serve(t, service.Register)), time.Second)
	await(t, stream, []string{"leasesvc l1 OK"})

	stop()

	if err := <-done; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	for {
		if _, err := stream.Recv(); err != nil {
			if rpcerror.ReasonOf(err) != rpcerror.ShuttingDownReason {
				t.Errorf("the watch ended with %v, want reason %s", err, rpcerror.ShuttingDownReason)
			}
			return
		}
	}
}
