package nodehealthcontroller

import (
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// TaintsUnreliable reports whether, and why, no pod may be evicted for the taints of a zone's
// Nodes.
func (p *Publisher) TaintsUnreliable(zone string) (reason string, unreliable bool) {
	snapshot := p.Snapshot()
	switch {
	case snapshot == nil:
		return "node health has not seen the cluster yet", true
	case snapshot.Blindness != nil:
		return snapshot.Blindness.String(), true
	case snapshot.MassSilence.Zone(zone):
		return nodehealth.MassSilenceReason, true
	case allZonesDown(snapshot.Zones):
		return "no zone has a ready node", true
	}
	return "", false
}

// allZonesDown reports whether no zone has a ready node. Zones without counted nodes are ignored.
// The cause is then hardly the nodes, and their NoExecute taints are removed.
func allZonesDown(zones []nodehealth.Zone) bool {
	down := false
	for i := range zones {
		if zones[i].Size == 0 {
			continue
		}
		if zones[i].State != nodehealth.FullDisruption {
			return false
		}
		down = true
	}
	return down
}
