package bootstrapsvc

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/status"
	"github.com/trivet-dev/trivet/internal/term"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// readTimeout bounds the reads behind an answer, so that a caller without a deadline learns who did not answer.
const readTimeout = 5 * time.Second

var (
	errNotLeading = errors.New("this replica does not lead")
	errStopping   = errors.New("this replica is shutting down")
)

// server answers the RPCs.
type server struct {
	bootstrapv1.UnimplementedBootstrapServiceServer
	service *Service
}

// Register adds the RPCs.
func (s *Service) Register(registrar grpc.ServiceRegistrar) {
	bootstrapv1.RegisterBootstrapServiceServer(registrar, &server{service: s})
}

func (s *server) GetBaseline(ctx context.Context, _ *bootstrapv1.GetBaselineRequest) (*bootstrapv1.GetBaselineResponse, error) {
	found, err := s.service.survey(ctx)
	if err != nil {
		return nil, s.service.statusOf(ctx, err)
	}
	return &bootstrapv1.GetBaselineResponse{Baseline: baselineOf(found), Freshness: s.service.freshness()}, nil
}

func (s *server) ReconcileBaseline(ctx context.Context, request *bootstrapv1.ReconcileBaselineRequest) (*bootstrapv1.ReconcileBaselineResponse, error) {
	reconcile := s.service.reconcile
	if request.GetValidateOnly() {
		reconcile = s.service.plan
	}
	changes, err := reconcile(ctx)
	if err != nil {
		return nil, s.service.statusOf(ctx, err)
	}
	return &bootstrapv1.ReconcileBaselineResponse{
		Changes:   changesOf(changes),
		Applied:   !request.GetValidateOnly(),
		Freshness: s.service.freshness(),
	}, nil
}

// survey is one look at everything.
type survey struct {
	namespaces namespacesSurvey
	service    serviceSurvey
	endpoints  endpointsSurvey
}

// changes are those of all parts, in the order in which they would be written.
func (s survey) changes() []baseline.Change {
	var all []baseline.Change
	all = append(all, s.namespaces.changes...)
	all = append(all, s.service.changes...)
	return append(all, s.endpoints.plan.Changes...)
}

// survey looks at everything; any replica may.
func (s *Service) survey(ctx context.Context) (survey, error) {
	if s.stopping.Load() {
		return survey{}, errStopping
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var found survey
	var err error
	if found.namespaces, err = s.surveyor.namespaces(ctx); err != nil {
		return survey{}, err
	}
	if found.service, err = s.surveyor.service(ctx); err != nil {
		return survey{}, err
	}
	found.endpoints, err = s.surveyor.endpoints(ctx, nil)
	return found, err
}

// plan says what reconcile would do.
func (s *Service) plan(ctx context.Context) ([]baseline.Change, error) {
	found, err := s.survey(ctx)
	return found.changes(), err
}

// reconcile has every duty make a pass now, in the loops' own goroutines and so under the term, and waits for them. A duty
// that --loops switches off is left out.
func (s *Service) reconcile(ctx context.Context) ([]baseline.Change, error) {
	t := s.held.Load()
	switch {
	case s.stopping.Load():
		return nil, errStopping
	case t == nil:
		return nil, errNotLeading
	}
	ctx, done := untilEnd(ctx, t)
	defer done()
	var all []baseline.Change
	for _, part := range []struct {
		loop string
		duty *duty
	}{
		{loop: namespacesLoop, duty: s.namespaces},
		{loop: serviceLoop, duty: s.service},
		{loop: endpointsLoop, duty: s.endpoints},
	} {
		if !s.isOn(part.loop) {
			continue
		}
		changes, err := part.duty.ask(ctx, netip.Addr{})
		if err != nil {
			// A pass that the end of the term cut off fails in many ways; only this one concerns the caller.
			return nil, cmp.Or(t.Check(), err)
		}
		all = append(all, changes...)
	}
	return all, nil
}

func (s *Service) freshness() *statusv1.Freshness {
	epoch := int64(0)
	if t := s.held.Load(); t != nil {
		epoch = t.Epoch()
	}
	return status.Freshness(s.member.ID, epoch, "")
}

// holder is the replica that leads, as far as this one knows.
func (s *Service) holder() term.Holding {
	shards := s.leadership.Status().Shards
	if len(shards) == 0 {
		return term.Holding{}
	}
	return shards[0]
}
