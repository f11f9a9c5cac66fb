package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/pagetoken"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
)

const (
	defaultFindingsPage = 500
	maxFindingsPage     = 5000
	// maxFindingsBytes keeps a page below the default message limit of gRPC clients.
	maxFindingsBytes = 3 << 20
	// bookmarkPeriod is the longest time between two messages of a watch.
	bookmarkPeriod = 30 * time.Second
	// watchPause is the shortest time between two reads of a watch.
	watchPause = 100 * time.Millisecond
)

// Audit needs the term.
func (s *Server) Audit(ctx context.Context, _ *bootstrapv1.AuditRequest) (*bootstrapv1.AuditResponse, error) {
	bound, done, err := s.underTerm(ctx)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	defer done()
	snapshot, err := s.Allocation.Audit(bound)
	if err != nil {
		return nil, s.statusOf(ctx, s.orNotLeading(err))
	}
	return &bootstrapv1.AuditResponse{
		Stores: storesOf(snapshot), Findings: int32(len(snapshot.Current)), Freshness: s.freshness(snapshot.Version),
	}, nil
}

// ListFindings needs the term.
func (s *Server) ListFindings(ctx context.Context, request *bootstrapv1.ListFindingsRequest) (*bootstrapv1.ListFindingsResponse, error) {
	snapshot, err := s.snapshot()
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	list := listArguments{code: int32(request.GetCode()), showEnded: request.GetShowEnded()}
	after, ok := parsePageToken(list, request.GetPageToken())
	if !ok {
		return nil, s.statusOf(ctx, pagetoken.ErrInvalid)
	}
	size := cmp.Or(min(int(request.GetPageSize()), maxFindingsPage), defaultFindingsPage)
	response := &bootstrapv1.ListFindingsResponse{Freshness: s.freshness(snapshot.Version)}
	bytes, last := 0, position{}
	for _, finding := range selectFindings(snapshot, list) {
		if comparePositions(positionOf(finding), after) <= 0 {
			continue
		}
		converted := findingOf(finding, snapshot.CompareTime, s.ReplicaID)
		bytes += proto.Size(converted)
		if n := len(response.Findings); n == size || n > 0 && bytes > maxFindingsBytes {
			response.NextPageToken = pageToken(list, last)
			break
		}
		response.Findings, last = append(response.Findings, converted), positionOf(finding)
	}
	return response, nil
}

func selectFindings(snapshot *allocationcontroller.Snapshot, list listArguments) []allocation.Finding {
	findings := slices.Clone(snapshot.Current)
	if list.showEnded {
		findings = append(findings, snapshot.Ended...)
		slices.SortStableFunc(findings, func(a, b allocation.Finding) int { return comparePositions(positionOf(a), positionOf(b)) })
	}
	if list.code == 0 {
		return findings
	}
	return slices.DeleteFunc(findings, func(f allocation.Finding) bool { return int32(f.Code) != list.code })
}

// WatchFindings sends the open findings, a bookmark, and then changes. It needs the term.
func (s *Server) WatchFindings(_ *bootstrapv1.WatchFindingsRequest, stream grpc.ServerStreamingServer[bootstrapv1.WatchFindingsResponse]) error {
	w := &findingsWatch{server: s, stream: stream, sent: map[string]allocation.Finding{}}
	return s.statusOf(stream.Context(), w.run())
}

// findingsWatch is one WatchFindings call.
type findingsWatch struct {
	server *Server
	stream grpc.ServerStreamingServer[bootstrapv1.WatchFindingsResponse]
	// sent are the findings that the reader knows, as they were sent last.
	sent map[string]allocation.Finding
}

// run ends with the call, the term or the service. While a send blocks on a slow reader, no
// snapshot is read. The reader then gets the newest state of each finding, and nothing queues up.
func (w *findingsWatch) run() error {
	snapshot, err := w.server.snapshot()
	if err != nil {
		return err
	}
	if _, err := w.sendChanges(snapshot); err != nil {
		return err
	}
	quiet := time.NewTimer(0) // the first bookmark is sent at once
	defer quiet.Stop()
	for {
		if err := w.awaitNewer(snapshot, quiet); err != nil {
			return err
		}
		if snapshot, err = w.server.snapshot(); err != nil {
			return err
		}
		sent, err := w.sendChanges(snapshot)
		if err != nil {
			return err
		}
		if sent {
			quiet.Reset(bookmarkPeriod)
		}
	}
}

