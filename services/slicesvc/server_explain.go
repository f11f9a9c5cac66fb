package slicesvc

import (
	"context"
	"errors"
	"time"

	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// ExplainEndpoint says why a pod is an endpoint of a Service or is not.
func (s *server) ExplainEndpoint(_ context.Context, request *slicev1.ExplainEndpointRequest) (*slicev1.ExplainEndpointResponse, error) {
	if err := s.available(); err != nil {
		return nil, toStatus(err)
	}
	key, ok := parseName(request.GetName())
	if !ok {
		return nil, toStatus(&notFoundError{name: request.GetName()})
	}
	epoch := s.service.epochOf(key)
	freshness := s.freshness(epoch)
	known, err := s.service.engine.Endpoint(key, request.GetPod())
	switch {
	case errors.Is(err, slicecontroller.ErrNoService):
		return nil, toStatus(&notFoundError{name: request.GetName(), seen: freshness})
	case errors.Is(err, slicecontroller.ErrNoPod):
		return nil, toStatus(&podNotFoundError{namespace: key.Namespace, name: request.GetPod(), seen: freshness})
	case err != nil:
		return nil, toStatus(err)
	}
	state, _ := s.service.engine.State(key) // a Service that went meanwhile has no problem with its topology
	chain := explain.Explain(explain.Facts{
		Now: time.Now(), Service: known.Service, Candidate: known.Candidate, Slices: known.Slices,
		Pending: known.Pending, Held: epoch != 0, TopologyProblem: state.TopologyProblem,
	})
	response := &slicev1.ExplainEndpointResponse{
		Included: chain.Included, Settled: chain.Settled, FirstBroken: int32(chain.FirstBroken), Freshness: freshness,
	}
	for i := range chain.Links {
		response.Evidence = append(response.Evidence, convertLink(&chain.Links[i], s.service.member.ID))
	}
	return response, nil
}

func convertLink(link *explain.Link, replica string) *statusv1.Evidence {
	converted := &statusv1.Evidence{
		Code: link.Code, Verdict: convertVerdict(link.Verdict), Finding: valid(link.Finding), Next: valid(link.Next),
		Source: link.Source, ReplicaId: replica, Version: link.Version, ObserveTime: timestamp(link.Time),
	}
	if of := link.Object; of != (explain.Object{}) {
		converted.Object = &statusv1.ObjectReference{ApiVersion: of.APIVersion, Kind: of.Kind, Namespace: of.Namespace, Name: of.Name, Uid: of.UID}
	}
	return converted
}

func convertVerdict(verdict explain.Verdict) statusv1.Evidence_Verdict {
	switch verdict {
	case explain.Good:
		return statusv1.Evidence_VERDICT_GOOD
	case explain.Doubtful:
		return statusv1.Evidence_VERDICT_DOUBTFUL
	case explain.Broken:
		return statusv1.Evidence_VERDICT_BROKEN
	case explain.Absent:
		return statusv1.Evidence_VERDICT_ABSENT
	}
	return statusv1.Evidence_VERDICT_UNSPECIFIED
}
