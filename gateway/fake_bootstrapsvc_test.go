package gateway_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// fakeBootstrapsvc is bootstrapsvc with findings and kube-apiservers. Only the leader reports
// findings; each replica reports kube-apiservers, the baseline, plans and repairs.
type fakeBootstrapsvc struct {
	*fakeService
	findings   map[string]*bootstrapv1.Finding
	apiservers map[string]*bootstrapv1.APIServer
	baseline   *bootstrapv1.Baseline
	plans      map[string]*bootstrapv1.RepairPlan
	repairs    map[string]*bootstrapv1.Repair
	// applied has the repair of each request id.
	applied map[string]*bootstrapv1.Repair
}

func newBootstrapsvc(leader string) *fakeBootstrapsvc {
	return &fakeBootstrapsvc{
		fakeService: newFakeService("bootstrapsvc", leader), findings: map[string]*bootstrapv1.Finding{},
		apiservers: map[string]*bootstrapv1.APIServer{}, baseline: &bootstrapv1.Baseline{Name: "baseline", EndpointReconciler: "lease"},
		plans: map[string]*bootstrapv1.RepairPlan{}, repairs: map[string]*bootstrapv1.Repair{}, applied: map[string]*bootstrapv1.Repair{},
	}
}

// find adds a finding about a port.
func (f *fakeBootstrapsvc) find(port string) {
	f.change(func() {
		name := "findings/leaked.node-ports." + port
		f.findings[name] = &bootstrapv1.Finding{
			Name: name, Code: "LEAKED", Store: bootstrapv1.Store_STORE_NODE_PORTS, Subject: port,
			State: bootstrapv1.Finding_STATE_OPEN, RepairMode: bootstrapv1.Finding_REPAIR_MODE_AUTO,
		}
	})
}

// repair ends the finding about a port, which is remembered.
func (f *fakeBootstrapsvc) repair(port string) {
	f.change(func() {
		name := "findings/leaked.node-ports." + port
		f.findings[name] = proto.CloneOf(f.findings[name])
		f.findings[name].State = bootstrapv1.Finding_STATE_REPAIRED
	})
}

// elect makes a replica the leader, or none.
func (f *fakeBootstrapsvc) elect(id string) { f.move(0, id) }

// setAPIServers sets the kube-apiservers.
func (f *fakeBootstrapsvc) setAPIServers(all ...*bootstrapv1.APIServer) {
	f.change(func() {
		f.apiservers = map[string]*bootstrapv1.APIServer{}
		for _, one := range all {
			f.apiservers[one.Name] = one
		}
	})
}

// copyOf returns a copy of a map of the fake.
func copyOf[T any](f *fakeBootstrapsvc, all func() map[string]T) map[string]T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(all())
}

// bootstrapReplica is one replica of fakeBootstrapsvc.
type bootstrapReplica struct {
	bootstrapv1.UnimplementedBaselineServiceServer
	bootstrapv1.UnimplementedAPIServerServiceServer
	bootstrapv1.UnimplementedFindingServiceServer
	bootstrapv1.UnimplementedRepairServiceServer

	service *fakeBootstrapsvc
	id      string
	// stopping is whether all calls fail with SHUTTING_DOWN, disconnected whether it cannot reach
	// its kube-apiserver, hanging whether it does not answer. dropped is 1 to lose the next answer
	// to ApplyRepairPlan, 2 to lose all that follow, too.
	stopping, disconnected, hanging atomic.Bool
	dropped                         atomic.Int64
	calls, watches                  atomic.Int64
}

// start starts a replica.
func (f *fakeBootstrapsvc) start(t testing.TB, id string) (*bootstrapReplica, term.Member) {
	t.Helper()
	r := &bootstrapReplica{service: f, id: id}
	return r, f.fakeService.start(t, id, func(registrar grpc.ServiceRegistrar) {
		bootstrapv1.RegisterBaselineServiceServer(registrar, r)
		bootstrapv1.RegisterAPIServerServiceServer(registrar, r)
		bootstrapv1.RegisterFindingServiceServer(registrar, r)
		bootstrapv1.RegisterRepairServiceServer(registrar, r)
	})
}

func (r *bootstrapReplica) admit(ctx context.Context) error {
	r.calls.Add(1)
	switch {
	case r.hanging.Load():
		<-ctx.Done()
		return ctx.Err()
	case r.stopping.Load():
		return rpcerror.ShuttingDown()
	case r.disconnected.Load():
		return rpcerror.New(codes.Unavailable, "APISERVER_UNREACHABLE", "the kube-apiserver did not answer in time")
	}
	return nil
}

