package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/watchcache"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

const defaultRepairsPage, maxRepairsPage = 100, 500

// RepairServer implements trivet.bootstrap.RepairService. It is safe for concurrent use.
type RepairServer struct {
	bootstrapv1.UnimplementedRepairServiceServer
	allocationServer
}

// NewRepairServer returns a server.
func NewRepairServer(cfg AllocationConfig) *RepairServer {
	return &RepairServer{allocationServer: allocationServer{cfg}}
}

// Register adds the RPCs to a gRPC server.
func (s *RepairServer) Register(registrar grpc.ServiceRegistrar) {
	bootstrapv1.RegisterRepairServiceServer(registrar, s)
}

func (s *RepairServer) CreateRepairPlan(ctx context.Context, request *bootstrapv1.CreateRepairPlanRequest) (*bootstrapv1.CreateRepairPlanResponse, error) {
	bound, done, err := s.underTerm(ctx)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	defer done()
	plan, err := s.Allocation.CreatePlan(bound, request.GetFindings(), callerOf(ctx), request.GetValidateOnly())
	if err != nil {
		return nil, s.statusOf(ctx, s.orNotLeading(err))
	}
	return &bootstrapv1.CreateRepairPlanResponse{RepairPlan: s.planOf(plan), Sources: s.fromLeader()}, nil
}

func (s *RepairServer) GetRepairPlan(ctx context.Context, request *bootstrapv1.GetRepairPlanRequest) (*bootstrapv1.GetRepairPlanResponse, error) {
	plan, err := readOne(ctx, s, planID(request.GetName()), s.Allocation.RepairStore.Plan, allocationcontroller.ErrPlanNotFound)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	return &bootstrapv1.GetRepairPlanResponse{RepairPlan: s.planOf(plan), Sources: s.fromEtcd()}, nil
}

func (s *RepairServer) ListRepairPlans(ctx context.Context, request *bootstrapv1.ListRepairPlansRequest) (*bootstrapv1.ListRepairPlansResponse, error) {
	token := newestFirst{list: "trivet.bootstrap.RepairService/ListRepairPlans"}
	after, err := token.parse(request.GetPageToken())
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	plans, err := readAll(ctx, s, s.Allocation.RepairStore.Plans)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	page, last, more := pageOf(plans, repairsPage(request.GetPageSize()),
		func(p repairstore.Plan) bool { return after.before(p.Created, p.ID) }, s.listedPlanOf)
	response := &bootstrapv1.ListRepairPlansResponse{RepairPlans: page, Sources: s.fromEtcd()}
	if more {
		response.NextPageToken = token.format(last.Created, last.ID)
	}
	return response, nil
}

func (s *RepairServer) ApplyRepairPlan(ctx context.Context, request *bootstrapv1.ApplyRepairPlanRequest) (*bootstrapv1.ApplyRepairPlanResponse, error) {
	bound, done, err := s.underTerm(ctx)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	defer done()
	repair, err := s.Allocation.Apply(bound, allocationcontroller.ApplyRequest{
		Plan: planID(request.GetName()), Etag: request.GetEtag(), Caller: callerOf(ctx), ValidateOnly: request.GetValidateOnly(),
	})
	if err != nil {
		return nil, s.statusOf(ctx, s.orNotLeading(err))
	}
	return &bootstrapv1.ApplyRepairPlanResponse{Repair: repairOf(repair), Sources: s.fromLeader()}, nil
}

func (s *RepairServer) GetRepair(ctx context.Context, request *bootstrapv1.GetRepairRequest) (*bootstrapv1.GetRepairResponse, error) {
	repair, err := readOne(ctx, s, repairID(request.GetName()), s.Allocation.RepairStore.Repair, allocationcontroller.ErrRepairNotFound)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	return &bootstrapv1.GetRepairResponse{Repair: repairOf(repair), Sources: s.fromEtcd()}, nil
}

func (s *RepairServer) ListRepairs(ctx context.Context, request *bootstrapv1.ListRepairsRequest) (*bootstrapv1.ListRepairsResponse, error) {
	filter := repairFilter{states: sorted(request.GetStates())}
	token := newestFirst{list: "trivet.bootstrap.RepairService/ListRepairs", arguments: filter.arguments()}
	after, err := token.parse(request.GetPageToken())
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	response := &bootstrapv1.ListRepairsResponse{}
	if request.GetPageToken() == "" {
		reading, cancel := context.WithTimeout(ctx, ReadTimeout)
		defer cancel()
		if err := s.Allocation.Repairs.Ready(reading); err != nil {
			return nil, s.statusOf(ctx, err)
		}
		// Before the read, so that no change is missed.
		response.ResumeToken = s.Allocation.Repairs.Cache().ResumeToken(repairWatch, filter.arguments())
	}
	repairs, err := readAll(ctx, s, s.Allocation.RepairStore.Repairs)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	repairs = slices.DeleteFunc(repairs, func(r repairstore.Repair) bool { return !filter.selects(r) })
	page, last, more := pageOf(repairs, repairsPage(request.GetPageSize()),
		func(r repairstore.Repair) bool { return after.before(r.Started, r.ID) }, listedRepairOf)
	response.Repairs, response.Sources = page, s.fromEtcd()
	if more {
		response.NextPageToken = token.format(last.Started, last.ID)
	}
	return response, nil
}

// repairWatch names the resume tokens of lists and watches of repairs.
const repairWatch = "trivet.bootstrap.RepairService/WatchRepairs"

