package bootstrapsvc

import (
	"context"
	"crypto/x509"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/timestamppb"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

// PlanRepair says what would be written.
func (s *server) PlanRepair(ctx context.Context, request *bootstrapv1.PlanRepairRequest) (*bootstrapv1.PlanRepairResponse, error) {
	view, err := s.service.findings()
	if err != nil {
		return nil, s.service.statusOf(ctx, err)
	}
	plan, err := s.service.audit.PlanRepair(request.GetNames(), time.Now())
	if err != nil {
		return nil, s.service.statusOf(ctx, err)
	}
	response := &bootstrapv1.PlanRepairResponse{
		Steps: plannedSteps(plan.Steps), Left: findingsOf(plan.Left, view.CompareTime, s.service.member.ID),
		LeftOmitted: int32(plan.Omitted), Token: plan.Token, Freshness: s.service.viewed(view),
	}
	if plan.Token != "" {
		response.ExpireTime = timestamppb.New(plan.ExpireTime)
	}
	return response, nil
}

// ApplyRepair carries out the plan of a token.
func (s *server) ApplyRepair(ctx context.Context, request *bootstrapv1.ApplyRepairRequest) (*bootstrapv1.ApplyRepairResponse, error) {
	asking, done, err := s.service.underTerm(ctx)
	if err != nil {
		return nil, s.service.statusOf(ctx, err)
	}
	defer done()
	repair, err := s.service.audit.ApplyRepair(asking, request.GetToken(), requesterOf(ctx))
	if err != nil {
		return nil, s.service.statusOf(ctx, s.service.ended(err))
	}
	return &bootstrapv1.ApplyRepairResponse{Repair: repairOf(repair), Freshness: s.service.freshness()}, nil
}

// ListRepairs reads the history.
func (s *server) ListRepairs(ctx context.Context, _ *bootstrapv1.ListRepairsRequest) (*bootstrapv1.ListRepairsResponse, error) {
	if s.service.stopping.Load() {
		return nil, s.service.statusOf(ctx, errStopping)
	}
	reading, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	repairs, err := s.service.audit.Repairs(reading)
	if err != nil {
		return nil, s.service.statusOf(ctx, err)
	}
	return &bootstrapv1.ListRepairsResponse{Repairs: repairsOf(repairs), Freshness: s.service.freshness()}, nil
}

// requesterOf is the caller by its certificate. Who has none is on this machine, for others are not let in without.
func requesterOf(ctx context.Context) string {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return "local"
	}
	info, ok := from.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return "local"
	}
	return nameIn(info.State.PeerCertificates[0])
}

func nameIn(certificate *x509.Certificate) string {
	if len(certificate.URIs) > 0 {
		return certificate.URIs[0].String()
	}
	return certificate.Subject.String()
}