// lead admits calls that only the leader answers.
func (r *bootstrapReplica) lead(ctx context.Context) error {
	if err := r.admit(ctx); err != nil {
		return err
	}
	return r.service.checkLeader(0, r.id)
}

func (r *bootstrapReplica) sources() []*metav1.Source { return r.service.sources(r.id) }

func (r *bootstrapReplica) GetBaseline(ctx context.Context, _ *bootstrapv1.GetBaselineRequest) (*bootstrapv1.GetBaselineResponse, error) {
	if err := r.admit(ctx); err != nil {
		return nil, err
	}
	return &bootstrapv1.GetBaselineResponse{Baseline: r.service.baseline, Sources: r.sources()}, nil
}

func (r *bootstrapReplica) ReconcileBaseline(ctx context.Context, request *bootstrapv1.ReconcileBaselineRequest) (*bootstrapv1.ReconcileBaselineResponse, error) {
	admit := r.lead
	if request.ValidateOnly {
		admit = r.admit
	}
	if err := admit(ctx); err != nil {
		return nil, err
	}
	return &bootstrapv1.ReconcileBaselineResponse{Sources: r.sources()}, nil
}

func (r *bootstrapReplica) WatchBaseline(_ *bootstrapv1.WatchBaselineRequest, wire grpc.ServerStreamingServer[bootstrapv1.WatchBaselineResponse]) error {
	read := func() map[string]*bootstrapv1.Baseline {
		return copyOf(r.service, func() map[string]*bootstrapv1.Baseline {
			return map[string]*bootstrapv1.Baseline{"baseline": r.service.baseline}
		})
	}
	return serveWatch(wire.Context(), r, r.admit, read, nil, func(kind metav1.EventType, baseline *bootstrapv1.Baseline, mark *metav1.Bookmark) error {
		return wire.Send(&bootstrapv1.WatchBaselineResponse{Type: kind, Baseline: baseline, Bookmark: mark})
	})
}

func (r *bootstrapReplica) allAPIServers() map[string]*bootstrapv1.APIServer {
	return copyOf(r.service, func() map[string]*bootstrapv1.APIServer { return r.service.apiservers })
}

func (r *bootstrapReplica) ListAPIServers(ctx context.Context, _ *bootstrapv1.ListAPIServersRequest) (*bootstrapv1.ListAPIServersResponse, error) {
	if err := r.admit(ctx); err != nil {
		return nil, err
	}
	all := r.allAPIServers()
	var ordered []*bootstrapv1.APIServer
	for _, name := range slices.Sorted(maps.Keys(all)) {
		ordered = append(ordered, all[name])
	}
	return &bootstrapv1.ListAPIServersResponse{Apiservers: ordered, ResumeToken: "of " + r.id, Sources: r.sources()}, nil
}

func (r *bootstrapReplica) WatchAPIServers(_ *bootstrapv1.WatchAPIServersRequest, wire grpc.ServerStreamingServer[bootstrapv1.WatchAPIServersResponse]) error {
	return serveWatch(wire.Context(), r, r.admit, r.allAPIServers, nil, func(kind metav1.EventType, apiserver *bootstrapv1.APIServer, mark *metav1.Bookmark) error {
		return wire.Send(&bootstrapv1.WatchAPIServersResponse{Type: kind, Apiserver: apiserver, Bookmark: mark})
	})
}

// serveWatch serves a watch until it is not admitted.
func serveWatch[T item](
	ctx context.Context, r *bootstrapReplica, admit func(context.Context) error, read func() map[string]T, ended func(T) T,
	send func(metav1.EventType, T, *metav1.Bookmark) error,
) error {
	r.watches.Add(1)
	defer r.watches.Add(-1)
	return watch[T]{
		service: r.service.fakeService, replica: r.id, check: func() error { return admit(ctx) }, read: read, ended: ended, send: send,
		same: func(a, b T) bool { return proto.Equal(a, b) },
	}.serve(ctx)
}

// selects reports whether a filter for findings selects a finding.
func selects(codes []string, states []bootstrapv1.Finding_State, finding *bootstrapv1.Finding) bool {
	stands := finding.State < bootstrapv1.Finding_STATE_REPAIRED
	return (len(codes) == 0 || slices.Contains(codes, finding.Code)) &&
		(len(states) == 0 && stands || slices.Contains(states, finding.State))
}

func (r *bootstrapReplica) allFindings() map[string]*bootstrapv1.Finding {
	return copyOf(r.service, func() map[string]*bootstrapv1.Finding { return r.service.findings })
}

