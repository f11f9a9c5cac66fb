package status

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/prototime"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/wording"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

func replica(member term.Member) *statusv1.Replica {
	return &statusv1.Replica{
		Id:           member.ID,
		Service:      member.Service,
		Cluster:      member.Cluster,
		Version:      member.Version,
		GrpcAddress:  member.GRPCAddress,
		AdminAddress: member.AdminAddress,
		StartTime:    prototime.New(member.StartTime),
	}
}

// problems returns the failed checks of /readyz and what the service reports, the worst first.
func problems(member term.Member, failed []error, reported []*metav1.Problem) []*metav1.Problem {
	var all []*metav1.Problem
	for _, err := range failed {
		all = append(all, &metav1.Problem{
			Code: "REPLICA_NOT_READY", Severity: metav1.Problem_SEVERITY_WARNING, Resource: "replicas/" + member.ID,
			Message: wording.Valid(err.Error()), Next: "see its log and /readyz?verbose at " + member.AdminAddress,
		})
	}
	for _, problem := range reported {
		problem = proto.CloneOf(problem)
		problem.Message, problem.Next = wording.Valid(problem.Message), wording.Valid(problem.Next)
		all = append(all, problem)
	}
	for _, problem := range all {
		problem.Service = cmp.Or(problem.Service, member.Service)
	}
	slices.SortStableFunc(all, func(a, b *metav1.Problem) int { return cmp.Compare(b.Severity, a.Severity) })
	return all
}

func shardList(service string, statuses []term.ShardStatus) []*statusv1.ShardStatus {
	ordered := slices.SortedStableFunc(slices.Values(statuses), func(a, b term.ShardStatus) int { return cmp.Compare(a.Shard, b.Shard) })
	return mapped(ordered, func(s term.ShardStatus) *statusv1.ShardStatus {
		shard := int32(s.Shard)
		converted := &statusv1.ShardStatus{
			Name: fmt.Sprintf("shards/%s/%d", service, shard), Service: service, Shard: &shard,
			LeaderId: s.ReplicaID, LeaderAddress: s.GRPCAddress, Epoch: s.Epoch,
			AcquireTime: prototime.New(s.AcquireTime), ReleaseTime: prototime.New(s.ReleaseTime), Move: move(s.Move),
		}
		if s.Here {
			converted.Remaining = durationpb.New(max(s.Remaining, 0))
		}
		return converted
	})
}

func move(m term.Move) *statusv1.Move {
	if m.State == term.Staying {
		return nil
	}
	return &statusv1.Move{ToReplicaId: m.To, State: moveState(m.State), StartTime: prototime.New(m.Since)}
}

func moveState(state term.MoveState) statusv1.Move_State {
	switch state {
	case term.Waiting:
		return statusv1.Move_STATE_WAITING
	case term.Draining:
		return statusv1.Move_STATE_DRAINING
	default:
		return statusv1.Move_STATE_UNSPECIFIED
	}
}

func loopList(statuses []loop.Status) []*statusv1.Loop {
	ordered := slices.SortedStableFunc(slices.Values(statuses), func(a, b loop.Status) int { return cmp.Compare(a.Name, b.Name) })
	return mapped(ordered, func(s loop.Status) *statusv1.Loop {
		mode := metav1.Mode_MODE_ENFORCE
		if s.DryRun {
			mode = metav1.Mode_MODE_SHADOW
		}
		return &statusv1.Loop{
			Name:            s.Name,
			State:           loopState(s.State),
			Mode:            mode,
			LastRunTime:     prototime.New(s.LastRun),
			LastSuccessTime: prototime.New(s.LastSuccess),
			LastError:       wording.Valid(s.LastError),
			RunCount:        s.Runs,
			FailureCount:    s.Failures,
			SwitchTime:      prototime.New(s.Switched),
		}
	})
}

func loopState(state loop.State) statusv1.Loop_State {
	switch state {
	case loop.Disabled:
		return statusv1.Loop_STATE_DISABLED
	case loop.Standby:
		return statusv1.Loop_STATE_STANDBY
	case loop.Running:
		return statusv1.Loop_STATE_RUNNING
	case loop.Failing:
		return statusv1.Loop_STATE_FAILING
	case loop.Stalled:
		return statusv1.Loop_STATE_STALLED
	default:
		return statusv1.Loop_STATE_UNSPECIFIED
	}
}

func dependencyList(dependencies []Dependency) []*statusv1.Dependency {
	ordered := slices.SortedStableFunc(slices.Values(dependencies), func(a, b Dependency) int { return cmp.Compare(a.Name, b.Name) })
	return mapped(ordered, func(d Dependency) *statusv1.Dependency {
		return &statusv1.Dependency{
			Name:            d.Name,
			Healthy:         d.Healthy,
			Message:         wording.Valid(d.Reason),
			LastContactTime: prototime.New(d.LastContact),
		}
	})
}

func mapped[From, To any](from []From, convert func(From) To) []To {
	var to []To
	for _, element := range from {
		to = append(to, convert(element))
	}
	return to
}

// duration returns nil for none.
func duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}
