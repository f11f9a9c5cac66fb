package bootstrapsvc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/status"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
)

const (
	defaultFindingsPage = 500
	maxFindingsPage     = 5000
	// maxFindingsBytes keeps a page below what clients take in one message unless told otherwise.
	maxFindingsBytes = 3 << 20
	// bookmarkPeriod is how long a watch may be quiet.
	bookmarkPeriod = 30 * time.Second
	// watchPause is at least between two looks at what changed.
	watchPause = 100 * time.Millisecond
)

// Audit makes a pass now.
func (s *server) Audit(ctx context.Context, _ *bootstrapv1.AuditRequest) (*bootstrapv1.AuditResponse, error) {
	asking, done, err := s.service.underTerm(ctx)
	if err != nil {
		return nil, s.service.statusOf(ctx, err)
	}
	defer done()
	view, err := s.service.audit.Audit(asking)
	if err != nil {
		return nil, s.service.statusOf(ctx, s.service.ended(err))
	}
	return &bootstrapv1.AuditResponse{
		Stores: storesOf(view), Findings: int32(len(view.Current)), Freshness: s.service.viewed(view),
	}, nil
}

// ListFindings returns a page.
func (s *server) ListFindings(ctx context.Context, request *bootstrapv1.ListFindingsRequest) (*bootstrapv1.ListFindingsResponse, error) {
	view, err := s.service.findings()
	if err != nil {
		return nil, s.service.statusOf(ctx, err)
	}
	list := listArguments{code: int32(request.GetCode()), showEnded: request.GetShowEnded()}
	after, ok := parsePageToken(list, request.GetPageToken())
	if !ok {
		return nil, s.service.statusOf(ctx, errPageToken)
	}
	response := &bootstrapv1.ListFindingsResponse{Freshness: s.service.viewed(view)}
	size, bytes, last := pageSize(request.GetPageSize()), 0, position{}
	for _, finding := range listed(view, list) {
		if comparePositions(positionOf(finding), after) <= 0 {
			continue
		}
		converted := findingOf(finding, view.CompareTime, s.service.member.ID)
		bytes += proto.Size(converted)
		if n := len(response.Findings); n == size || n > 0 && bytes > maxFindingsBytes {
			response.NextPageToken = pageToken(list, last)
			break
		}
		response.Findings, last = append(response.Findings, converted), positionOf(finding)
	}
	return response, nil
}

func pageSize(asked int32) int {
	if asked == 0 {
		return defaultFindingsPage
	}
	return min(int(asked), maxFindingsPage)
}

// listed are the findings that a list is about, in its order.
func listed(view *allocationcontroller.Snapshot, list listArguments) []allocation.Finding {
	findings := slices.Clone(view.Current)
	if list.showEnded {
		findings = append(findings, view.Ended...)
		slices.SortStableFunc(findings, func(a, b allocation.Finding) int { return comparePositions(positionOf(a), positionOf(b)) })
	}
	if list.code == 0 {
		return findings
	}
	return slices.DeleteFunc(findings, func(f allocation.Finding) bool { return int32(f.Code) != list.code })
}

// WatchFindings sends all standing findings, a bookmark, and then what changes.
func (s *server) WatchFindings(_ *bootstrapv1.WatchFindingsRequest, wire grpc.ServerStreamingServer[bootstrapv1.WatchFindingsResponse]) error {
	w := &findingsWatcher{service: s.service, wire: wire, told: map[string]allocation.Finding{}}
	return s.service.statusOf(wire.Context(), w.follow())
}

// findingsWatcher is one WatchFindings call.
type findingsWatcher struct {
	service *Service
	wire    grpc.ServerStreamingServer[bootstrapv1.WatchFindingsResponse]
	// told are the findings that the reader knows, each as it was told last.
	told map[string]allocation.Finding
}

// follow ends with the call, the term or the service. What happens while a slow reader is waited for is looked at only after
// it: the reader gets the newest state of each finding, and nothing piles up.
func (w *findingsWatcher) follow() error {
	view, err := w.service.findings()
	if err != nil {
		return err
	}
	if _, err := w.tell(view); err != nil {
		return err
	}
	quiet := time.NewTimer(0) // the first bookmark comes at once
	defer quiet.Stop()
	for {
		if err := w.rest(view, quiet); err != nil {
			return err
		}
		if view, err = w.service.findings(); err != nil {
			return err
		}
		sent, err := w.tell(view)
		if err != nil {
			return err
		}
		if sent {
			quiet.Reset(bookmarkPeriod)
		}
	}
}

