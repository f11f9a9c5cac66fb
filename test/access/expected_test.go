package access

import "strings"

// right is what a caller may do.
type right string

const (
	unknown     right = "nothing, without an identity"
	nothing     right = "nothing"
	ownNodes    right = "heartbeats of the own node"
	otherNodes  right = "heartbeats of the other node"
	reads       right = "reads"
	tenantReads right = "reads of one namespace"
	operates    right = "reads and changes"
	everything  right = "all rights in Kubernetes"
	peerReads   right = "reads as a peer"
	serves      right = "reads as a peer, and forwarded heartbeats"
)

// kind is what a method does, as the table knows it.
type kind string

const (
	health     kind = "health"
	reflection kind = "reflection"
	read       kind = "read"
	readScoped kind = "read in a namespace"
	change     kind = "change"
	heartbeat  kind = "heartbeat of the own node"
	forwarded  kind = "forwarded heartbeats"
)

// kinds has the methods that are no plain reads. A method that is neither here nor has the name of
// a read fails the test.
var kinds = map[string]kind{
	"/grpc.health.v1.Health/Check": health,
	"/grpc.health.v1.Health/List":  health,
	"/grpc.health.v1.Health/Watch": health,

	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      reflection,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": reflection,

	"/trivet.shadow.v1.ShadowService/SwitchLoop":             change,
	"/trivet.bootstrap.v1.BaselineService/ReconcileBaseline": change,
	"/trivet.bootstrap.v1.FindingService/AuditAllocations":   change,
	"/trivet.bootstrap.v1.FindingService/IgnoreFinding":      change,
	"/trivet.bootstrap.v1.FindingService/UnignoreFinding":    change,
	"/trivet.bootstrap.v1.RepairService/ApplyRepairPlan":     change,
	"/trivet.bootstrap.v1.RepairService/CancelRepair":        change,
	"/trivet.bootstrap.v1.RepairService/CreateRepairPlan":    change,
	"/trivet.slice.v1.SliceService/ReconcileServiceSlices":   change,

	"/trivet.lease.v1.HeartbeatService/Heartbeat":        heartbeat,
	"/trivet.lease.v1.HeartbeatService/ReleaseLease":     heartbeat,
	"/trivet.lease.v1.HeartbeatService/StreamHeartbeats": heartbeat,
	"/trivet.lease.v1.PeerService/ForwardHeartbeats":     forwarded,
}

// kindOf returns "" for a method that the table does not know.
func kindOf(method string) kind {
	if known, found := kinds[method]; found {
		return known
	}
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	for _, prefix := range []string{"Get", "List", "Watch", "Explain", "Plan"} {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if service == "trivet.slice.v1.SliceService" || service == "trivet.lease.v1.LeaseService" {
			return readScoped
		}
		return read
	}
	return ""
}

// answer is how a cell ends.
type answer string

const (
	allowed          answer = "allowed"
	notAuthenticated answer = "NOT_AUTHENTICATED"
	notAuthorized    answer = "NOT_AUTHORIZED"
)

// may are the kinds of methods of each right. Beside them, health is open, and reflection is open
// to each caller with an identity. The remaining ones are refused.
var may = map[right][]kind{
	ownNodes:    {heartbeat},
	reads:       {read, readScoped},
	tenantReads: {readScoped},
	operates:    {read, readScoped, change},
	everything:  {read, readScoped, change},
	peerReads:   {read, readScoped},
	serves:      {read, readScoped, forwarded},
}

func expected(may map[right][]kind, caller right, method kind) answer {
	switch {
	case method == health:
		return allowed
	case caller == unknown:
		return notAuthenticated
	case method == reflection:
		return allowed
	}
	for _, kind := range may[caller] {
		if kind == method {
			return allowed
		}
	}
	return notAuthorized
}