// WatchRepairs ends with the call or the service.
func (s *RepairServer) WatchRepairs(request *bootstrapv1.WatchRepairsRequest, stream grpc.ServerStreamingServer[bootstrapv1.WatchRepairsResponse]) error {
	return s.statusOf(stream.Context(), s.watch(request, stream))
}

func (s *RepairServer) watch(request *bootstrapv1.WatchRepairsRequest, stream grpc.ServerStreamingServer[bootstrapv1.WatchRepairsResponse]) error {
	if s.isStopping() {
		return errStopping
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer s.endWithService(ctx, cancel)()
	defer cancel(nil)
	reading, stop := context.WithTimeout(ctx, ReadTimeout)
	defer stop()
	repairs, filter := s.Allocation.Repairs, repairFilter{states: sorted(request.GetStates())}
	if err := repairs.Ready(reading); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return repairs.Cache().Serve(ctx, watchcache.Request[repairstore.Repair]{
		Method: repairWatch, Arguments: filter.arguments(), ResumeToken: request.GetResumeToken(), Select: filter.selects,
		Bookmark: s.repairsBookmark, BookmarkChanged: repairs.Changed, Pause: watchPause,
	}, func(event watchcache.Event[repairstore.Repair]) error {
		response := &bootstrapv1.WatchRepairsResponse{Type: event.Type, ResumeToken: event.ResumeToken, Bookmark: event.Bookmark}
		if event.Bookmark == nil {
			response.Repair = listedRepairOf(event.Item)
		}
		return stream.Send(response)
	})
}

// repairsBookmark says that repairs may be out of date while the watch of etcd fails.
func (s *RepairServer) repairsBookmark() *metav1.Bookmark {
	bookmark := &metav1.Bookmark{Sources: s.fromEtcd()}
	if s.Allocation.Repairs.Problem() != nil {
		bookmark.Missing = append(bookmark.Missing, &metav1.MissingPart{
			Service: s.Service, ReplicaId: s.ReplicaID, Code: code.Code_UNAVAILABLE, Message: "etcd does not answer, so the repairs may be out of date",
		})
	}
	return bookmark
}

func (s *RepairServer) CancelRepair(ctx context.Context, request *bootstrapv1.CancelRepairRequest) (*bootstrapv1.CancelRepairResponse, error) {
	bound, done, err := s.underTerm(ctx)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	defer done()
	repair, err := s.Allocation.Cancel(bound, allocationcontroller.CancelRequest{
		ID: repairID(request.GetName()), Etag: request.GetEtag(), Caller: callerOf(ctx), ValidateOnly: request.GetValidateOnly(),
	})
	if err != nil {
		return nil, s.statusOf(ctx, s.orNotLeading(err))
	}
	return &bootstrapv1.CancelRepairResponse{Repair: repairOf(repair), Sources: s.fromLeader()}, nil
}

// readOne reads one stored object on any replica.
func readOne[T any](ctx context.Context, s *RepairServer, id string, read func(context.Context, string) (T, bool, error), missing error) (T, error) {
	var none T
	if s.isStopping() {
		return none, errStopping
	}
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	found, exists, err := read(ctx, id)
	switch {
	case err != nil:
		return none, err
	case !exists:
		return none, fmt.Errorf("%w: %s", missing, id)
	default:
		return found, nil
	}
}

// readAll reads all stored objects of a kind on any replica.
func readAll[T any](ctx context.Context, s *RepairServer, read func(context.Context) ([]T, int, error)) ([]T, error) {
	if s.isStopping() {
		return nil, errStopping
	}
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	found, _, err := read(ctx)
	return found, err
}

func repairsPage(size int32) int { return answer.PageSize(size, defaultRepairsPage, maxRepairsPage) }

// repairFilter selects repairs by state; no state means all.
type repairFilter struct{ states []bootstrapv1.Repair_State }

func (f repairFilter) selects(repair repairstore.Repair) bool {
	return len(f.states) == 0 || slices.Contains(f.states, repairStateOf(repair))
}

func (f repairFilter) arguments() string {
	var states []string
	for _, state := range f.states {
		states = append(states, strconv.Itoa(int(state)))
	}
	return strings.Join(states, ",")
}

// newestFirst makes the page tokens of a list that has the newest objects first.
type newestFirst struct{ list, arguments string }

func (t newestFirst) format(at time.Time, id string) string {
	return pagetoken.Encode(fmt.Sprintf("%d/%s", at.UnixNano(), id), t.list, t.arguments)
}

// after is the last object of a page. The zero value is before all objects.
type after struct {
	at time.Time
	id string
}

func (t newestFirst) parse(token string) (after, error) {
	if token == "" {
		return after{}, nil
	}
	text, err := pagetoken.Parse(token, t.list, t.arguments)
	if err != nil {
		return after{}, err
	}
	at, id, err := parseTimePosition(text)
	return after{at: at, id: id}, err
}

// before reports whether an object comes after the last one of the page.
func (a after) before(at time.Time, id string) bool {
	return a == after{} || cmp.Or(a.at.Compare(at), cmp.Compare(id, a.id)) > 0
}

func planID(name string) string   { return strings.TrimPrefix(name, "repairplans/") }
func repairID(name string) string { return strings.TrimPrefix(name, "repairs/") }

// callerOf returns the caller as repairs record it. It has no name if the server checks no callers.
func callerOf(ctx context.Context) allocation.Caller {
	caller := authn.FromContext(ctx)
	if caller.Unchecked {
		return allocation.Caller{}
	}
	return allocation.Caller{User: caller.User.Name, Groups: caller.User.Groups, Gateway: caller.Gateway}
}
