package quota

// Limit has the limits of one method for one identity.
type Limit struct {
	// Rate is the number of calls per second.
	Rate float64
	// Burst is the number of calls that an identity may make at once after a pause.
	Burst int
	// InFlight is the number of calls at the same time. A stream is in flight until it ends.
	InFlight int
	// MaxBytes is the largest message; 0 leaves only the limit of the server.
	MaxBytes int
	// Batched says that a caller with many holders has only the limit of the server.
	Batched bool
	// CountedByHandler says that the service counts the calls and messages itself.
	CountedByHandler bool
}

// Table has the limits of all methods, by full gRPC method.
type Table map[string]Limit

const (
	// smallBytes is the largest request that is no batch.
	smallBytes = 64 << 10

	// TokenReview is no method of the API: it counts requests to kube-apiserver that tell whose a
	// token is. Without a limit, random tokens would become load on kube-apiserver.
	TokenReview = "/authentication.k8s.io/TokenReview"

	// UnknownMethod counts the calls of methods that the server does not have. Callers choose their
	// names.
	UnknownMethod = "/unknown/Unknown"
)

// Methods returns the limits of every method of a Trivet server.
func Methods() Table {
	var (
		get     = Limit{Rate: 100, Burst: 300, InFlight: 50, MaxBytes: smallBytes}
		list    = Limit{Rate: 20, Burst: 100, InFlight: 10, MaxBytes: smallBytes}
		watch   = Limit{Rate: 5, Burst: 50, InFlight: 20, MaxBytes: smallBytes}
		explain = Limit{Rate: 10, Burst: 50, InFlight: 10, MaxBytes: smallBytes}
		change  = Limit{Rate: 5, Burst: 30, InFlight: 5, MaxBytes: smallBytes}
		// Each call reads all objects of a kind, or starts work in the background.
		costly = Limit{Rate: 1, Burst: 10, InFlight: 2, MaxBytes: smallBytes}
		probe  = Limit{Rate: 50, Burst: 100, InFlight: 50, MaxBytes: smallBytes}
		beats  = Limit{CountedByHandler: true, MaxBytes: smallBytes, Batched: true}
	)
	return Table{
		"/trivet.lease.v1.HeartbeatService/Heartbeat":        beats,
		"/trivet.lease.v1.HeartbeatService/StreamHeartbeats": beats,
		"/trivet.lease.v1.PeerService/ForwardHeartbeats":     {CountedByHandler: true},
		"/trivet.lease.v1.HeartbeatService/ReleaseLease":     get,

		"/trivet.lease.v1.LeaseService/GetLease":    get,
		"/trivet.lease.v1.LeaseService/ListLeases":  list,
		"/trivet.lease.v1.LeaseService/WatchLeases": watch,

		"/trivet.node.v1.NodeHealthService/GetNodeHealth":     get,
		"/trivet.node.v1.NodeHealthService/ListNodeHealth":    list,
		"/trivet.node.v1.NodeHealthService/WatchNodeHealth":   watch,
		"/trivet.node.v1.NodeHealthService/ExplainNodeHealth": explain,
		"/trivet.node.v1.NodeHealthService/GetZone":           get,
		"/trivet.node.v1.NodeHealthService/ListZones":         list,
		"/trivet.node.v1.NodeHealthService/WatchZones":        watch,

		"/trivet.bootstrap.v1.BaselineService/GetBaseline":       get,
		"/trivet.bootstrap.v1.BaselineService/WatchBaseline":     watch,
		"/trivet.bootstrap.v1.BaselineService/ReconcileBaseline": change,

		"/trivet.bootstrap.v1.APIServerService/GetAPIServer":    get,
		"/trivet.bootstrap.v1.APIServerService/ListAPIServers":  list,
		"/trivet.bootstrap.v1.APIServerService/WatchAPIServers": watch,

		"/trivet.bootstrap.v1.FindingService/GetFinding":       get,
		"/trivet.bootstrap.v1.FindingService/ListFindings":     list,
		"/trivet.bootstrap.v1.FindingService/WatchFindings":    watch,
		"/trivet.bootstrap.v1.FindingService/ExplainFinding":   explain,
		"/trivet.bootstrap.v1.FindingService/IgnoreFinding":    change,
		"/trivet.bootstrap.v1.FindingService/UnignoreFinding":  change,
		"/trivet.bootstrap.v1.FindingService/AuditAllocations": costly,

		"/trivet.bootstrap.v1.RepairService/CreateRepairPlan": change,
		"/trivet.bootstrap.v1.RepairService/GetRepairPlan":    get,
		"/trivet.bootstrap.v1.RepairService/ListRepairPlans":  list,
		"/trivet.bootstrap.v1.RepairService/ApplyRepairPlan":  change,
		"/trivet.bootstrap.v1.RepairService/GetRepair":        get,
		"/trivet.bootstrap.v1.RepairService/ListRepairs":      list,
		"/trivet.bootstrap.v1.RepairService/WatchRepairs":     watch,
		"/trivet.bootstrap.v1.RepairService/CancelRepair":     change,

		"/trivet.slice.v1.SliceService/GetServiceSlices":       get,
		"/trivet.slice.v1.SliceService/ListServiceSlices":      list,
		"/trivet.slice.v1.SliceService/WatchServiceSlices":     watch,
		"/trivet.slice.v1.SliceService/PlanServiceSlices":      explain,
		"/trivet.slice.v1.SliceService/ReconcileServiceSlices": change,
		"/trivet.slice.v1.SliceService/ExplainEndpoint":        explain,

		"/trivet.gateway.v1.ClusterService/GetClusterStatus":   get,
		"/trivet.gateway.v1.ClusterService/GetStatusHistory":   list,
		"/trivet.gateway.v1.ClusterService/WatchClusterStatus": watch,

		"/trivet.shadow.v1.ShadowService/ListDifferences": list,
		"/trivet.shadow.v1.ShadowService/SwitchLoop":      change,

		"/trivet.status.v1.StatusService/GetStatus":  get,
		"/trivet.status.v1.StatusService/ListShards": list,

		"/trivet.status.v1.DecisionService/ListDecisions":  list,
		"/trivet.status.v1.DecisionService/WatchDecisions": watch,

		"/grpc.health.v1.Health/Check": probe,
		"/grpc.health.v1.Health/List":  probe,
		"/grpc.health.v1.Health/Watch": watch,

		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      watch,
		"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": watch,

		UnknownMethod: {Rate: 5, Burst: 50, InFlight: 10, MaxBytes: smallBytes},

		TokenReview: {Rate: 20, Burst: 100, InFlight: 20},
	}
}
