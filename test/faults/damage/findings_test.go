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
)

// subject is what a finding is about.
type subject struct {
	code  bootstrapv1.Finding_Code
	store bootstrapv1.Finding_Store
	text  string
}

func (s subject) String() string {
	return fmt.Sprintf("%s of %q in %s", strings.TrimPrefix(s.code.String(), "CODE_"), s.text, strings.TrimPrefix(s.store.String(), "STORE_"))
}

func subjectOf(f *bootstrapv1.Finding) subject {
	return subject{code: f.GetCode(), store: f.GetStore(), text: f.GetSubject()}
}

// diary is what a replica said of findings, from the moment on that it is kept.
type diary struct {
	stop    context.CancelFunc
	writing sync.WaitGroup

	mu     sync.Mutex         // guards what follows
	names  map[string]subject // what findings are about: one that goes while it is pending is told of by its name alone
	now    map[subject]*bootstrapv1.Finding
	opened map[subject]time.Time // when each was first called open
	ended  map[subject]*bootstrapv1.Finding
	marked bool // whether a bookmark came: what was open at the start is known
	errs   []error
}

// keepDiary follows a replica's findings, and begins anew when a watch ends, as anybody should.
func keepDiary(t *testing.T, replica bootstrapv1.BootstrapServiceClient) *diary {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	d := &diary{stop: stop, names: map[string]subject{}, opened: map[subject]time.Time{}, ended: map[subject]*bootstrapv1.Finding{}}
	d.writing.Go(func() {
		for ctx.Err() == nil {
			d.follow(ctx, replica)
			pause(ctx, 100*time.Millisecond)
		}
	})
	t.Cleanup(func() {
		stop()
		d.writing.Wait()
	})
	testkit.Eventually(t, soon, func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.marked {
			return fmt.Errorf("no bookmark yet: %v", d.errs)
		}
		return nil
	})
	return d
}

func (d *diary) follow(ctx context.Context, replica bootstrapv1.BootstrapServiceClient) {
	watch, err := replica.WatchFindings(ctx, &bootstrapv1.WatchFindingsRequest{})
	d.mu.Lock()
	d.now = map[subject]*bootstrapv1.Finding{}
	d.mu.Unlock()
	for err == nil {
		var event *bootstrapv1.WatchFindingsResponse
		if event, err = watch.Recv(); err == nil {
			d.note(event)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.errs = append(d.errs, err)
}

func (d *diary) note(event *bootstrapv1.WatchFindingsResponse) {
	d.mu.Lock()
	defer d.mu.Unlock()
	finding := event.GetFinding()
	if event.GetType() == bootstrapv1.WatchFindingsResponse_TYPE_ADDED {
		d.names[finding.GetName()] = subjectOf(finding)
	}
	about := d.names[finding.GetName()]
	switch event.GetType() {
	case bootstrapv1.WatchFindingsResponse_TYPE_BOOKMARK:
		d.marked = true
	case bootstrapv1.WatchFindingsResponse_TYPE_DELETED:
		delete(d.now, about)
		d.ended[about] = finding
	default:
		d.now[about] = finding
		if _, known := d.opened[about]; !known && finding.GetState() == bootstrapv1.Finding_STATE_OPEN {
			d.opened[about] = time.Now()
		}
	}
}

// sees returns an error unless one of the findings is there, or was.
func (d *diary) sees(any ...subject) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, about := range any {
		if d.now[about] != nil || d.ended[about] != nil {
			return nil
		}
	}
	return fmt.Errorf("nobody found %v; there is %v", any, d.list())
}

// unused are the subjects that are called allocated and used by nobody, sorted.
func (d *diary) unused() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var unused []string
	for about := range d.now {
		if about.code == bootstrapv1.Finding_CODE_LEAKED || about.code == bootstrapv1.Finding_CODE_ORPHAN {
			unused = append(unused, about.text)
		}
	}
	slices.Sort(unused)
	return unused
}

// lacks returns an error while the finding is there.
func (d *diary) lacks(about subject) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if finding, there := d.now[about]; there {
		return fmt.Errorf("still there: %v", finding)
	}
	return nil
}

// of returns the finding as it is now; nil if it is not there.
func (d *diary) of(about subject) *bootstrapv1.Finding {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now[about]
}

// list wants the lock.
func (d *diary) list() []string {
	var names []string
	for about, finding := range d.now {
		names = append(names, fmt.Sprintf("%v (%s)", about, strings.TrimPrefix(finding.GetState().String(), "STATE_")))
	}
	slices.Sort(names)
	return names
}

// falseFindings are those that were ever open and that nobody has planted.
func (d *diary) falseFindings(planted map[subject]bool) []subject {
	d.mu.Lock()
	defer d.mu.Unlock()
	wrong := maps.Clone(d.opened)
	maps.DeleteFunc(wrong, func(about subject, _ time.Time) bool { return planted[about] })
	return slices.SortedFunc(maps.Keys(wrong), func(a, b subject) int { return strings.Compare(a.String(), b.String()) })
}

// open returns an error unless exactly these are open.
func (d *diary) open(want map[subject]bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	got := map[subject]bool{}
	for about, finding := range d.now {
		if finding.GetState() == bootstrapv1.Finding_STATE_OPEN {
			got[about] = true
		}
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("open are %v, want %v", d.list(), slices.Collect(maps.Keys(want)))
	}
	return nil
}
