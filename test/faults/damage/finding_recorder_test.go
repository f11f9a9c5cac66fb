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

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
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

	mu       sync.Mutex // guards the following fields
	now      map[subject]*bootstrapv1.Finding
	openings []opening
	ended    map[subject]*bootstrapv1.Finding
	synced   bool // whether a bookmark has completed the initial list
	errs     []error
}

// opening records that a finding opened, or was open when a watch began.
type opening struct {
	about subject
	// time is the time at which the recorder received it. firstSeen is the replica's own.
	time, firstSeen time.Time
}

// recordFindings watches a replica's findings, restarts an ended watch, and returns after the
// initial list.
func recordFindings(t *testing.T, replica bootstrapv1.FindingServiceClient) *findingRecorder {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := &findingRecorder{stop: stop, ended: map[subject]*bootstrapv1.Finding{}}
	r.watching.Go(func() {
		for ctx.Err() == nil {
			r.follow(ctx, replica)
			testkit.Pause(ctx, 100*time.Millisecond)
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
		if isOpen(finding) && !isOpen(r.now[about]) {
			r.openings = append(r.openings, opening{about: about, time: time.Now(), firstSeen: finding.GetFirstObserveTime().AsTime()})
		}
		r.now[about] = finding
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

// checkOpenings fails the test for each finding that was ever open, that the test did not inject,
// and that was not true.
func (r *findingRecorder) checkOpenings(t *testing.T, o *observer, expected map[subject]bool) {
	t.Helper()
	o.waitUntilCurrent(t)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, opened := range r.openings {
		if expected[opened.about] {
			continue
		}
		if err := o.checkOpening(opened); err != nil {
			t.Error(err)
		}
	}
}

func isOpen(finding *bootstrapv1.Finding) bool {
	return finding.GetState() == bootstrapv1.Finding_STATE_OPEN
}

// checkOpen returns an error unless exactly these findings are open.
func (r *findingRecorder) checkOpen(want map[subject]bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	got := map[subject]bool{}
	for about, finding := range r.now {
		if isOpen(finding) {
			got[about] = true
		}
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("findings are %v, want open %v", r.list(), slices.Collect(maps.Keys(want)))
	}
	return nil
}