func (r *bootstrapReplica) ListFindings(ctx context.Context, request *bootstrapv1.ListFindingsRequest) (*bootstrapv1.ListFindingsResponse, error) {
	if err := r.lead(ctx); err != nil {
		return nil, err
	}
	page, next, err := pageOf(r.allFindings(), fmt.Sprint(request.Codes, request.States), request.PageToken, cmp.Or(request.PageSize, 500), func(f *bootstrapv1.Finding) bool {
		return selects(request.Codes, request.States, f)
	})
	return &bootstrapv1.ListFindingsResponse{Findings: page, NextPageToken: next, ResumeToken: "of " + r.id, Sources: r.sources()}, err
}

func (r *bootstrapReplica) WatchFindings(request *bootstrapv1.WatchFindingsRequest, wire grpc.ServerStreamingServer[bootstrapv1.WatchFindingsResponse]) error {
	read := func() map[string]*bootstrapv1.Finding {
		all := r.allFindings()
		maps.DeleteFunc(all, func(_ string, f *bootstrapv1.Finding) bool { return !selects(request.Codes, request.States, f) })
		return all
	}
	return serveWatch(wire.Context(), r, r.lead, read, nil, func(kind metav1.EventType, finding *bootstrapv1.Finding, mark *metav1.Bookmark) error {
		return wire.Send(&bootstrapv1.WatchFindingsResponse{Type: kind, Finding: finding, Bookmark: mark})
	})
}

func (r *bootstrapReplica) AuditAllocations(ctx context.Context, _ *bootstrapv1.AuditAllocationsRequest) (*bootstrapv1.AuditAllocationsResponse, error) {
	if err := r.lead(ctx); err != nil {
		return nil, err
	}
	return &bootstrapv1.AuditAllocationsResponse{
		Stores:       []*bootstrapv1.AuditAllocationsResponse_StoreAudit{{Store: bootstrapv1.Store_STORE_NODE_PORTS, Present: true}},
		FindingCount: int32(len(r.allFindings())), Sources: r.sources(),
	}, nil
}

func (r *bootstrapReplica) IgnoreFinding(ctx context.Context, request *bootstrapv1.IgnoreFindingRequest) (*bootstrapv1.IgnoreFindingResponse, error) {
	if err := r.lead(ctx); err != nil {
		return nil, err
	}
	finding := proto.CloneOf(r.allFindings()[request.Name])
	finding.State = bootstrapv1.Finding_STATE_IGNORED
	if !request.ValidateOnly {
		r.service.change(func() { r.service.findings[request.Name] = finding })
	}
	return &bootstrapv1.IgnoreFindingResponse{Finding: finding, Sources: r.sources()}, nil
}

func (r *bootstrapReplica) UnignoreFinding(ctx context.Context, request *bootstrapv1.UnignoreFindingRequest) (*bootstrapv1.UnignoreFindingResponse, error) {
	if err := r.lead(ctx); err != nil {
		return nil, err
	}
	finding := proto.CloneOf(r.allFindings()[request.Name])
	finding.State = bootstrapv1.Finding_STATE_OPEN
	if !request.ValidateOnly {
		r.service.change(func() { r.service.findings[request.Name] = finding })
	}
	return &bootstrapv1.UnignoreFindingResponse{Finding: finding, Sources: r.sources()}, nil
}

func (r *bootstrapReplica) CreateRepairPlan(ctx context.Context, request *bootstrapv1.CreateRepairPlanRequest) (*bootstrapv1.CreateRepairPlanResponse, error) {
	if err := r.lead(ctx); err != nil {
		return nil, err
	}
	all, names := r.allFindings(), request.Findings
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(all))
	}
	plan := &bootstrapv1.RepairPlan{
		Name: fmt.Sprintf("repairplans/p%d", r.calls.Load()), Etag: "e1", SkippedFindingCount: 3, ExpireTime: timestamppb.New(time.Now().Add(10 * time.Minute)),
	}
	for _, name := range names {
		finding := all[name]
		switch {
		case finding == nil:
			return nil, rpcerror.New(codes.NotFound, "FINDING_NOT_FOUND", name+" is not an open finding")
		case finding.Repair == "" && finding.RepairMode != bootstrapv1.Finding_REPAIR_MODE_AUTO:
			plan.SkippedFindings = append(plan.SkippedFindings, finding)
		default:
			plan.Steps = append(plan.Steps, stepFor(finding))
		}
	}
	slices.SortStableFunc(plan.Steps, func(a, b *bootstrapv1.RepairStep) int { // allocate before anything is freed
		return cmp.Compare(a.Change.Verb, b.Change.Verb)
	})
	if request.ValidateOnly {
		plan.Name = ""
	} else {
		r.service.change(func() { r.service.plans[plan.Name] = plan })
	}
	return &bootstrapv1.CreateRepairPlanResponse{RepairPlan: plan, Sources: r.sources()}, nil
}

