package history

import (
	"maps"
	"slices"
	"time"

	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// knownNames has the names of the figures that the gateway finds itself, and by service those of
// the counts of its replicas.
func knownNames() (figures []string, counts map[string][]string) {
	return []string{"problems", "replicas", "replicas_answering", "shards_without_leader", "answer_seconds", "contact_age_seconds"},
		map[string][]string{
			"gateway":  nil,
			"leasesvc": {"leases", "alive", "suspect", "expired", "lease_writes", "streams"},
			"bootstrapsvc": {
				"baseline_writes", "namespaces", "apiservers", "ready_apiservers", "endpoint_addresses", "open_findings", "pending_findings",
				"ignored_findings", "adopts_master_leases",
			},
			"slicesvc": {
				"services", "endpoint_slices", "endpoints", "pods", "queue",
				"mirrored_endpoints_objects", "dropped_addresses", "mirrored_endpoint_slices", "mirroring_queue",
			},
		}
}

func (k Key) isKnown() bool {
	figures, counts := knownNames()
	names, known := counts[k.Service]
	return known && (slices.Contains(figures, k.Name) || slices.Contains(names, k.Name))
}

// maxUnknownOfReplica bounds the counts of one replica that this version does not know.
const maxUnknownOfReplica = 8

// SampleOf returns the figures of a status.
//
// The counts of a service are those of its leaders together, because each leader counts its own
// shards. They are absent if a shard has no leader or the leader of one did not answer: the sum
// would be too low, and a chart would show a loss that did not happen.
func SampleOf(status *gatewayv1.ClusterStatus) map[Key]float64 {
	sample := map[Key]float64{}
	for _, service := range status.GetServices() {
		set := func(name string, value float64) { sample[Key{service.GetService(), name}] = value }
		for name, value := range countsOf(service) {
			set(name, float64(value))
		}
		set("problems", float64(len(service.GetVerdict().GetProblems())))
		set("replicas", float64(len(service.GetReplicas())))
		set("shards_without_leader", float64(service.GetShardCount()-service.GetLedShardCount()))
		answering, slowest := 0, time.Duration(0)
		oldest, contacted := time.Duration(0), false
		for _, replica := range service.GetReplicas() {
			if replica.GetStatus() == nil {
				continue
			}
			answering++
			slowest = max(slowest, replica.GetLatency().AsDuration())
			if age, known := contactAge(replica.GetStatus(), status.GetMergeTime().AsTime()); known {
				oldest, contacted = max(oldest, age), true
			}
		}
		set("replicas_answering", float64(answering))
		if answering > 0 {
			set("answer_seconds", slowest.Seconds())
		}
		if contacted {
			set("contact_age_seconds", oldest.Seconds())
		}
	}
	return sample
}

func countsOf(service *gatewayv1.ServiceStatus) map[string]int64 {
	counts, led := map[string]int64{}, int32(0)
	for _, replica := range service.GetReplicas() {
		shards := int32(len(replica.GetStatus().GetLedShards()))
		if shards == 0 {
			continue
		}
		led += shards
		unknown := 0
		for _, name := range slices.Sorted(maps.Keys(replica.GetStatus().GetCounts())) {
			if !(Key{service.GetService(), name}).isKnown() {
				if unknown++; unknown > maxUnknownOfReplica {
					continue
				}
			}
			counts[name] += replica.GetStatus().GetCounts()[name]
		}
	}
	if service.GetShardCount() == 0 || led != service.GetShardCount() {
		return nil
	}
	return counts
}

// contactAge returns the time since the last contact of a replica with one of its dependencies, the
// longest one. The clocks of replicas may be ahead a little.
func contactAge(status *statusv1.ReplicaStatus, now time.Time) (age time.Duration, known bool) {
	for _, dependency := range status.GetDependencies() {
		if contact := dependency.GetLastContactTime(); contact != nil {
			age, known = max(age, now.Sub(contact.AsTime())), true
		}
	}
	return age, known
}
