package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/watchcache"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
)

// baselinePeriod is how often the baseline is compared while it is watched.
const baselinePeriod = 10 * time.Second

// baselineServer implements BaselineService.
type baselineServer struct {
	bootstrapv1.UnimplementedBaselineServiceServer
	replica

	cache  *watchcache.Cache[*bootstrapv1.Baseline]
	poller *poller
}

func newBaselineServer(r replica) *baselineServer {
	s := &baselineServer{replica: r, cache: watchcache.New(watchcache.Config[*bootstrapv1.Baseline]{
		Name: (*bootstrapv1.Baseline).GetName,
		Same: func(a, b *bootstrapv1.Baseline) bool { return proto.Equal(a, b) },
	})}
	s.poller = newPoller(pollerConfig{replica: r, period: baselinePeriod, read: func(ctx context.Context) error {
		found, err := s.observe(ctx)
		if err == nil {
			s.cache.Put(s.baselineOf(found))
		}
		return err
	}})
	return s
}

func (s *baselineServer) GetBaseline(ctx context.Context, _ *bootstrapv1.GetBaselineRequest) (*bootstrapv1.GetBaselineResponse, error) {
	found, err := s.observe(ctx)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	return &bootstrapv1.GetBaselineResponse{Baseline: s.baselineOf(found), Sources: s.sources(time.Now())}, nil
}

func (s *baselineServer) WatchBaseline(request *bootstrapv1.WatchBaselineRequest, stream grpc.ServerStreamingServer[bootstrapv1.WatchBaselineResponse]) error {
	watch := watchcache.Request[*bootstrapv1.Baseline]{
		Method: bootstrapv1.BaselineService_WatchBaseline_FullMethodName, ResumeToken: request.GetResumeToken(),
	}
	return serveWatch(stream.Context(), s.poller, s.cache, watch, func(e watchcache.Event[*bootstrapv1.Baseline]) error {
		return stream.Send(&bootstrapv1.WatchBaselineResponse{Type: e.Type, Baseline: e.Item, ResumeToken: e.ResumeToken, Bookmark: e.Bookmark})
	})
}

func (s *baselineServer) ReconcileBaseline(ctx context.Context, request *bootstrapv1.ReconcileBaselineRequest) (*bootstrapv1.ReconcileBaselineResponse, error) {
	parts, sources, err := s.reconcile(ctx, request)
	if err != nil {
		return nil, withPlan(s.statusOf(ctx, err), parts)
	}
	return &bootstrapv1.ReconcileBaselineResponse{Plan: planOf(parts), Conditions: conditionsOf(reportsOf(parts)), Sources: sources}, nil
}

// observation is one look at the whole baseline.
type observation struct {
	namespaces baselinecontroller.NamespacesObservation
	service    baselinecontroller.ServiceObservation
	endpoints  apiserverscontroller.EndpointsObservation
}

func (s *baselineServer) observe(ctx context.Context) (observation, error) {
	if s.isStopping() {
		return observation{}, errStopping
	}
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	var found observation
	var err error
	if found.namespaces, err = s.Baseline.ObserveNamespaces(ctx); err != nil {
		return observation{}, err
	}
	if found.service, err = s.Baseline.ObserveService(ctx); err != nil {
		return observation{}, err
	}
	found.endpoints, err = s.APIServers.ObserveEndpoints(ctx)
	return found, err
}

// part is what one loop has to do, or did.
type part struct {
	loop    Loop
	enabled bool // Loop.Enabled when the part was made
	// writes are planned and reports found. tries are the writes that were tried, if reconciled.
	writes, reports []baseline.Change
	tries           []baselinecontroller.Try
	reconciled      bool
}

// partsOf returns the parts in the order in which they are written.
func (s *baselineServer) partsOf(found observation) []*part {
	made := func(loop Loop, changes []baseline.Change) *part {
		return &part{loop: loop, enabled: loop.Enabled(), writes: baseline.Writes(changes), reports: baseline.Reports(changes)}
	}
	return []*part{
		made(s.Namespaces, found.namespaces.Changes),
		made(s.KubernetesService, found.service.Changes),
		made(s.Endpoints, found.endpoints.Plan.Changes),
	}
}

func reportsOf(parts []*part) []baseline.Change {
	var reports []baseline.Change
	for _, p := range parts {
		reports = append(reports, p.reports...)
	}
	return reports
}

// writesOf returns what the enabled loops would write.
func writesOf(parts []*part) []baseline.Change {
	var writes []baseline.Change
	for _, p := range parts {
		if p.enabled {
			writes = append(writes, p.writes...)
		}
	}
	return writes
}

// reconcile returns the parts also with an error, to say what was written before.
func (s *baselineServer) reconcile(ctx context.Context, request *bootstrapv1.ReconcileBaselineRequest) ([]*part, []*metav1.Source, error) {
	held, err := s.heldTerm()
	if err != nil && !request.GetValidateOnly() {
		return nil, nil, err
	}
	found, err := s.observe(ctx)
	if err != nil {
		return nil, nil, err
	}
	parts := s.partsOf(found)
	if etag := request.GetEtag(); etag != "" && etag != baseline.Fingerprint(writesOf(parts)) {
		return nil, nil, baselinecontroller.ErrDrifted
	}
	if request.GetValidateOnly() {
		return parts, s.sources(time.Now()), nil
	}
	err = s.write(ctx, held, parts, request.GetEtag() != "")
	return parts, s.leaderSources(held), err
}

// write has the enabled loops make a pass: for exactly the planned writes, or for whatever is
// missing. It ends at the first failure but for writes that kube-apiserver denies.
func (s *baselineServer) write(ctx context.Context, held *term.Term, parts []*part, exact bool) error {
	ctx, done := boundByTerm(ctx, held)
	defer done()
	for _, p := range parts {
		if !p.enabled {
			continue
		}
		result, err := p.pass(ctx, exact)
		p.tries, p.reconciled = result.Tries, true
		if err == nil {
			p.reports = result.Reports
			continue
		}
		if isDenied(err) {
			continue
		}
		if errors.Is(err, baselinecontroller.ErrDrifted) && slices.ContainsFunc(parts, (*part).hasTried) {
			err = fmt.Errorf("%w: %s", guarded.ErrConflict, err.Error())
		}
		// A pass that the end of the term interrupts fails in many ways. The caller needs that one
		// cause.
		return cmp.Or(held.Check(), err)
	}
	return nil
}

func (p *part) pass(ctx context.Context, exact bool) (baselinecontroller.Result, error) {
	if exact {
		return p.loop.Reconciler.ReconcilePlan(ctx, p.writes)
	}
	return p.loop.Reconciler.Reconcile(ctx)
}

func (p *part) hasTried() bool { return len(p.tries) > 0 }

// isDenied says that writes failed, and that repeating the call does not help.
func isDenied(err error) bool {
	if !errors.Is(err, baselinecontroller.ErrWrite) {
		return false
	}
	for _, other := range []error{
		guarded.ErrConflict, guarded.ErrUnavailable, term.ErrEnded, term.ErrNone, context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, other) {
			return false
		}
	}
	return true
}

// withPlan adds the plan to a status as a detail if something was tried.
func withPlan(err error, parts []*part) error {
	if !slices.ContainsFunc(parts, (*part).hasTried) {
		return err
	}
	plan := planOf(parts)
	for _, change := range plan.GetChanges() {
		change.FieldChanges = nil // a status must fit into trailers
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	detailed, detailErr := st.WithDetails(plan)
	if detailErr != nil {
		return err
	}
	return detailed.Err()
}
