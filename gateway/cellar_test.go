package gateway_test

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/status"
	"github.com/trivet-dev/trivet/internal/term"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// cellar is a cluster with findings and apiservers, looked after by any number of fake replicas of bootstrapsvc. Only the holder of
// the term tells of findings; of apiservers, the baseline and repairs all do.
type cellar struct {
	mu         sync.Mutex // guards the rest
	findings   map[string]*bootstrapv1.Finding
	apiservers []*bootstrapv1.APIServer
	baseline   *bootstrapv1.Baseline
	repairs    []*bootstrapv1.Repair
	holder     string // id of the replica that holds the term; empty for nobody
	epoch      int64
	members    map[string]term.Member
	changed    chan struct{} // closed at the next change
}

func newCellar(holder string) *cellar {
	return &cellar{
		findings: map[string]*bootstrapv1.Finding{}, baseline: &bootstrapv1.Baseline{EndpointReconciler: "lease"},
		holder: holder, epoch: 10, members: map[string]term.Member{}, changed: make(chan struct{}),
	}
}

func (c *cellar) change(what func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	what()
	close(c.changed)
	c.changed = make(chan struct{})
}

// find says that something is wrong with a port.
func (c *cellar) find(port string) {
	c.change(func() {
		name := "findings/leaked.node-ports." + port
		c.findings[name] = &bootstrapv1.Finding{
			Name: name, Code: bootstrapv1.Finding_CODE_LEAKED, Store: bootstrapv1.Finding_STORE_NODE_PORTS, Subject: port,
			State: bootstrapv1.Finding_STATE_OPEN, Safe: true,
		}
	})
}

func (c *cellar) mend(port string) {
	c.change(func() { delete(c.findings, "findings/leaked.node-ports."+port) })
}

// elect gives the term to a replica, or to nobody.
func (c *cellar) elect(id string) {
	c.change(func() { c.holder, c.epoch = id, c.epoch+1 })
}

// steward is one replica.
type steward struct {
	bootstrapv1.UnimplementedBootstrapServiceServer

	cellar *cellar
	id     string
	// gone is whether every call fails as if the process were gone, blind whether it cannot reach its kube-apiserver, hung whether it
	// never answers.
	gone, blind, hung atomic.Bool
	calls, watches    atomic.Int64
}

// hire starts a replica on loopback.
func (c *cellar) hire(t testing.TB, id string) (*steward, term.Member) {
	t.Helper()
	one := &steward{cellar: c, id: id}
	member := serve(t, replica("bootstrapsvc", id), func(r grpc.ServiceRegistrar) {
		bootstrapv1.RegisterBootstrapServiceServer(r, one)
		status.New(status.Deps{
			Member: replica("bootstrapsvc", id), Ready: observe.NewChecks(), Terms: one.terms,
			Loops: func() []loop.Status { return nil }, Counts: func() map[string]int64 { return nil },
		}).Register(r)
	})
	c.change(func() { c.members[id] = member })
	return one, member
}

func (s *steward) terms() []term.Holding {
	c := s.cellar
	c.mu.Lock()
	defer c.mu.Unlock()
	return []term.Holding{{ReplicaID: c.holder, Epoch: c.epoch, Here: c.holder == s.id, GRPCAddress: c.members[c.holder].GRPCAddress}}
}

func (s *steward) admit(ctx context.Context) error {
	s.calls.Add(1)
	switch {
	case s.hung.Load():
		<-ctx.Done()
		return ctx.Err()
	case s.gone.Load():
		return rpcerror.ShuttingDown()
	case s.blind.Load():
		return rpcerror.New(codes.Unavailable, "APISERVER_UNREACHABLE", "the kube-apiserver did not answer in time")
	}
	return nil
}

// lead admits calls that only the holder of the term answers.
func (s *steward) lead(ctx context.Context) error {
	if err := s.admit(ctx); err != nil {
		return err
	}
	c := s.cellar
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder != s.id {
		return rpcerror.NotLeader("bootstrapsvc", c.members[c.holder].GRPCAddress)
	}
	return nil
}

