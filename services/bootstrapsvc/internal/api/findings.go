package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/watchcache"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
)

const (
	defaultFindingsPage = 500
	maxFindingsPage     = 5000
)

// FindingServer implements trivet.bootstrap.FindingService. It is safe for concurrent use.
type FindingServer struct {
	bootstrapv1.UnimplementedFindingServiceServer
	allocationServer
}

// NewFindingServer returns a server.
func NewFindingServer(cfg AllocationConfig) *FindingServer {
	return &FindingServer{allocationServer: allocationServer{cfg}}
}

// Register adds the RPCs to a gRPC server.
func (s *FindingServer) Register(registrar grpc.ServiceRegistrar) {
	bootstrapv1.RegisterFindingServiceServer(registrar, s)
}

func (s *FindingServer) GetFinding(ctx context.Context, request *bootstrapv1.GetFindingRequest) (*bootstrapv1.GetFindingResponse, error) {
	snapshot, finding, err := s.finding(request.GetName())
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	return &bootstrapv1.GetFindingResponse{Finding: s.findingOf(finding, snapshot.CompareTime), Sources: s.fromSnapshot(snapshot)}, nil
}

func (s *FindingServer) ExplainFinding(ctx context.Context, request *bootstrapv1.ExplainFindingRequest) (*bootstrapv1.ExplainFindingResponse, error) {
	snapshot, finding, err := s.finding(request.GetName())
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	response := &bootstrapv1.ExplainFindingResponse{Finding: s.findingOf(finding, snapshot.CompareTime), Sources: s.fromSnapshot(snapshot)}
	for i, evidence := range finding.Evidence {
		if finding.End != allocation.NotEnded {
			evidence.Next = "" // there is nothing left to do
		}
		response.Evidence = append(response.Evidence, evidenceOf(evidence, finding.LastSeen, s.ReplicaID))
		if evidence.Broken && response.BrokenIndex == nil {
			response.BrokenIndex = new(int32(i))
		}
	}
	return response, nil
}

func (s *FindingServer) finding(name string) (*allocationcontroller.Snapshot, allocation.Finding, error) {
	snapshot, err := s.snapshot()
	if err != nil {
		return nil, allocation.Finding{}, err
	}
	finding, ok := snapshot.Finding(name)
	if !ok {
		return nil, allocation.Finding{}, fmt.Errorf("%w: %s", allocationcontroller.ErrFindingNotFound, name)
	}
	return snapshot, finding, nil
}

func (s *FindingServer) ListFindings(ctx context.Context, request *bootstrapv1.ListFindingsRequest) (*bootstrapv1.ListFindingsResponse, error) {
	filter := newFindingFilter(request.GetCodes(), request.GetStates())
	after, err := filter.parsePageToken(request.GetPageToken())
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	before, err := s.snapshot()
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	resumeToken := before.Watch.ResumeToken(findingWatch, filter.arguments()) // before the read, so that no change is missed
	snapshot, err := s.snapshot()
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	response := &bootstrapv1.ListFindingsResponse{Sources: s.fromSnapshot(snapshot)}
	size := answer.PageSize(request.GetPageSize(), defaultFindingsPage, maxFindingsPage)
	page, last, more := pageOf(filter.selectFrom(snapshot), size,
		func(f allocation.Finding) bool { return comparePositions(positionOf(f), after) > 0 },
		func(f allocation.Finding) *bootstrapv1.Finding { return s.findingOf(f, snapshot.CompareTime) })
	response.Findings = page
	if more {
		response.NextPageToken = filter.pageToken(positionOf(last))
	}
	if request.GetPageToken() == "" && before.Watch == snapshot.Watch {
		response.ResumeToken = resumeToken
	}
	return response, nil
}

// findingWatch names the resume tokens of lists and watches of findings.
const findingWatch = "trivet.bootstrap.FindingService/WatchFindings"