func stepFor(finding *bootstrapv1.Finding) *bootstrapv1.RepairStep {
	change := &metav1.Change{
		Verb: metav1.Change_VERB_UPDATE, Reason: "LEAKED", Message: "bit " + finding.Subject + " is cleared", BaseVersion: "48213",
		Object: &metav1.ObjectReference{ApiVersion: "v1", Kind: "RangeAllocation", Name: "servicenodeports"}, Outcome: metav1.Change_OUTCOME_PLANNED,
	}
	if finding.Store == bootstrapv1.Store_STORE_IP_ADDRESSES {
		change.Verb, change.Reason, change.Message, change.BaseVersion = metav1.Change_VERB_CREATE, "NOT_ALLOCATED", "for the Service that uses it", ""
		change.Object = &metav1.ObjectReference{ApiVersion: "networking.k8s.io/v1", Kind: "IPAddress", Name: finding.Subject}
	}
	if finding.Code == "ORPHAN" {
		change.Verb, change.Reason, change.Message, change.BaseVersion = metav1.Change_VERB_DELETE, "ORPHAN", "its owner does not exist", "48213"
	}
	return &bootstrapv1.RepairStep{Finding: finding.Name, Change: change, RepairMode: finding.RepairMode, Risk: finding.RepairModeMessage}
}

func (r *bootstrapReplica) GetRepairPlan(ctx context.Context, request *bootstrapv1.GetRepairPlanRequest) (*bootstrapv1.GetRepairPlanResponse, error) {
	if err := r.admit(ctx); err != nil {
		return nil, err
	}
	plan := copyOf(r.service, func() map[string]*bootstrapv1.RepairPlan { return r.service.plans })[request.Name]
	if plan == nil {
		return nil, rpcerror.New(codes.NotFound, "PLAN_NOT_FOUND", "no plan "+request.Name)
	}
	return &bootstrapv1.GetRepairPlanResponse{RepairPlan: plan, Sources: r.sources()}, nil
}

// ApplyRepairPlan makes one repair for each request id.
func (r *bootstrapReplica) ApplyRepairPlan(ctx context.Context, request *bootstrapv1.ApplyRepairPlanRequest) (*bootstrapv1.ApplyRepairPlanResponse, error) {
	if err := r.lead(ctx); err != nil {
		return nil, err
	}
	if request.Name == "repairplans/old" {
		return nil, rpcerror.New(codes.FailedPrecondition, "PLAN_EXPIRED", "the plan has expired; plan again")
	}
	var repair *bootstrapv1.Repair
	r.service.change(func() {
		if repair = r.service.applied[request.RequestId]; repair == nil {
			repair = &bootstrapv1.Repair{
				Name: fmt.Sprintf("repairs/r%d", len(r.service.repairs)), Plan: request.Name, State: bootstrapv1.Repair_STATE_SUCCEEDED,
				Requester: &metav1.Caller{User: r.id},
			}
			r.service.applied[request.RequestId], r.service.repairs[repair.Name] = repair, repair
		}
	})
	if lost := r.dropped.Swap(0); lost > 0 {
		r.service.mu.Lock()
		member := r.service.members[r.id]
		r.service.mu.Unlock()
		cut(member, lost > 1)
	}
	return &bootstrapv1.ApplyRepairPlanResponse{Repair: repair, Sources: r.sources()}, nil
}

func (r *bootstrapReplica) allRepairs() map[string]*bootstrapv1.Repair {
	return copyOf(r.service, func() map[string]*bootstrapv1.Repair { return r.service.repairs })
}

func (r *bootstrapReplica) ListRepairs(ctx context.Context, _ *bootstrapv1.ListRepairsRequest) (*bootstrapv1.ListRepairsResponse, error) {
	if err := r.admit(ctx); err != nil {
		return nil, err
	}
	all := r.allRepairs()
	var ordered []*bootstrapv1.Repair
	for _, name := range slices.Sorted(maps.Keys(all)) {
		ordered = append(ordered, all[name])
	}
	return &bootstrapv1.ListRepairsResponse{Repairs: ordered, Sources: r.sources()}, nil
}

func (r *bootstrapReplica) WatchRepairs(_ *bootstrapv1.WatchRepairsRequest, wire grpc.ServerStreamingServer[bootstrapv1.WatchRepairsResponse]) error {
	return serveWatch(wire.Context(), r, r.admit, r.allRepairs, nil, func(kind metav1.EventType, repair *bootstrapv1.Repair, mark *metav1.Bookmark) error {
		return wire.Send(&bootstrapv1.WatchRepairsResponse{Type: kind, Repair: repair, Bookmark: mark})
	})
}