func (s *steward) freshness() *statusv1.Freshness {
	s.cellar.mu.Lock()
	defer s.cellar.mu.Unlock()
	fresh := &statusv1.Freshness{ReplicaId: s.id, ReadTime: timestamppb.Now()}
	if s.cellar.holder == s.id {
		fresh.Epoch = s.cellar.epoch
	}
	return fresh
}

func (s *steward) GetBaseline(ctx context.Context, _ *bootstrapv1.GetBaselineRequest) (*bootstrapv1.GetBaselineResponse, error) {
	if err := s.admit(ctx); err != nil {
		return nil, err
	}
	return &bootstrapv1.GetBaselineResponse{Baseline: s.cellar.baseline, Freshness: s.freshness()}, nil
}

func (s *steward) ListAPIServers(ctx context.Context, _ *bootstrapv1.ListAPIServersRequest) (*bootstrapv1.ListAPIServersResponse, error) {
	if err := s.admit(ctx); err != nil {
		return nil, err
	}
	list, _ := s.apiservers()
	return &bootstrapv1.ListAPIServersResponse{Apiservers: list, Freshness: s.freshness()}, nil
}

// apiservers are those there are, and a channel that is closed at the next change.
func (s *steward) apiservers() ([]*bootstrapv1.APIServer, <-chan struct{}) {
	s.cellar.mu.Lock()
	defer s.cellar.mu.Unlock()
	return s.cellar.apiservers, s.cellar.changed
}

func (s *steward) WatchAPIServers(_ *bootstrapv1.WatchAPIServersRequest, wire grpc.ServerStreamingServer[bootstrapv1.WatchAPIServersResponse]) error {
	s.watches.Add(1)
	defer s.watches.Add(-1)
	for {
		if err := s.admit(wire.Context()); err != nil {
			return err
		}
		list, changed := s.apiservers()
		if err := wire.Send(&bootstrapv1.WatchAPIServersResponse{Apiservers: list, Freshness: s.freshness()}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-wire.Context().Done():
			return wire.Context().Err()
		}
	}
}

func (s *steward) ListFindings(ctx context.Context, request *bootstrapv1.ListFindingsRequest) (*bootstrapv1.ListFindingsResponse, error) {
	if err := s.lead(ctx); err != nil {
		return nil, err
	}
	s.cellar.mu.Lock()
	page, next, err := pageOf(s.cellar.findings, request.Code.String(), request.PageToken, cmp.Or(request.PageSize, 500), func(f *bootstrapv1.Finding) bool {
		return request.Code == 0 || f.Code == request.Code
	})
	s.cellar.mu.Unlock()
	return &bootstrapv1.ListFindingsResponse{Findings: page, NextPageToken: next, Freshness: s.freshness()}, err
}

func (s *steward) WatchFindings(_ *bootstrapv1.WatchFindingsRequest, wire grpc.ServerStreamingServer[bootstrapv1.WatchFindingsResponse]) error {
	s.watches.Add(1)
	defer s.watches.Add(-1)
	told := map[string]*bootstrapv1.Finding{}
	send := func(what bootstrapv1.WatchFindingsResponse_Type, finding *bootstrapv1.Finding) error {
		return wire.Send(&bootstrapv1.WatchFindingsResponse{Type: what, Finding: finding, Freshness: s.freshness()})
	}
	for first := true; ; first = false {
		if err := s.lead(wire.Context()); err != nil {
			return err
		}
		s.cellar.mu.Lock()
		now, changed := maps.Clone(s.cellar.findings), s.cellar.changed
		s.cellar.mu.Unlock()
		for _, name := range slices.Sorted(maps.Keys(now)) {
			what := bootstrapv1.WatchFindingsResponse_TYPE_ADDED
			if told[name] != nil {
				what = bootstrapv1.WatchFindingsResponse_TYPE_MODIFIED
			}
			if proto.Equal(told[name], now[name]) {
				continue
			}
			if err := send(what, now[name]); err != nil {
				return err
			}
		}
		for _, name := range slices.Sorted(maps.Keys(told)) {
			if now[name] != nil {
				continue
			}
			ended := proto.CloneOf(told[name])
			ended.State = bootstrapv1.Finding_STATE_REPAIRED
			if err := send(bootstrapv1.WatchFindingsResponse_TYPE_DELETED, ended); err != nil {
				return err
			}
		}
		told = now
		if first {
			if err := send(bootstrapv1.WatchFindingsResponse_TYPE_BOOKMARK, nil); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-wire.Context().Done():
			return wire.Context().Err()
		}
	}
}

