package api

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/leader"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

const (
	// termKey is the key under which the holder of the one term of bootstrapsvc is remembered.
	termKey = "term"
	// applyTimeout is how long a replica has to apply a plan, step by step.
	applyTimeout = time.Minute
)

// bootstrapServer handles BootstrapService. Only the holder of the term has findings and repairs
// them; everything else each replica reads from the cluster.
type bootstrapServer struct {
	gatewayv1.UnimplementedBootstrapServiceServer

	*service
	slowRouter  *leader.Router // for calls that read or write the cluster
	applyRouter *leader.Router // for ApplyRepair
	findings    *fanin.Hub[*bootstrapv1.Finding]
	apiservers  *fanin.Hub[*bootstrapv1.WatchAPIServersResponse]
}

func newBootstrapServer(cfg Config) *bootstrapServer {
	s := &bootstrapServer{service: newService(cfg, "bootstrapsvc")}
	s.slowRouter, s.applyRouter = s.router.WithTimeout(workFactor*cfg.Timeout), s.router.WithTimeout(applyTimeout)
	s.findings = fanin.NewHub(fanin.Config[*bootstrapv1.Finding]{
		Sources: s.termHolder, Open: s.openFindings, SilenceTimeout: cfg.Timeout,
		View: merge.ViewConfig[*bootstrapv1.Finding]{
			Ownership: merge.Exclusive, Ended: endedUnseen,
			Key: func(finding *bootstrapv1.Finding) (string, int64) { return finding.GetName(), 0 },
		},
	})
	s.apiservers = fanin.NewHub(fanin.Config[*bootstrapv1.WatchAPIServersResponse]{
		Sources: s.termHolder, Open: s.openAPIServers, SilenceTimeout: cfg.Timeout,
		View: merge.ViewConfig[*bootstrapv1.WatchAPIServersResponse]{
			Ownership: merge.Exclusive,
			Key:       func(*bootstrapv1.WatchAPIServersResponse) (string, int64) { return "apiservers", 0 }, // the list is one item
		},
	})
	return s
}

func (s *bootstrapServer) GetBaseline(ctx context.Context, _ *gatewayv1.GetBaselineRequest) (*gatewayv1.GetBaselineResponse, error) {
	answer, err := askAny(ctx, s.service, s.slowRouter, termKey, rpc(
		bootstrapv1.NewBootstrapServiceClient, bootstrapv1.BootstrapServiceClient.GetBaseline, &bootstrapv1.GetBaselineRequest{}))
	if err != nil {
		return nil, err
	}
	return &gatewayv1.GetBaselineResponse{Baseline: answer.Baseline, Freshness: answer.Freshness}, nil
}

func (s *bootstrapServer) ListAPIServers(ctx context.Context, _ *gatewayv1.ListAPIServersRequest) (*gatewayv1.ListAPIServersResponse, error) {
	answer, err := askAny(ctx, s.service, s.router, termKey, rpc(
		bootstrapv1.NewBootstrapServiceClient, bootstrapv1.BootstrapServiceClient.ListAPIServers, &bootstrapv1.ListAPIServersRequest{}))
	if err != nil {
		return nil, err
	}
	return &gatewayv1.ListAPIServersResponse{Apiservers: answer.Apiservers, Freshness: answer.Freshness}, nil
}

func (s *bootstrapServer) ListRepairs(ctx context.Context, _ *gatewayv1.ListRepairsRequest) (*gatewayv1.ListRepairsResponse, error) {
	answer, err := askAny(ctx, s.service, s.router, termKey, rpc(
		bootstrapv1.NewBootstrapServiceClient, bootstrapv1.BootstrapServiceClient.ListRepairs, &bootstrapv1.ListRepairsRequest{}))
	if err != nil {
		return nil, err
	}
	return &gatewayv1.ListRepairsResponse{Repairs: answer.Repairs, Freshness: answer.Freshness}, nil
}

func (s *bootstrapServer) ListFindings(ctx context.Context, request *gatewayv1.ListFindingsRequest) (*gatewayv1.ListFindingsResponse, error) {
	answer, err := askHolder(ctx, s.service, s.router, termKey, rpc(
		bootstrapv1.NewBootstrapServiceClient, bootstrapv1.BootstrapServiceClient.ListFindings, &bootstrapv1.ListFindingsRequest{
			Code: request.Code, ShowEnded: request.ShowEnded, PageSize: request.PageSize, PageToken: request.PageToken,
		}))
	if err != nil {
		return nil, err
	}
	return &gatewayv1.ListFindingsResponse{Findings: answer.Findings, NextPageToken: answer.NextPageToken, Freshness: answer.Freshness}, nil
}

func (s *bootstrapServer) Audit(ctx context.Context, _ *gatewayv1.AuditRequest) (*gatewayv1.AuditResponse, error) {
	answer, err := askHolder(ctx, s.service, s.slowRouter, termKey, rpc(
		bootstrapv1.NewBootstrapServiceClient, bootstrapv1.BootstrapServiceClient.Audit, &bootstrapv1.AuditRequest{}))
	if err != nil {
		return nil, err
	}
	return &gatewayv1.AuditResponse{Stores: answer.Stores, Findings: answer.Findings, Freshness: answer.Freshness}, nil
}

func (s *bootstrapServer) PlanRepair(ctx context.Context, request *gatewayv1.PlanRepairRequest) (*gatewayv1.PlanRepairResponse, error) {
	answer, err := askHolder(ctx, s.service, s.slowRouter, termKey, rpc(
		bootstrapv1.NewBootstrapServiceClient, bootstrapv1.BootstrapServiceClient.PlanRepair, &bootstrapv1.PlanRepairRequest{Names: request.Names}))
	if err != nil {
		return nil, err
	}
	return &gatewayv1.PlanRepairResponse{
		Steps: answer.Steps, Left: answer.Left, LeftOmitted: answer.LeftOmitted, Token: answer.Token, ExpireTime: answer.ExpireTime,
		Freshness: answer.Freshness,
	}, nil
}

