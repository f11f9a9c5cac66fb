package merge

import (
	"cmp"
	"slices"

	"google.golang.org/genproto/googleapis/rpc/code"

	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// Failure says why a replica is not a source of an answer.
type Failure struct {
	// Service is that of the replica; empty for the service of the answer.
	Service   string
	ReplicaID string
	Code      code.Code
	Message   string
}

// UnknownShards is what an answer lacks if no replica tells how many shards there are: a shard
// without a leader has no source that could be compared with it.
func UnknownShards(service string) *metav1.MissingPart {
	return &metav1.MissingPart{Service: service, Code: code.Code_UNAVAILABLE, Message: "no replica tells which shards there are"}
}

// Absent is what an answer lacks if no replica of a service is registered.
func Absent(service string) *metav1.MissingPart {
	return &metav1.MissingPart{Service: service, Code: code.Code_UNAVAILABLE, Message: "no replica is registered"}
}

// Missing returns what an answer of a service lacks: each shard that no source covers, and each
// replica that failed. leaders has the leader of each shard, "" for none; it is empty when the
// answer needs no shards or their number is unknown.
func Missing(service string, leaders []string, sources []*metav1.Source, failures []Failure) []*metav1.MissingPart {
	return missingParts(service, uncovered(leaders, sources), sources, failures)
}

// Disowned returns the shards that have a leader in a list, although that leader answered and does
// not have them in its own part. It has lost them, for example with its session while etcd is
// unreachable, and no replica knows of another leader: the list may be out of date.
func Disowned(service string, leaders []string, sources []*metav1.Source) []*metav1.MissingPart {
	sources = slices.DeleteFunc(slices.Clone(sources), func(s *metav1.Source) bool { return s.GetService() != service })
	var parts []*metav1.MissingPart
	for leader, shards := range uncovered(leaders, sources) {
		if leader != "" && slices.ContainsFunc(sources, func(s *metav1.Source) bool { return s.GetReplicaId() == leader }) {
			parts = append(parts, &metav1.MissingPart{
				Service: service, Shards: shards, ReplicaId: leader, Code: code.Code_UNAVAILABLE,
				Message: "it does not lead the shards any more, and no later leader is known",
			})
		}
	}
	slices.SortFunc(parts, func(a, b *metav1.MissingPart) int { return cmp.Compare(a.ReplicaId, b.ReplicaId) })
	return parts
}

// missingParts returns the shards that are lacking, by leader, and each replica that failed.
func missingParts(service string, lacking map[string][]int32, sources []*metav1.Source, failures []Failure) []*metav1.MissingPart {
	var missing []*metav1.MissingPart
	for leader, shards := range lacking {
		part := &metav1.MissingPart{Service: service, Shards: shards, ReplicaId: leader, Code: code.Code_UNAVAILABLE}
		failed := slices.IndexFunc(failures, func(f Failure) bool { return f.ReplicaID == leader })
		switch {
		case leader == "":
			part.Message = "no replica leads the shards"
		case failed >= 0:
			part.Code, part.Message = failures[failed].Code, failures[failed].Message
		case slices.ContainsFunc(sources, func(s *metav1.Source) bool { return s.GetReplicaId() == leader }):
			part.Message = "it has not reported the shards wholly yet"
		default:
			part.Message = "it leads the shards and is not registered"
		}
		missing = append(missing, part)
	}
	for _, failure := range failures {
		named := func(part *metav1.MissingPart) bool { return part.ReplicaId == failure.ReplicaID }
		if failure.ReplicaID == "" || !slices.ContainsFunc(missing, named) {
			missing = append(missing, &metav1.MissingPart{
				Service: cmp.Or(failure.Service, service), ReplicaId: failure.ReplicaID, Code: failure.Code, Message: failure.Message,
			})
		}
	}
	slices.SortFunc(missing, func(a, b *metav1.MissingPart) int { return cmp.Compare(a.ReplicaId, b.ReplicaId) })
	return missing
}

// uncovered returns the shards that no source covers, by leader.
func uncovered(leaders []string, sources []*metav1.Source) map[string][]int32 {
	covered := make([]bool, len(leaders))
	for _, source := range sources {
		for _, shard := range source.GetShards() {
			if shard >= 0 && int(shard) < len(covered) {
				covered[shard] = true
			}
		}
	}
	lacking := map[string][]int32{}
	for shard, leader := range leaders {
		if !covered[shard] {
			lacking[leader] = append(lacking[leader], int32(shard))
		}
	}
	return lacking
}
