package api

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/prototime"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/wording"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

func (s *leaseServer) leaseOf(l *sessioncontroller.Lease) *leasev1.Lease {
	key := l.Holder.Key
	lease := &leasev1.Lease{
		Name:         s.convert.name(key),
		Holder:       &leasev1.Holder{Class: s.Catalog.Get(key.Class).Name, Name: key.Name, BootId: l.Holder.Boot},
		State:        StateOf(l.State),
		Owner:        OwnerOf(s.Replica, l.Shard, l.Epoch),
		StartTime:    Timestamp(l.StartTime),
		ObserveTime:  Timestamp(l.ObserveTime),
		LastBeatTime: Timestamp(l.AgentHeard()),
		ExpireTime:   Timestamp(l.Deadline),
		Sequence:     l.Sequence,
		Duplicate:    duplicateOf(l.Duplicate),
		Etag:         l.ETag(),
		Agent:        AgentOf(l.Agent),
		CutOffTime:   Timestamp(l.CutOffTime),
	}
	for i := range l.Conditions {
		lease.Conditions = append(lease.Conditions, conditionOf(&l.Conditions[i]))
	}
	if l.State != session.Gone {
		lease.Write = writeOf(&l.Write)
	}
	return lease
}

// AgentOf converts an agent; nil if it is not known.
func AgentOf(agent session.Agent) *leasev1.Lease_Agent {
	if agent == (session.Agent{}) {
		return nil
	}
	return &leasev1.Lease_Agent{Name: agent.Name, Version: agent.Version, Mode: agent.Mode}
}

func conditionOf(c *sessioncontroller.Condition) *metav1.Condition {
	return &metav1.Condition{
		Type: c.Type, Status: metav1.Condition_Status(c.Status), Reason: c.Reason, Message: c.Message,
		TransitionTime: Timestamp(c.TransitionTime),
	}
}

// OwnerOf returns the owner of an object whose shard the replica leads at the epoch.
func OwnerOf(replica string, shard int, epoch int64) *metav1.Owner {
	return &metav1.Owner{ReplicaId: replica, Shard: new(int32(shard)), Epoch: epoch}
}

func (s *leaseServer) sources(shards sessioncontroller.ServedShards) []*metav1.Source {
	return []*metav1.Source{answer.Replica{Service: s.Service, ID: s.Replica}.Source(shards.Epoch, shards.IDs)}
}

func duplicateOf(d *sessioncontroller.Duplicate) *leasev1.Lease_Duplicate {
	if d == nil {
		return nil
	}
	return &leasev1.Lease_Duplicate{BootId: d.Boot, LastRejectionTime: Timestamp(d.LastRejectionTime), RejectionCount: d.Rejections}
}

// StateOf returns STATE_UNSPECIFIED for session.Gone.
func StateOf(state session.State) leasev1.Lease_State {
	return [...]leasev1.Lease_State{
		session.Alive:   leasev1.Lease_STATE_ALIVE,
		session.Suspect: leasev1.Lease_STATE_SUSPECT,
		session.Expired: leasev1.Lease_STATE_EXPIRED,
	}[state]
}

func stateFrom(state leasev1.Lease_State) session.State {
	return map[leasev1.Lease_State]session.State{
		leasev1.Lease_STATE_ALIVE:   session.Alive,
		leasev1.Lease_STATE_SUSPECT: session.Suspect,
		leasev1.Lease_STATE_EXPIRED: session.Expired,
	}[state]
}

func writeOf(w *sessioncontroller.WriteStatus) *leasev1.Lease_Write {
	return &leasev1.Lease_Write{
		State:           writeStateOf(w.State),
		RenewTime:       Timestamp(w.RenewTime),
		ResourceVersion: w.ResourceVersion,
		WriteTime:       Timestamp(w.WriteTime),
		LastError:       wording.Valid(w.LastError),
		FailureCount:    w.Failures,
		DueTime:         Timestamp(w.Due),
		Reason:          strings.ToUpper(w.Reason.String()),
	}
}

func writeStateOf(state writeback.State) leasev1.Lease_Write_State {
	return [...]leasev1.Lease_Write_State{
		writeback.Pending:  leasev1.Lease_Write_STATE_PENDING,
		writeback.Written:  leasev1.Lease_Write_STATE_WRITTEN,
		writeback.Retrying: leasev1.Lease_Write_STATE_RETRYING,
		writeback.NoOwner:  leasev1.Lease_Write_STATE_NO_OWNER,
		writeback.Left:     leasev1.Lease_Write_STATE_LEFT_TO_KUBELET,
	}[state]
}

// Timestamp returns nil for the zero time.
func Timestamp(t time.Time) *timestamppb.Timestamp { return prototime.New(t) }