// rest waits for a newer view, and then a little for more.
func (w *findingsWatcher) rest(view *allocationcontroller.Snapshot, quiet *time.Timer) error {
	ctx := w.wire.Context()
	for {
		select {
		case <-view.Changed:
			select {
			case <-time.After(watchPause):
			case <-ctx.Done():
			}
			return cause(ctx)
		case <-quiet.C:
			quiet.Reset(bookmarkPeriod)
			if err := w.send(bootstrapv1.WatchFindingsResponse_TYPE_BOOKMARK, nil, view); err != nil {
				return err
			}
		case <-ctx.Done():
			return cause(ctx)
		}
	}
}

// cause tells why a call's context ended, with the server or with the caller; nil if it has not.
func cause(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// tell tells what differs from what the reader knows.
func (w *findingsWatcher) tell(view *allocationcontroller.Snapshot) (sent bool, err error) {
	stands := make(map[string]struct{}, len(view.Current))
	for _, finding := range view.Current {
		stands[finding.Name] = struct{}{}
		before, known := w.told[finding.Name]
		if known && before.Generation == finding.Generation {
			continue
		}
		what := bootstrapv1.WatchFindingsResponse_TYPE_MODIFIED
		if !known {
			what = bootstrapv1.WatchFindingsResponse_TYPE_ADDED
		}
		w.told[finding.Name] = finding
		if err := w.send(what, findingOf(finding, view.CompareTime, w.service.member.ID), view); err != nil {
			return true, err
		}
		sent = true
	}
	for _, name := range slices.Sorted(maps.Keys(w.told)) {
		if _, is := stands[name]; is {
			continue
		}
		last := w.told[name]
		delete(w.told, name)
		if err := w.send(bootstrapv1.WatchFindingsResponse_TYPE_DELETED, w.ended(view, last), view); err != nil {
			return true, err
		}
		sent = true
	}
	return sent, nil
}

// ended is a finding that does not stand any more; if it is not remembered, as it was told last. One that was never sure is not: it
// went away by itself. How another one ended that is not is not known.
func (w *findingsWatcher) ended(view *allocationcontroller.Snapshot, last allocation.Finding) *bootstrapv1.Finding {
	for _, finding := range view.Ended {
		if finding.Name == last.Name && finding.FirstSeen.Equal(last.FirstSeen) { // else it is of an earlier time
			return findingOf(finding, view.CompareTime, w.service.member.ID)
		}
	}
	ended := findingOf(last, time.Time{}, w.service.member.ID)
	ended.EndTime = timeOf(view.CompareTime)
	switch last.State {
	case allocation.StatePending:
		ended.State = bootstrapv1.Finding_STATE_GONE
	default:
		ended.State = bootstrapv1.Finding_STATE_UNSPECIFIED
	}
	return ended
}

func (w *findingsWatcher) send(what bootstrapv1.WatchFindingsResponse_Type, finding *bootstrapv1.Finding, view *allocationcontroller.Snapshot) error {
	return w.wire.Send(&bootstrapv1.WatchFindingsResponse{Type: what, Finding: finding, Freshness: w.service.viewed(view)})
}

// viewed is the freshness of what is made from a view.
func (s *Service) viewed(view *allocationcontroller.Snapshot) *statusv1.Freshness {
	epoch := int64(0)
	if t := s.held.Load(); t != nil {
		epoch = t.Epoch()
	}
	return status.Freshness(s.member.ID, epoch, view.Version)
}

// findings is what is known under the term that is held here.
func (s *Service) findings() (*allocationcontroller.Snapshot, error) {
	switch {
	case s.stopping.Load():
		return nil, errStopping
	case s.held.Load() == nil:
		return nil, errNotLeading
	case !s.isOn(auditLoop):
		return nil, fmt.Errorf("%w: loop %s is switched off", allocationcontroller.ErrNotSynced, auditLoop)
	}
	return s.audit.Snapshot()
}

// underTerm returns a context for what needs the term that is held here; it ends with the term.
func (s *Service) underTerm(ctx context.Context) (context.Context, func(), error) {
	// Until the caches are filled nobody takes requests.
	if _, err := s.findings(); err != nil {
		return nil, nil, err
	}
	t := s.held.Load()
	if t == nil {
		return nil, nil, errNotLeading
	}
	under, done := untilEnd(ctx, t)
	return under, done, nil
}

// ended makes of an error that came with the end of the term the one that concerns the caller.
func (s *Service) ended(err error) error {
	if s.held.Load() == nil {
		return errors.Join(errNotLeading, err)
	}
	return err
}
