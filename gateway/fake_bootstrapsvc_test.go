package gateway_test

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
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
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// fakeBootstrapsvc is bootstrapsvc with findings and kube-apiservers. Only the holder of the term
// reports findings; each replica reports kube-apiservers, the baseline and repairs.
type fakeBootstrapsvc struct {
	*fakeService
	findings   map[string]*bootstrapv1.Finding
	apiservers []*bootstrapv1.APIServer
	baseline   *bootstrapv1.Baseline
	repairs    []*bootstrapv1.Repair
}

func newBootstrapsvc(holder string) *fakeBootstrapsvc {
	return &fakeBootstrapsvc{
		fakeService: newFakeService("bootstrapsvc", holder), findings: map[string]*bootstrapv1.Finding{},
		baseline: &bootstrapv1.Baseline{EndpointReconciler: "lease"},
	}
}

// find adds a finding about a port.
func (f *fakeBootstrapsvc) find(port string) {
	f.change(func() {
		name := "findings/leaked.node-ports." + port
		f.findings[name] = &bootstrapv1.Finding{
			Name: name, Code: bootstrapv1.Finding_CODE_LEAKED, Store: bootstrapv1.Finding_STORE_NODE_PORTS, Subject: port,
			State: bootstrapv1.Finding_STATE_OPEN, Safe: true,
		}
	})
}

// repair removes the finding about a port.
func (f *fakeBootstrapsvc) repair(port string) {
	f.change(func() { delete(f.findings, "findings/leaked.node-ports."+port) })
}

// elect gives the term to a replica, or to none.
func (f *fakeBootstrapsvc) elect(id string) { f.move(0, id) }

// bootstrapReplica is one replica of fakeBootstrapsvc.
type bootstrapReplica struct {
	bootstrapv1.UnimplementedBootstrapServiceServer

	service *fakeBootstrapsvc
	id      string
	// stopping is whether all calls fail with SHUTTING_DOWN, disconnected whether it cannot reach
	// its kube-apiserver, hanging whether it does not answer.
	stopping, disconnected, hanging atomic.Bool
	calls, watches                  atomic.Int64
}

// start starts a replica.
func (f *fakeBootstrapsvc) start(t testing.TB, id string) (*bootstrapReplica, term.Member) {
	t.Helper()
	r := &bootstrapReplica{service: f, id: id}
	return r, f.fakeService.start(t, id, func(registrar grpc.ServiceRegistrar) { bootstrapv1.RegisterBootstrapServiceServer(registrar, r) })
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

// lead admits calls that only the holder of the term answers.
func (r *bootstrapReplica) lead(ctx context.Context) error {
	if err := r.admit(ctx); err != nil {
		return err
	}
	return r.service.checkHolder(0, r.id)
}

func (r *bootstrapReplica) freshness() *statusv1.Freshness {
	return &statusv1.Freshness{ReplicaId: r.id, ReadTime: timestamppb.Now(), Epoch: r.service.epochAt(0, r.id)}
}

func (r *bootstrapReplica) GetBaseline(ctx context.Context, _ *bootstrapv1.GetBaselineRequest) (*bootstrapv1.GetBaselineResponse, error) {
	if err := r.admit(ctx); err != nil {
		return nil, err
	}
	return &bootstrapv1.GetBaselineResponse{Baseline: r.service.baseline, Freshness: r.freshness()}, nil
}

func (r *bootstrapReplica) ListAPIServers(ctx context.Context, _ *bootstrapv1.ListAPIServersRequest) (*bootstrapv1.ListAPIServersResponse, error) {
	if err := r.admit(ctx); err != nil {
		return nil, err
	}
	list, _ := r.apiservers()
	return &bootstrapv1.ListAPIServersResponse{Apiservers: list, Freshness: r.freshness()}, nil
}

// apiservers returns the kube-apiservers, and a channel that is closed at the next change.
func (r *bootstrapReplica) apiservers() ([]*bootstrapv1.APIServer, <-chan struct{}) {
	r.service.mu.Lock()
	defer r.service.mu.Unlock()
	return r.service.apiservers, r.service.changed
}

func (r *bootstrapReplica) WatchAPIServers(_ *bootstrapv1.WatchAPIServersRequest, wire grpc.ServerStreamingServer[bootstrapv1.WatchAPIServersResponse]) error {
	r.watches.Add(1)
	defer r.watches.Add(-1)
	for {
		if err := r.admit(wire.Context()); err != nil {
			return err
		}
		list, changed := r.apiservers()
		if err := wire.Send(&bootstrapv1.WatchAPIServersResponse{Apiservers: list, Freshness: r.freshness()}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-wire.Context().Done():
			return wire.Context().Err()
		}
	}
}

func (r *bootstrapReplica) ListFindings(ctx context.Context, request *bootstrapv1.ListFindingsRequest) (*bootstrapv1.ListFindingsResponse, error) {
	if err := r.lead(ctx); err != nil {
		return nil, err
	}
	r.service.mu.Lock()
	page, next, err := pageOf(r.service.findings, request.Code.String(), request.PageToken, cmp.Or(request.PageSize, 500), func(f *bootstrapv1.Finding) bool {
		return request.Code == 0 || f.Code == request.Code
	})
	r.service.mu.Unlock()
	return &bootstrapv1.ListFindingsResponse{Findings: page, NextPageToken: next, Freshness: r.freshness()}, err
}

func (r *bootstrapReplica) WatchFindings(_ *bootstrapv1.WatchFindingsRequest, wire grpc.ServerStreamingServer[bootstrapv1.WatchFindingsResponse]) error {
	r.watches.Add(1)
	defer r.watches.Add(-1)
	check := func() error { return r.lead(wire.Context()) }
	read := func() map[string]*bootstrapv1.Finding {
		r.service.mu.Lock()
		defer r.service.mu.Unlock()
		return maps.Clone(r.service.findings)
	}
	same := func(a, b *bootstrapv1.Finding) bool { return proto.Equal(a, b) }
	return follow(wire.Context(), r.service.fakeService, check, read, same, func(kind int32, finding *bootstrapv1.Finding) error {
		event := &bootstrapv1.WatchFindingsResponse{Type: bootstrapv1.WatchFindingsResponse_Type(kind), Finding: finding, Freshness: r.freshness()}
		if event.Type == bootstrapv1.WatchFindingsResponse_TYPE_DELETED {
			event.Finding = proto.CloneOf(finding)
			event.Finding.State = bootstrapv1.Finding_STATE_REPAIRED
		}
		return wire.Send(event)
	})
}

func (r *bootstrapReplica) Audit(ctx context.Context, _ *bootstrapv1.AuditRequest) (*bootstrapv1.AuditResponse, error) {
	if err := r.lead(ctx); err != nil {
		return nil, err
	}
	return &bootstrapv1.AuditResponse{
		Stores:   []*bootstrapv1.AuditResponse_StoreAudit{{Store: bootstrapv1.Finding_STORE_NODE_PORTS, Present: true}},
		Findings: int32(len(r.service.findings)), Freshness: r.freshness(),
	}, nil
}

func (r *bootstrapReplica) PlanRepair(ctx context.Context, request *bootstrapv1.PlanRepairRequest) (*bootstrapv1.PlanRepairResponse, error) {
	if err := r.lead(ctx); err != nil {
		return nil, err
	}
	r.service.mu.Lock()
	defer r.service.mu.Unlock()
	names := request.Names
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(r.service.findings))
	}
	plan := &bootstrapv1.PlanRepairResponse{
		LeftOmitted: 3, ExpireTime: timestamppb.New(time.Now().Add(10 * time.Minute)), Freshness: &statusv1.Freshness{ReplicaId: r.id},
	}
	for _, name := range names {
		finding := r.service.findings[name]
		switch {
		case finding == nil:
			return nil, rpcerror.New(codes.NotFound, "FINDING_NOT_FOUND", name+" is not an open finding")
		case finding.Repair == "" && !finding.Safe:
			plan.Left = append(plan.Left, finding)
		default:
			plan.Steps = append(plan.Steps, stepFor(finding))
		}
	}
	slices.SortStableFunc(plan.Steps, func(a, b *bootstrapv1.RepairStep) int { // allocate before anything is freed
		return cmp.Compare(a.Change.Verb, b.Change.Verb)
	})
	if len(plan.Steps) > 0 {
		plan.Token = "eyJ2IjoxLCJmaW5kaW5ncyI6WyJ" + strings.Repeat("maW5kaW5ncy9ub3QtYWxsb2NhdGVk", len(plan.Steps)) + "In0"
	}
	return plan, nil
}

