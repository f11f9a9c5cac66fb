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

const (
	// shardsPage is the page size of ListShards.
	shardsPage = 5000
	// shardsTimeout bounds the questions for shards. The page and `trivet status` wait for it, too.
	shardsTimeout = time.Second
)

// Fan asks replicas for their status. It is safe for concurrent use.
type Fan struct {
	pool    *Pool
	timeout time.Duration
	answers *prometheus.CounterVec
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
	}
	if err := metrics.Register(f.answers); err != nil {
		return nil, fmt.Errorf("register the metrics of the fan-out: %w", err)
	}
	return f, nil
}

// Ask asks all members at once. It returns when each has answered or failed. The sources have the
// order of the members.
//
// A leader says which shards it leads. So only if a replica did not answer, or a shard has no
// leader among those that did, the replicas of the service are asked for the shards that they know,
// which takes shardsTimeout more at most.
func (f *Fan) Ask(ctx context.Context, members []term.Member) []merge.Source {
	sources := make([]merge.Source, len(members))
	f.each(ctx, f.timeout, members, func(ctx context.Context, i int) { sources[i] = f.ask(ctx, members[i]) })
	uncertain := uncertainServices(sources)
	if len(uncertain) == 0 || ctx.Err() != nil {
		return sources
	}
	f.each(ctx, min(f.timeout, shardsTimeout), members, func(ctx context.Context, i int) {
		if sources[i].Answer != nil && uncertain[members[i].Service] {
			sources[i].Shards = f.askShards(ctx, members[i])
		}
	})
	return sources
}

// each calls a function for each member at once, with a context that ends after the timeout.
func (f *Fan) each(ctx context.Context, timeout time.Duration, members []term.Member, do func(ctx context.Context, i int)) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var calls sync.WaitGroup
	for i := range members {
		calls.Go(func() { do(ctx, i) })
	}
	calls.Wait()
}

// uncertainServices returns the services whose leaders do not all answer.
func uncertainServices(sources []merge.Source) map[string]bool {
	uncertain := map[string]bool{}
	led, count := map[string]map[int32]bool{}, map[string]int32{}
	for _, source := range sources {
		service, answer := source.Replica.GetService(), source.Answer.GetStatus()
		if source.Answer == nil {
			uncertain[service] = true
			continue
		}
		if led[service] == nil {
			led[service] = map[int32]bool{}
		}
		for _, shard := range answer.GetLedShards() {
			led[service][shard] = true
		}
		count[service] = max(count[service], answer.GetShardCount())
	}
	for service, shards := range led {
		if int32(len(shards)) < count[service] {
			uncertain[service] = true
		}
	}
	return uncertain
}

func (f *Fan) ask(ctx context.Context, member term.Member) merge.Source {
	started := time.Now()
	source := merge.Source{Replica: replicaOf(member)}
	answer, err := CallMember(ctx, f.pool, member, func(ctx context.Context, conn grpc.ClientConnInterface, _ term.Member) (*statusv1.GetStatusResponse, error) {
		return statusv1.NewStatusServiceClient(conn).GetStatus(ctx, &statusv1.GetStatusRequest{})
	})
	source.Latency = time.Since(started)
	source.Answer = answer
	if err != nil {
		source.Answer = nil
		source.Code, source.Message = code.Code(status.Code(err)), messageOf(err, f.timeout)
	}
	f.answers.WithLabelValues(member.Service, codeLabel(err)).Inc()
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

// codeLabel is codeName as a label. A replica chooses the number of its code, and each would be a
// series, so numbers without a name count as UNKNOWN.
func codeLabel(err error) string {
	if _, named := code.Code_name[int32(status.Code(err))]; !named {
		return code.Code_UNKNOWN.String()
	}
	return codeName(err)
}
