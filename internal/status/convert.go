package status

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/term"
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
		StartTime:    timestamp(member.StartTime),
	}
}

func reasons(failed []error) []string {
	var texts []string
	for _, err := range failed {
		texts = append(texts, text(err.Error()))
	}
	return texts
}

func termList(holdings []term.ShardStatus) []*statusv1.Term {
	ordered := slices.SortedStableFunc(slices.Values(holdings), func(a, b term.ShardStatus) int { return cmp.Compare(a.Shard, b.Shard) })
	return mapped(ordered, func(h term.ShardStatus) *statusv1.Term {
		converted := &statusv1.Term{
			Shard:       int32(h.Shard),
			ReplicaId:   h.ReplicaID,
			Epoch:       h.Epoch,
			AcquireTime: timestamp(h.AcquireTime),
			HeldHere:    h.Here,
			GrpcAddress: h.GRPCAddress,
			ReleaseTime: timestamp(h.ReleaseTime),
			Move:        move(h.Move),
		}
		if h.Here {
			converted.Remaining = durationpb.New(max(h.Remaining, 0))
		}
		return converted
	})
}

func move(m term.Move) *statusv1.Move {
	if m.State == term.Staying {
		return nil
	}
	return &statusv1.Move{ToReplicaId: m.To, State: moveState(m.State), StartTime: timestamp(m.Since)}
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
		return &statusv1.Loop{
			Name:            s.Name,
			State:           loopState(s.State),
			LastRunTime:     timestamp(s.LastRun),
			LastSuccessTime: timestamp(s.LastSuccess),
			LastError:       text(s.LastError),
			Runs:            s.Runs,
			Failures:        s.Failures,
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
			Reason:          text(d.Reason),
			LastContactTime: timestamp(d.LastContact),
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

// timestamp returns nil for the zero time, which would read as the year 1.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func text(s string) string {
	return strings.ToValidUTF8(s, "\uFFFD")
}