func stepFor(finding *bootstrapv1.Finding) *bootstrapv1.RepairStep {
	change := &statusv1.Change{
		Verb: statusv1.Change_VERB_UPDATE, Reason: "LEAKED", Detail: "bit " + finding.Subject + " is cleared",
		Object: &statusv1.ObjectReference{ApiVersion: "v1", Kind: "RangeAllocation", Name: "servicenodeports"},
	}
	if finding.Store == bootstrapv1.Finding_STORE_IP_ADDRESSES {
		change = &statusv1.Change{
			Verb: statusv1.Change_VERB_CREATE, Reason: "NOT_ALLOCATED", Detail: "for the Service that uses it",
			Object: &statusv1.ObjectReference{ApiVersion: "networking.k8s.io/v1", Kind: "IPAddress", Name: finding.Subject},
		}
	}
	if finding.Code == bootstrapv1.Finding_CODE_ORPHAN {
		change.Verb, change.Reason, change.Detail = statusv1.Change_VERB_DELETE, "ORPHAN", "its owner does not exist"
	}
	step := &bootstrapv1.RepairStep{
		Finding: finding.Name, Change: change, Safe: finding.Safe, Risk: finding.UnsafeReason, State: bootstrapv1.RepairStep_STATE_PENDING,
	}
	if change.Verb != statusv1.Change_VERB_CREATE { // a create needs no version
		step.Version = "48213"
	}
	return step
}

// ApplyRepair records a repair with the name of the token.
func (r *bootstrapReplica) ApplyRepair(ctx context.Context, request *bootstrapv1.ApplyRepairRequest) (*bootstrapv1.ApplyRepairResponse, error) {
	if err := r.lead(ctx); err != nil {
		return nil, err
	}
	if request.Token == "old" {
		return nil, rpcerror.New(codes.FailedPrecondition, "REPAIR_TOKEN_EXPIRED", "the plan has expired; plan again")
	}
	repair := &bootstrapv1.Repair{Name: "repairs/" + request.Token, Requester: r.id, Complete: true}
	r.service.change(func() { r.service.repairs = append(r.service.repairs, repair) })
	return &bootstrapv1.ApplyRepairResponse{Repair: repair, Freshness: r.freshness()}, nil
}

func (r *bootstrapReplica) ListRepairs(ctx context.Context, _ *bootstrapv1.ListRepairsRequest) (*bootstrapv1.ListRepairsResponse, error) {
	if err := r.admit(ctx); err != nil {
		return nil, err
	}
	fresh := r.freshness()
	r.service.mu.Lock()
	defer r.service.mu.Unlock()
	return &bootstrapv1.ListRepairsResponse{Repairs: r.service.repairs, Freshness: fresh}, nil
}