// WatchFindings ends with the call, the term or the service.
func (s *FindingServer) WatchFindings(request *bootstrapv1.WatchFindingsRequest, stream grpc.ServerStreamingServer[bootstrapv1.WatchFindingsResponse]) error {
	return s.statusOf(stream.Context(), s.orNotLeading(s.watch(request, stream)))
}

func (s *FindingServer) watch(request *bootstrapv1.WatchFindingsRequest, stream grpc.ServerStreamingServer[bootstrapv1.WatchFindingsResponse]) error {
	ctx, done, err := s.underTerm(stream.Context())
	if err != nil {
		return err
	}
	defer done()
	snapshot, err := s.snapshot()
	if err != nil {
		return err
	}
	filter := newFindingFilter(request.GetCodes(), request.GetStates())
	return snapshot.Watch.Serve(ctx, watchcache.Request[allocation.Finding]{
		Method: findingWatch, Arguments: filter.arguments(), ResumeToken: request.GetResumeToken(), Select: filter.selects,
		Bookmark: func() *metav1.Bookmark { return &metav1.Bookmark{Sources: s.fromSnapshot(s.newest(snapshot))} },
		Pause:    watchPause,
	}, func(event watchcache.Event[allocation.Finding]) error {
		response := &bootstrapv1.WatchFindingsResponse{Type: event.Type, ResumeToken: event.ResumeToken, Bookmark: event.Bookmark}
		if event.Bookmark == nil {
			response.Finding = s.findingOf(event.Item, s.newest(snapshot).CompareTime)
		}
		return stream.Send(response)
	})
}

// newest returns the newest snapshot, and the given one after the term.
func (s *FindingServer) newest(snapshot *allocationcontroller.Snapshot) *allocationcontroller.Snapshot {
	if newest, err := s.Allocation.Snapshot(); err == nil {
		return newest
	}
	return snapshot
}

func (s *FindingServer) IgnoreFinding(ctx context.Context, request *bootstrapv1.IgnoreFindingRequest) (*bootstrapv1.IgnoreFindingResponse, error) {
	asked := allocationcontroller.IgnoreRequest{
		Finding: request.GetName(), Comment: request.GetComment(), Etag: request.GetEtag(), ValidateOnly: request.GetValidateOnly(),
	}
	if request.GetTtl() != nil {
		asked.TTL = new(request.GetTtl().AsDuration())
	}
	finding, err := s.ignore(ctx, asked)
	if err != nil {
		return nil, err
	}
	return &bootstrapv1.IgnoreFindingResponse{Finding: finding, Sources: s.fromLeader()}, nil
}

func (s *FindingServer) UnignoreFinding(ctx context.Context, request *bootstrapv1.UnignoreFindingRequest) (*bootstrapv1.UnignoreFindingResponse, error) {
	finding, err := s.ignore(ctx, allocationcontroller.IgnoreRequest{
		Finding: request.GetName(), TTL: new(time.Duration(0)), Etag: request.GetEtag(), ValidateOnly: request.GetValidateOnly(),
	})
	if err != nil {
		return nil, err
	}
	return &bootstrapv1.UnignoreFindingResponse{Finding: finding, Sources: s.fromLeader()}, nil
}

// ignore changes the mark of a finding and returns the finding as it is now.
func (s *FindingServer) ignore(ctx context.Context, asked allocationcontroller.IgnoreRequest) (*bootstrapv1.Finding, error) {
	bound, done, err := s.underTerm(ctx)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	defer done()
	asked.Caller = callerOf(ctx)
	finding, err := s.Allocation.Ignore(bound, asked)
	if err != nil {
		return nil, s.statusOf(ctx, s.orNotLeading(err))
	}
	audited := finding.LastSeen
	if snapshot, err := s.snapshot(); err == nil {
		audited = snapshot.CompareTime
	}
	return s.findingOf(finding, audited), nil
}

