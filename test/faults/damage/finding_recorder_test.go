package damage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/testkit"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// subject identifies a finding by its code, store and subject.
type subject struct {
	code  string
	store bootstrapv1.Store
	text  string
}

func (s subject) String() string {
	return fmt.Sprintf("%s of %q in %s", s.code, s.text, strings.TrimPrefix(s.store.String(), "STORE_"))
}

func subjectOf(f *bootstrapv1.Finding) subject {
	return subject{code: f.GetCode(), store: f.GetStore(), text: f.GetSubject()}
}

// findingRecorder records the findings that a replica reports.
type findingRecorder struct {
	stop     context.CancelFunc
	watching sync.WaitGroup

	mu        sync.Mutex // guards the following fields
	now       map[subject]*bootstrapv1.Finding
	firstOpen map[subject]time.Time // the time at which each finding was open first
	ended     map[subject]*bootstrapv1.Finding
	synced    bool // whether a bookmark has completed the initial list
	errs      []error
}

// recordFindings watches a replica's findings, restarts an ended watch, and returns after the
// initial list.
func recordFindings(t *testing.T, replica bootstrapv1.FindingServiceClient) *findingRecorder {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := &findingRecorder{stop: stop, firstOpen: map[subject]time.Time{}, ended: map[subject]*bootstrapv1.Finding{}}
	r.watching.Go(func() {
		for ctx.Err() == nil {
			r.follow(ctx, replica)
			pause(ctx, 100*time.Millisecond)
		}
	})
	t.Cleanup(func() {
		stop()
		r.watching.Wait()
	})
	testkit.Eventually(t, waitTimeout, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.synced {
			return fmt.Errorf("no bookmark yet: %v", r.errs)
		}
		return nil
	})
	return r
}

func (r *findingRecorder) follow(ctx context.Context, replica bootstrapv1.FindingServiceClient) {
	watch, err := replica.WatchFindings(ctx, &bootstrapv1.WatchFindingsRequest{})
	r.mu.Lock()
	r.now = map[subject]*bootstrapv1.Finding{}
	r.mu.Unlock()
	for err == nil {
		var event *bootstrapv1.WatchFindingsResponse
		if event, err = watch.Recv(); err == nil {
			r.record(event)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

func (r *findingRecorder) record(event *bootstrapv1.WatchFindingsResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	finding := event.GetFinding()
	about := subjectOf(finding)
	switch event.GetType() {
	case metav1.EventType_EVENT_TYPE_BOOKMARK:
		r.synced = true
	case metav1.EventType_EVENT_TYPE_DELETED:
		delete(r.now, about)
		r.ended[about] = finding
	default:
		r.now[about] = finding
		if _, known := r.firstOpen[about]; !known && finding.GetState() == bootstrapv1.Finding_STATE_OPEN {
			r.firstOpen[about] = time.Now()
		}
	}
}

// checkSeen returns an error unless one of the findings exists or has existed.
func (r *findingRecorder) checkSeen(subjects ...subject) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, about := range subjects {
		if r.now[about] != nil || r.ended[about] != nil {
			return nil
		}
	}
	return fmt.Errorf("none of %v was reported; findings are %v", subjects, r.list())
}

// unused returns the sorted subjects of all findings about unused allocations.
func (r *findingRecorder) unused() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var unused []string
	for about := range r.now {
		if about.code == "LEAKED" || about.code == "ORPHAN" {
			unused = append(unused, about.text)
		}
	}
	slices.Sort(unused)
	return unused
}

// checkGone returns an error while the finding exists.
func (r *findingRecorder) checkGone(about subject) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if finding, there := r.now[about]; there {
		return fmt.Errorf("finding still exists: %v", finding)
	}
	return nil
}

// current returns the finding, or nil.
func (r *findingRecorder) current(about subject) *bootstrapv1.Finding {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now[about]
}

// list requires the lock.
func (r *findingRecorder) list() []string {
	var names []string
	for about, finding := range r.now {
		names = append(names, fmt.Sprintf("%v (%s)", about, strings.TrimPrefix(finding.GetState().String(), "STATE_")))
	}
	slices.Sort(names)
	return names
}

// unexpectedFindings returns all findings that were ever open and that the test did not inject.
func (r *findingRecorder) unexpectedFindings(expected map[subject]bool) []subject {
	r.mu.Lock()
	defer r.mu.Unlock()
	wrong := maps.Clone(r.firstOpen)
	maps.DeleteFunc(wrong, func(about subject, _ time.Time) bool { return expected[about] })
	return slices.SortedFunc(maps.Keys(wrong), func(a, b subject) int { return strings.Compare(a.String(), b.String()) })
}

// checkOpen returns an error unless exactly these findings are open.
func (r *findingRecorder) checkOpen(want map[subject]bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	got := map[subject]bool{}
	for about, finding := range r.now {
		if finding.GetState() == bootstrapv1.Finding_STATE_OPEN {
			got[about] = true
		}
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("findings are %v, want open %v", r.list(), slices.Collect(maps.Keys(want)))
	}
	return nil
}
