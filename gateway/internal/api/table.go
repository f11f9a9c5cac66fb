package api

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

const (
	// zonesKey is the key under which the leader of the zones is remembered, leaderKey that for the
	// one leader of bootstrapsvc.
	zonesKey  = "zones"
	leaderKey = "leader"

	// slow is how many timeouts a replica has for a call that does more than read its memory.
	slow = 5
	// applyTimeout is how long a replica has to write step by step.
	applyTimeout = time.Minute
)

// Pages of Services are smaller than those of Nodes, because each Service has its slices.
var (
	normalPages = pages{normal: 500, limit: 5000}
	slicePages  = pages{normal: 100, limit: 1000}
)

// table has a handler for each RPC.
func (s *Server) table(leases, slices, bootstrap, all *service) []route {
	lease := s.collection(leases, "trivet.lease.v1.LeaseService.WatchLeases", merge.Partitioned)
	lease.same = sameBut([]field{"last_beat_time", "expire_time", "sequence", "observe_time"}, "start_time")
	node := s.collection(leases, "trivet.node.v1.NodeHealthService.WatchNodeHealth", merge.Partitioned)
	node.same = sameBut([]field{"signals"}, "change_time")
	zone := s.collection(leases, "trivet.node.v1.NodeHealthService.WatchZones", merge.Exclusive)
	slice := s.collection(slices, "trivet.slice.v1.SliceService.WatchServiceSlices", merge.Replicated)
	slice.same = sameSlices
	baseline := s.collection(bootstrap, "trivet.bootstrap.v1.BaselineService.WatchBaseline", merge.Exclusive)
	apiserver := s.collection(bootstrap, "trivet.bootstrap.v1.APIServerService.WatchAPIServers", merge.Exclusive)
	apiserver.same = sameBut([]field{"probe_time", "ttl"}, "")
	finding := s.collection(bootstrap, "trivet.bootstrap.v1.FindingService.WatchFindings", merge.Exclusive)
	finding.ended, finding.complete, finding.everything = endedUnseen, standingFindings, everyFinding
	repair := s.collection(bootstrap, "trivet.bootstrap.v1.RepairService.WatchRepairs", merge.Exclusive)

	decision := s.collection(all, "trivet.status.v1.DecisionService.WatchDecisions", merge.Local)

	zoneLeader, leader := constant(zonesKey), constant(leaderKey)
	short, long := leases.timeout, slow*leases.timeout
	return []route{
		{"trivet.status.v1.DecisionService", handlers{
			"ListDecisions":  decision.listAll(normalPages),
			"WatchDecisions": decision.watchAll(),
		}},
		{"trivet.lease.v1.LeaseService", handlers{
			"GetLease":    leases.leader(byName, short),
			"ListLeases":  lease.listAll(normalPages),
			"WatchLeases": lease.watchAll(),
		}},
		{"trivet.node.v1.NodeHealthService", handlers{
			"GetNodeHealth":     leases.leader(byName, short),
			"ExplainNodeHealth": leases.leader(byName, short),
			"ListNodeHealth":    node.listAll(normalPages),
			"WatchNodeHealth":   node.watchAll(),
			"GetZone":           leases.leader(zoneLeader, short),
			"ListZones":         zone.resumable(leases.leader(zoneLeader, short)),
			"WatchZones":        zone.watchLeader(zonesKey),
		}},
		{"trivet.slice.v1.SliceService", handlers{
			"GetServiceSlices":       slices.newest(),
			"PlanServiceSlices":      slices.newest(),
			"ExplainEndpoint":        slices.newest(),
			"ListServiceSlices":      slice.listAll(slicePages),
			"WatchServiceSlices":     slice.watchAll(),
			"ReconcileServiceSlices": slices.writeOrValidate(byName, long, slices.newest()),
		}},
		{"trivet.bootstrap.v1.BaselineService", handlers{
			"GetBaseline":       bootstrap.any(leader, long),
			"WatchBaseline":     baseline.watchAny(leaderKey),
			"ReconcileBaseline": bootstrap.writeOrValidate(leader, applyTimeout, bootstrap.any(leader, long)),
		}},
		{"trivet.bootstrap.v1.APIServerService", handlers{
			"GetAPIServer":    bootstrap.any(leader, short),
			"ListAPIServers":  apiserver.resumable(bootstrap.any(leader, short)),
			"WatchAPIServers": apiserver.watchAny(leaderKey),
		}},
		{"trivet.bootstrap.v1.FindingService", handlers{
			"GetFinding":       bootstrap.leader(leader, short),
			"ListFindings":     finding.resumable(bootstrap.leader(leader, short)),
			"ExplainFinding":   bootstrap.leader(leader, short),
			"WatchFindings":    finding.watchLeader(leaderKey),
			"IgnoreFinding":    bootstrap.write(leader, long),
			"UnignoreFinding":  bootstrap.write(leader, long),
			"AuditAllocations": bootstrap.write(leader, long),
		}},
		{"trivet.bootstrap.v1.RepairService", handlers{
			"CreateRepairPlan": bootstrap.write(leader, long),
			"GetRepairPlan":    bootstrap.any(leader, short),
			"ListRepairPlans":  bootstrap.any(leader, short),
			"ApplyRepairPlan":  bootstrap.write(leader, applyTimeout),
			"GetRepair":        bootstrap.any(leader, short),
			"ListRepairs":      repair.resumable(bootstrap.any(leader, short)),
			"WatchRepairs":     repair.watchAny(leaderKey),
			"CancelRepair":     bootstrap.write(leader, long),
		}},
	}
}

// everyFinding makes a request for findings one for all states.
func everyFinding(request proto.Message) {
	watch, ok := request.(*bootstrapv1.WatchFindingsRequest)
	for state := range bootstrapv1.Finding_State_name {
		if ok && state != 0 {
			watch.States = append(watch.States, bootstrapv1.Finding_State(state))
		}
	}
}

// standingFindings selects the states that an empty filter means.
func standingFindings(request proto.Message) {
	if watch, ok := request.(*bootstrapv1.WatchFindingsRequest); ok && len(watch.States) == 0 {
		watch.States = []bootstrapv1.Finding_State{
			bootstrapv1.Finding_STATE_PENDING, bootstrapv1.Finding_STATE_OPEN, bootstrapv1.Finding_STATE_IGNORED,
		}
	}
}

// endedUnseen returns a finding that ended while no replica led. Why it ended is unknown.
func endedUnseen(item merge.Item) merge.Item {
	known, ok := item.(*bootstrapv1.Finding)
	if !ok {
		return item
	}
	finding := proto.CloneOf(known)
	switch finding.State {
	case bootstrapv1.Finding_STATE_PENDING, bootstrapv1.Finding_STATE_OPEN, bootstrapv1.Finding_STATE_IGNORED:
		finding.State = bootstrapv1.Finding_STATE_ENDED
	}
	return finding
}
