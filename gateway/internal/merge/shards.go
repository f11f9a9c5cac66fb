package merge

import (
	"maps"
	"slices"

	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// ShardReport is what one replica says about the shards of its service.
type ShardReport struct {
	Service string
	Shards  []*statusv1.ShardStatus
}

// Shards returns the best report about each shard of all services, ordered by service and shard. A
// replica reports its own service only.
func Shards(reports []ShardReport) []*statusv1.ShardStatus {
	sources := map[string][]Source{}
	for _, report := range reports {
		own := slices.DeleteFunc(slices.Clone(report.Shards), func(shard *statusv1.ShardStatus) bool {
			return shard.GetService() != report.Service
		})
		sources[report.Service] = append(sources[report.Service], Source{Shards: own})
	}
	var shards []*statusv1.ShardStatus
	for _, service := range slices.Sorted(maps.Keys(sources)) {
		shards = append(shards, serviceShards(sources[service])...)
	}
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