func (s *FindingServer) AuditAllocations(ctx context.Context, _ *bootstrapv1.AuditAllocationsRequest) (*bootstrapv1.AuditAllocationsResponse, error) {
	bound, done, err := s.underTerm(ctx)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	defer done()
	snapshot, err := s.Allocation.Audit(bound)
	if err != nil {
		return nil, s.statusOf(ctx, s.orNotLeading(err))
	}
	return &bootstrapv1.AuditAllocationsResponse{
		Stores: storesOf(snapshot), FindingCount: int32(len(snapshot.Current)), Sources: s.fromSnapshot(snapshot),
	}, nil
}

// findingFilter selects findings by code and state.
type findingFilter struct {
	// codes are sorted; none means all.
	codes []string
	// states are sorted, and never empty.
	states []bootstrapv1.Finding_State
}

func newFindingFilter(codes []string, states []bootstrapv1.Finding_State) findingFilter {
	if len(states) == 0 {
		states = []bootstrapv1.Finding_State{
			bootstrapv1.Finding_STATE_PENDING, bootstrapv1.Finding_STATE_OPEN, bootstrapv1.Finding_STATE_IGNORED,
		}
	}
	return findingFilter{codes: sorted(codes), states: sorted(states)}
}

// sorted returns the values in order and once each.
func sorted[T cmp.Ordered](values []T) []T {
	return slices.Compact(slices.Sorted(slices.Values(values)))
}

func (f findingFilter) selects(finding allocation.Finding) bool {
	return (len(f.codes) == 0 || slices.Contains(f.codes, finding.Code.APIName())) && slices.Contains(f.states, stateOf(finding))
}

// selectFrom returns the findings of a snapshot in the order of a list.
func (f findingFilter) selectFrom(snapshot *allocationcontroller.Snapshot) []allocation.Finding {
	var selected []allocation.Finding
	for _, findings := range [][]allocation.Finding{snapshot.Current, snapshot.Ended} {
		for _, finding := range findings {
			if f.selects(finding) {
				selected = append(selected, finding)
			}
		}
	}
	slices.SortStableFunc(selected, func(a, b allocation.Finding) int { return comparePositions(positionOf(a), positionOf(b)) })
	return selected
}

// arguments are the filter as tokens have it.
func (f findingFilter) arguments() string {
	var states []string
	for _, state := range f.states {
		states = append(states, strconv.Itoa(int(state)))
	}
	return strings.Join(f.codes, ",") + ";" + strings.Join(states, ",")
}

// position is the place of a finding in a list: by the time of its first observation, then by name.
type position struct {
	firstSeen time.Time
	name      string
}

func positionOf(f allocation.Finding) position {
	return position{firstSeen: f.FirstSeen, name: f.Name}
}

func comparePositions(a, b position) int {
	return cmp.Or(a.firstSeen.Compare(b.firstSeen), cmp.Compare(a.name, b.name))
}

// findingList names the page tokens of ListFindings.
const findingList = "trivet.bootstrap.FindingService/ListFindings"

func (f findingFilter) pageToken(at position) string {
	return pagetoken.Encode(fmt.Sprintf("%d/%s", at.firstSeen.UnixNano(), at.name), findingList, f.arguments())
}

// parsePageToken returns the position of a page token, which must be of this filter.
func (f findingFilter) parsePageToken(token string) (position, error) {
	if token == "" {
		return position{}, nil
	}
	text, err := pagetoken.Parse(token, findingList, f.arguments())
	if err != nil {
		return position{}, err
	}
	at, name, err := parseTimePosition(text)
	return position{firstSeen: at, name: name}, err
}

// parseTimePosition parses nanoseconds and a name with a slash in between.
func parseTimePosition(text string) (time.Time, string, error) {
	nanos, name, _ := strings.Cut(text, "/")
	nanoseconds, err := strconv.ParseInt(nanos, 10, 64)
	if err != nil {
		return time.Time{}, "", pagetoken.ErrInvalid
	}
	return time.Unix(0, nanoseconds), name, nil
}
