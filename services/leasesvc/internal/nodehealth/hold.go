package nodehealth

import "github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"

// Hold is why something is not done now: a silent node is not marked Unknown, or Pods that are due
// are not evicted. The zero Hold holds nothing.
type Hold struct {
	// Reason is a stable code. docs/reasons.md lists them.
	Reason string
	// Message is a clause for people.
	Message string
	// Since is when it began; 0 if that is not known.
	Since monotonic.Instant
}

// Reasons of a Hold.
const (
	selfCheckPending     = "SELF_CHECK_PENDING"
	apiServerUnreachable = "APISERVER_UNREACHABLE"
	cacheStale           = "CACHE_STALE"
	processLate          = "PROCESS_LATE"
	massSilence          = "MASS_SILENCE"
	cacheNotSynced       = "CACHE_NOT_SYNCED"
	noZoneReady          = "NO_ZONE_READY"
	apiServerDenied      = "APISERVER_DENIED"
)

// Active reports whether h holds anything.
func (h Hold) Active() bool { return h.Reason != "" }

// Hold returns the Hold of all nodes while the process is uncertain.
func (b Uncertainty) Hold() Hold {
	reason := map[Cause]string{
		Unchecked: selfCheckPending, Unreachable: apiServerUnreachable, Stale: cacheStale, Late: processLate, Denied: apiServerDenied,
	}[b.Cause]
	return Hold{Reason: reason, Message: b.String(), Since: b.Since}
}

// MassSilenceHold returns the Hold of the nodes of a zone or shard with a mass silence.
func MassSilenceHold() Hold {
	return Hold{Reason: massSilence, Message: "many nodes of one zone or shard fell silent within 5s, so a self-check comes first"}
}

// NotSyncedHold returns the Hold of evictions before the first pass of node health.
func NotSyncedHold() Hold {
	return Hold{Reason: cacheNotSynced, Message: "node health has not read the cluster yet"}
}

// NoZoneReadyHold returns the Hold of evictions while no zone has a ready node.
func NoZoneReadyHold() Hold {
	return Hold{Reason: noZoneReady, Message: "no zone has a ready node"}
}