func (s *steward) Audit(ctx context.Context, _ *bootstrapv1.AuditRequest) (*bootstrapv1.AuditResponse, error) {
	if err := s.lead(ctx); err != nil {
		return nil, err
	}
	return &bootstrapv1.AuditResponse{
		Stores:   []*bootstrapv1.AuditResponse_StoreAudit{{Store: bootstrapv1.Finding_STORE_NODE_PORTS, Present: true}},
		Findings: int32(len(s.cellar.findings)), Freshness: s.freshness(),
	}, nil
}

func (s *steward) PlanRepair(ctx context.Context, request *bootstrapv1.PlanRepairRequest) (*bootstrapv1.PlanRepairResponse, error) {
	if err := s.lead(ctx); err != nil {
		return nil, err
	}
	s.cellar.mu.Lock()
	defer s.cellar.mu.Unlock()
	names := request.Names
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(s.cellar.findings))
	}
	plan := &bootstrapv1.PlanRepairResponse{
		LeftOmitted: 3, ExpireTime: timestamppb.New(time.Now().Add(10 * time.Minute)), Freshness: &statusv1.Freshness{ReplicaId: s.id},
	}
	for _, name := range names {
		finding := s.cellar.findings[name]
		switch {
		case finding == nil:
			return nil, rpcerror.New(codes.NotFound, "FINDING_NOT_FOUND", name+" is not an open finding")
		case finding.Repair == "" && !finding.Safe:
			plan.Left = append(plan.Left, finding)
		default:
			plan.Steps = append(plan.Steps, stepFor(finding))
		}
	}
	slices.SortStableFunc(plan.Steps, func(a, b *bootstrapv1.RepairStep) int { // what is used is allocated before anything is freed
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
	if change.Verb != statusv1.Change_VERB_CREATE { // which is guarded by that there is none
		step.Version = "48213"
	}
	return step
}

// ApplyRepair records a repair under the name of the token, and mends nothing.
func (s *steward) ApplyRepair(ctx context.Context, request *bootstrapv1.ApplyRepairRequest) (*bootstrapv1.ApplyRepairResponse, error) {
	if err := s.lead(ctx); err != nil {
		return nil, err
	}
	if request.Token == "old" {
		return nil, rpcerror.New(codes.FailedPrecondition, "REPAIR_TOKEN_EXPIRED", "the plan has expired; plan again")
	}
	repair := &bootstrapv1.Repair{Name: "repairs/" + request.Token, Requester: s.id, Complete: true}
	s.cellar.change(func() { s.cellar.repairs = append(s.cellar.repairs, repair) })
	return &bootstrapv1.ApplyRepairResponse{Repair: repair, Freshness: s.freshness()}, nil
}

func (s *steward) ListRepairs(ctx context.Context, _ *bootstrapv1.ListRepairsRequest) (*bootstrapv1.ListRepairsResponse, error) {
	if err := s.admit(ctx); err != nil {
		return nil, err
	}
	fresh := s.freshness()
	s.cellar.mu.Lock()
	defer s.cellar.mu.Unlock()
	return &bootstrapv1.ListRepairsResponse{Repairs: s.cellar.repairs, Freshness: fresh}, nil
}
