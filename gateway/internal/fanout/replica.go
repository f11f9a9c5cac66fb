package fanout

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/term"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// replicaOf describes a member by its key, which is all that is known of a replica that does not answer.
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