// awaitNewer sends bookmarks until there is a newer snapshot, and then waits a little for more
// changes.
func (w *findingsWatch) awaitNewer(snapshot *allocationcontroller.Snapshot, quiet *time.Timer) error {
	ctx := w.stream.Context()
	for {
		select {
		case <-snapshot.Changed:
			select {
			case <-time.After(watchPause):
			case <-ctx.Done():
			}
			return context.Cause(ctx)
		case <-quiet.C:
			quiet.Reset(bookmarkPeriod)
			if err := w.send(bootstrapv1.WatchFindingsResponse_TYPE_BOOKMARK, nil, snapshot); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (w *findingsWatch) sendChanges(snapshot *allocationcontroller.Snapshot) (sent bool, err error) {
	open := make(map[string]struct{}, len(snapshot.Current))
	for _, finding := range snapshot.Current {
		open[finding.Name] = struct{}{}
		before, known := w.sent[finding.Name]
		if known && before.Generation == finding.Generation {
			continue
		}
		eventType := bootstrapv1.WatchFindingsResponse_TYPE_MODIFIED
		if !known {
			eventType = bootstrapv1.WatchFindingsResponse_TYPE_ADDED
		}
		w.sent[finding.Name] = finding
		if err := w.send(eventType, findingOf(finding, snapshot.CompareTime, w.server.ReplicaID), snapshot); err != nil {
			return true, err
		}
		sent = true
	}
	for _, name := range slices.Sorted(maps.Keys(w.sent)) {
		if _, isOpen := open[name]; isOpen {
			continue
		}
		last := w.sent[name]
		delete(w.sent, name)
		if err := w.send(bootstrapv1.WatchFindingsResponse_TYPE_DELETED, w.endOf(last, snapshot), snapshot); err != nil {
			return true, err
		}
		sent = true
	}
	return sent, nil
}

// endOf is the ended state of a finding that is not open any more. If the history does not have it,
// it is returned as it was sent last. A pending finding is then gone; how an open one ended is
// unknown.
func (w *findingsWatch) endOf(last allocation.Finding, snapshot *allocationcontroller.Snapshot) *bootstrapv1.Finding {
	for _, finding := range snapshot.Ended {
		if finding.Name == last.Name && finding.FirstSeen.Equal(last.FirstSeen) { // else it is an earlier one
			return findingOf(finding, snapshot.CompareTime, w.server.ReplicaID)
		}
	}
	ended := findingOf(last, time.Time{}, w.server.ReplicaID)
	ended.EndTime = timeOf(snapshot.CompareTime)
	switch last.State {
	case allocation.StatePending:
		ended.State = bootstrapv1.Finding_STATE_GONE
	default:
		ended.State = bootstrapv1.Finding_STATE_UNSPECIFIED
	}
	return ended
}

func (w *findingsWatch) send(eventType bootstrapv1.WatchFindingsResponse_Type, finding *bootstrapv1.Finding, snapshot *allocationcontroller.Snapshot) error {
	return w.stream.Send(&bootstrapv1.WatchFindingsResponse{
		Type: eventType, Finding: finding, Freshness: w.server.freshness(snapshot.Version),
	})
}

func (s *Server) snapshot() (*allocationcontroller.Snapshot, error) {
	if _, err := s.heldTerm(); err != nil {
		return nil, err
	}
	if s.AllocationDisabled != "" {
		return nil, fmt.Errorf("%w: loop %s is disabled", allocationcontroller.ErrNotSynced, s.AllocationDisabled)
	}
	return s.Allocation.Snapshot()
}

// underTerm returns a context that ends with the term that is held here. It fails until there is a
// snapshot, because requests are not served before.
func (s *Server) underTerm(ctx context.Context) (context.Context, func(), error) {
	if _, err := s.snapshot(); err != nil {
		return nil, nil, err
	}
	held, err := s.heldTerm()
	if err != nil {
		return nil, nil, err
	}
	bound, done := boundByTerm(ctx, held)
	return bound, done, nil
}

// orNotLeading marks an error that came with the end of the term.
func (s *Server) orNotLeading(err error) error {
	if s.Leadership.Term() == nil {
		return errors.Join(errNotLeading, err)
	}
	return err
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

func pageToken(list listArguments, last position) string {
	return pagetoken.Encode(strconv.FormatInt(last.firstSeen.UnixNano(), 10)+"/"+last.name, list.texts()...)
}

// parsePageToken returns the position after which the page begins, and whether the token is one of
// this list. The empty token gives the zero position.
func parsePageToken(list listArguments, token string) (position, bool) {
	if token == "" {
		return position{}, true
	}
	text, err := pagetoken.Parse(token, list.texts()...)
	if err != nil {
		return position{}, false
	}
	nanos, name, _ := strings.Cut(text, "/")
	nanoseconds, err := strconv.ParseInt(nanos, 10, 64)
	if err != nil {
		return position{}, false
	}
	return position{firstSeen: time.Unix(0, nanoseconds), name: name}, true
}

// listArguments are the arguments that select the findings of a list.
type listArguments struct {
	code      int32
	showEnded bool
}

// texts are the arguments as a page token has them.
func (l listArguments) texts() []string {
	return []string{"trivet.bootstrap.v1.ListFindings", strconv.Itoa(int(l.code)), strconv.FormatBool(l.showEnded)}
}
