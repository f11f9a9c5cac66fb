package api

import (
	"context"
	"crypto/x509"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/timestamppb"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// PlanRepair writes nothing. It needs the term.
func (s *Server) PlanRepair(ctx context.Context, request *bootstrapv1.PlanRepairRequest) (*bootstrapv1.PlanRepairResponse, error) {
	snapshot, err := s.snapshot()
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	plan, err := s.Allocation.PlanRepair(request.GetNames(), time.Now())
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	response := &bootstrapv1.PlanRepairResponse{
		LeftOmitted: int32(plan.Omitted), Token: plan.Token, Freshness: s.freshness(snapshot.Version),
	}
	for _, step := range plan.Steps {
		response.Steps = append(response.Steps, stepOf(step, repairstore.StepResult{}))
	}
	for _, finding := range plan.Left {
		response.Left = append(response.Left, findingOf(finding, snapshot.CompareTime, s.ReplicaID))
	}
	if plan.Token != "" {
		response.ExpireTime = timestamppb.New(plan.ExpireTime)
	}
	return response, nil
}

// ApplyRepair needs the term.
func (s *Server) ApplyRepair(ctx context.Context, request *bootstrapv1.ApplyRepairRequest) (*bootstrapv1.ApplyRepairResponse, error) {
	bound, done, err := s.underTerm(ctx)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	defer done()
	repair, err := s.Allocation.ApplyRepair(bound, request.GetToken(), requesterOf(ctx))
	if err != nil {
		return nil, s.statusOf(ctx, s.orNotLeading(err))
	}
	return &bootstrapv1.ApplyRepairResponse{Repair: repairOf(repair), Freshness: s.freshness("")}, nil
}

// ListRepairs answers on any replica.
func (s *Server) ListRepairs(ctx context.Context, _ *bootstrapv1.ListRepairsRequest) (*bootstrapv1.ListRepairsResponse, error) {
	if s.isStopping() {
		return nil, s.statusOf(ctx, errStopping)
	}
	reading, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	repairs, err := s.Allocation.Repairs(reading)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	response := &bootstrapv1.ListRepairsResponse{Freshness: s.freshness("")}
	for _, repair := range repairs {
		response.Repairs = append(response.Repairs, repairOf(repair))
	}
	return response, nil
}

// requesterOf is the name in the caller's client certificate. A client without a certificate is on
// this machine, because the server rejects it elsewhere.
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
