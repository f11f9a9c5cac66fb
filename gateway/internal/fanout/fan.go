package fanout

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/term"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// shardsPage is the page size of ListShards.
const shardsPage = 5000

// Fan asks replicas for their status. It is safe for concurrent use.
type Fan struct {
	pool    *Pool
	timeout time.Duration
	answers *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

// New returns a Fan over the connections of a pool, which the caller closes. timeout bounds each
// call. The error is a metric that is registered already.
func New(pool *Pool, timeout time.Duration, metrics prometheus.Registerer) (*Fan, error) {
	f := &Fan{
		pool: pool, timeout: timeout,
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_gateway_answers_total",
			Help: "Status questions to replicas, by service and canonical gRPC code.",
		}, []string{"service", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "trivet_gateway_answer_seconds",
			Help:    "Time until a replica answered a status question or failed, by service.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 12),
		}, []string{"service"}),
	}
	for _, collector := range []prometheus.Collector{f.answers, f.seconds} {
		if err := metrics.Register(collector); err != nil {
			return nil, fmt.Errorf("register the metrics of the fan-out: %w", err)
		}
	}
	return f, nil
}

// Ask asks all members at once. It returns when each has answered or failed, after the timeout at
// the latest. The sources have the order of the members.
func (f *Fan) Ask(ctx context.Context, members []term.Member) []merge.Source {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	sources := make([]merge.Source, len(members))
	var calls sync.WaitGroup
	for i, member := range members {
		calls.Go(func() { sources[i] = f.ask(ctx, member) })
	}
	calls.Wait()
	return sources
}

// ask asks for the status and the shards at once, so that a replica takes one round trip.
func (f *Fan) ask(ctx context.Context, member term.Member) merge.Source {
	started := time.Now()
	source := merge.Source{Replica: replicaOf(member)}
	var shards sync.WaitGroup
	shards.Go(func() { source.Shards = f.askShards(ctx, member) })
	answer, err := CallMember(ctx, f.pool, member, func(ctx context.Context, conn grpc.ClientConnInterface, _ term.Member) (*statusv1.GetStatusResponse, error) {
		return statusv1.NewStatusServiceClient(conn).GetStatus(ctx, &statusv1.GetStatusRequest{})
	})
	source.Latency = time.Since(started)
	shards.Wait()
	source.Answer = answer
	if err != nil {
		source.Answer, source.Shards = nil, nil
		source.Code, source.Message = code.Code(status.Code(err)), messageOf(err, f.timeout)
	}
	f.answers.WithLabelValues(member.Service, codeName(err)).Inc()
	f.seconds.WithLabelValues(member.Service).Observe(source.Latency.Seconds())
	return source
}

// askShards returns the first page of a replica's shards, which are all unless there are thousands.
func (f *Fan) askShards(ctx context.Context, member term.Member) []*statusv1.ShardStatus {
	answer, err := CallMember(ctx, f.pool, member, func(ctx context.Context, conn grpc.ClientConnInterface, _ term.Member) (*statusv1.ListShardsResponse, error) {
		return statusv1.NewStatusServiceClient(conn).ListShards(ctx, &statusv1.ListShardsRequest{PageSize: shardsPage, Services: []string{member.Service}})
	})
	if err != nil {
		return nil // the status has the cause, or the replica is older than ListShards
	}
	return answer.GetShards()
}

// replicaOf describes a member by its key: nothing else is known of a replica that does not answer.
func replicaOf(member term.Member) *statusv1.Replica {
	replica := &statusv1.Replica{
		Id:           member.ID,
		Service:      member.Service,
		Cluster:      member.Cluster,
		Version:      member.Version,
		GrpcAddress:  member.GRPCAddress,
		AdminAddress: member.AdminAddress,
	}
	if !member.StartTime.IsZero() {
		replica.StartTime = timestamppb.New(member.StartTime)
	}
	return replica
}

// messageOf returns the message of an error. gRPC's own message for a deadline does not say how
// long it was.
func messageOf(err error, after time.Duration) string {
	if status.Code(err) == codes.DeadlineExceeded {
		return fmt.Sprintf("no answer within %s", after.Round(time.Millisecond))
	}
	return status.Convert(err).Message()
}

// codeName returns the canonical name of a code, for example DEADLINE_EXCEEDED; codes.Code.String
// returns camel case.
func codeName(err error) string {
	c := int32(status.Code(err))
	if name, ok := code.Code_name[c]; ok {
		return name
	}
	return fmt.Sprintf("CODE_%d", c)
}