// ApplyRepair may reach a second replica if the first one dies. That is safe: a token is applied
// once.
func (s *bootstrapServer) ApplyRepair(ctx context.Context, request *gatewayv1.ApplyRepairRequest) (*gatewayv1.ApplyRepairResponse, error) {
	answer, err := askHolder(ctx, s.service, s.applyRouter, termKey, rpc(
		bootstrapv1.NewBootstrapServiceClient, bootstrapv1.BootstrapServiceClient.ApplyRepair, &bootstrapv1.ApplyRepairRequest{Token: request.Token}))
	if err != nil {
		return nil, err
	}
	return &gatewayv1.ApplyRepairResponse{Repair: answer.Repair, Freshness: answer.Freshness}, nil
}

func (s *bootstrapServer) WatchFindings(_ *gatewayv1.WatchFindingsRequest, wire grpc.ServerStreamingServer[gatewayv1.WatchFindingsResponse]) error {
	reader := s.findings.Join(all)
	defer reader.Close()
	return forward(wire.Context(), reader, s.termFailed, func(kind int32, finding *bootstrapv1.Finding, missing []fanout.Failure) error {
		response := &gatewayv1.WatchFindingsResponse{Type: bootstrapv1.WatchFindingsResponse_Type(kind), Finding: finding}
		if len(missing) > 0 {
			response.Missing = s.termSources(missing[0].Err)
		}
		return wire.Send(response)
	})
}

// WatchAPIServers ends when no replica can be asked. Each message is the whole list: a client could
// not tell a current list from an old one.
func (s *bootstrapServer) WatchAPIServers(_ *gatewayv1.WatchAPIServersRequest, wire grpc.ServerStreamingServer[gatewayv1.WatchAPIServersResponse]) error {
	reader := s.apiservers.Join(all)
	defer reader.Close()
	var list *bootstrapv1.WatchAPIServersResponse
	for {
		batch, err := reader.Next(wire.Context())
		var none fanin.NoSourceError
		switch {
		case errors.As(err, &none):
			return s.termFailed(none.Failures)
		case err != nil:
			return watchEnded(err)
		case len(batch.Missing) > 0:
			return s.termFailed(batch.Missing)
		}
		for _, event := range batch.Events {
			list = event.Item
		}
		if err := wire.Send(&gatewayv1.WatchAPIServersResponse{Apiservers: list.GetApiservers(), Freshness: list.GetFreshness()}); err != nil {
			return err
		}
	}
}

func all[T any](T) bool { return true }

// endedUnseen returns a finding that ended while no replica held the term. Why it ended is unknown.
func endedUnseen(finding *bootstrapv1.Finding) *bootstrapv1.Finding {
	finding = proto.CloneOf(finding)
	finding.State = bootstrapv1.Finding_STATE_UNSPECIFIED
	return finding
}

func (s *bootstrapServer) openFindings(ctx context.Context, _ term.Member, _ string) (fanin.Stream[*bootstrapv1.Finding], error) {
	watch := rpc(bootstrapv1.NewBootstrapServiceClient, bootstrapv1.BootstrapServiceClient.WatchFindings, &bootstrapv1.WatchFindingsRequest{})
	return leader.Ask(ctx, s.router, termKey, afterFirst(ctx, stream(watch, func(event *bootstrapv1.WatchFindingsResponse) fanin.Message[*bootstrapv1.Finding] {
		return fanin.Message[*bootstrapv1.Finding]{Kind: kindOf(event.Type), Item: event.Finding}
	})))
}

func (s *bootstrapServer) openAPIServers(ctx context.Context, _ term.Member, _ string) (fanin.Stream[*bootstrapv1.WatchAPIServersResponse], error) {
	watch := rpc(bootstrapv1.NewBootstrapServiceClient, bootstrapv1.BootstrapServiceClient.WatchAPIServers, &bootstrapv1.WatchAPIServersRequest{})
	return leader.AskAny(ctx, s.router, termKey, afterFirst(ctx, stream(watch, func(list *bootstrapv1.WatchAPIServersResponse) fanin.Message[*bootstrapv1.WatchAPIServersResponse] {
		return fanin.Message[*bootstrapv1.WatchAPIServersResponse]{Kind: fanin.PutAll, Item: list}
	})))
}

// termFailed converts the failure of the one source of a watch at the term.
func (s *bootstrapServer) termFailed(failures []fanout.Failure) error {
	err := failures[0].Err
	var unreachable leader.UnreachableError
	switch {
	case errors.As(err, &unreachable):
		return s.noSource(unreachable.Error(), sourceStatuses(unreachable.Failures))
	case rpcerror.ReasonOf(err) != "":
		return err
	}
	return s.noSource(noAnswer, s.termSources(err))
}

// termSources returns the replicas that were asked for the term; at least one, which has no id if
// the holder is unknown.
func (s *bootstrapServer) termSources(err error) []*gatewayv1.SourceStatus {
	var unreachable leader.UnreachableError
	if errors.As(err, &unreachable) && len(unreachable.Failures) > 0 {
		return sourceStatuses(unreachable.Failures)
	}
	return []*gatewayv1.SourceStatus{fanout.Failure{Member: term.Member{Service: s.name, Cluster: s.cluster}, Err: err}.Status()}
}
