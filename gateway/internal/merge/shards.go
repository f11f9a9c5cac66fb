package merge

import (
	"cmp"
	"slices"

	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1alpha1"
)

// ShardReport is what one replica says about the shards of its service.
type ShardReport struct {
	Service, ReplicaID string
	Shards             []*statusv1.ShardStatus
}

// Shards returns the best report about each shard, ordered by service and shard. Of two reports the
// one with the higher epoch is later; of two reports of one term the leader's own counts. A replica
// reports its own service only.
func Shards(reports []ShardReport) []*statusv1.ShardStatus {
	type key struct {
		service string
		shard   int32
	}
	type claim struct {
		status *statusv1.ShardStatus
		own    bool // the leader reports it
	}
	best := map[key]claim{}
	for _, report := range reports {
		for _, shard := range report.Shards {
			at := key{service: report.Service, shard: shard.GetShard()}
			if shard.GetService() != report.Service || at.shard < 0 || at.shard >= MaxShards {
				continue
			}
			next := claim{status: shard, own: shard.GetLeaderId() == report.ReplicaID}
			known, exists := best[at]
			if !exists || next.status.GetEpoch() > known.status.GetEpoch() ||
				next.status.GetEpoch() == known.status.GetEpoch() && next.own && !known.own {
				best[at] = next
			}
		}
	}
	var shards []*statusv1.ShardStatus
	for _, claim := range best {
		shards = append(shards, claim.status)
	}
	slices.SortFunc(shards, func(a, b *statusv1.ShardStatus) int {
		return cmp.Or(cmp.Compare(a.GetService(), b.GetService()), cmp.Compare(a.GetShard(), b.GetShard()))
	})
	return shards
}

// Leaders returns the leader of each shard of a service, "" for none.
func Leaders(shards []*statusv1.ShardStatus) []string {
	var leaders []string
	for _, shard := range shards {
		number := int(shard.GetShard())
		if number < 0 || number >= MaxShards {
			continue
		}
		if missing := number + 1 - len(leaders); missing > 0 {
			leaders = append(leaders, make([]string, missing)...)
		}
		leaders[number] = shard.GetLeaderId()
	}
	return leaders
}
