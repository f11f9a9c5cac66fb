package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/internal/watchcache"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// watchEvents records the events of a watch as text, without bookmarks.
type watchEvents struct {
	mu     sync.Mutex // guards events
	events []string
}

func (e *watchEvents) add(text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = append(e.events, text)
}

// take returns the events since the last call.
func (e *watchEvents) take() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	events := e.events
	e.events = nil
	return events
}

// serve records the events of a watch until the test ends.
func serve[T any](t *testing.T, cache *watchcache.Cache[T], selects func(T) bool, text func(T) string) *watchEvents {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	recorded, ended := &watchEvents{}, make(chan struct{})
	go func() {
		defer close(ended)
		err := cache.Serve(ctx, watchcache.Request[T]{Method: "test", Select: selects}, func(event watchcache.Event[T]) error {
			if event.Bookmark == nil {
				recorded.add(fmt.Sprintf("%s %s", strings.TrimPrefix(event.Type.String(), "EVENT_TYPE_"), text(event.Item)))
			}
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Serve = %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return recorded
}

func (e *watchEvents) want(t *testing.T, when string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, e.take()); diff != "" {
		t.Errorf("events %s (-want +got):\n%s", when, diff)
	}
}

func findingText(f allocation.Finding) string {
	return strings.TrimSpace(fmt.Sprintf("%s %d %s", strings.TrimPrefix(f.Name, "findings/"), f.State, f.End))
}

func TestSnapshotWatch_AFindingThatEndsHasItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.addService("user", "None", 30001)
		w.putBits(30005)
		cfg := w.config()
		cfg.FindingHistory = 1
		r := w.lead(t, cfg)
		defer r.end()
		time.Sleep(settleTime)
		snapshot, err := r.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		stands := serve(t, snapshot.Watch, func(f allocation.Finding) bool { return f.End == allocation.NotEnded }, findingText)
		ended := serve(t, snapshot.Watch, func(f allocation.Finding) bool { return f.End != allocation.NotEnded }, findingText)
		synctest.Wait()
		const lost, leaked = "not-allocated.node-ports.30001", "leaked.node-ports.30005"
		stands.want(t, "at the start", "ADDED "+leaked+" 1", "ADDED "+lost+" 2")

		w.putBits(30001) // the leak, which is still pending, ends together with the other finding
		time.Sleep(settleTime)
		got := stands.take()
		want := map[string]bool{"DELETED " + leaked + " 1 gone": true, "DELETED " + lost + " 2 gone": true}
		if len(got) != 2 || !want[got[0]] || !want[got[1]] {
			t.Errorf("events at the end of both: %q, want %v", got, want)
		}
		ended.want(t, "of ended findings", "ADDED "+lost+" 2 gone")

		w.addService("other", "10.0.0.7") // its finding replaces the other one in the history
		time.Sleep(settleTime)
		const address = "not-allocated.ip-addresses.10.0.0.7"
		stands.want(t, "of a new finding", "ADDED "+address+" 1", "MODIFIED "+address+" 2")
		if repair, err := r.apply(r.plan(t)); err != nil || repair.State() != repairstore.Succeeded {
			t.Fatalf("repair %+v, %v", repair, err)
		}
		time.Sleep(settleTime)
		stands.want(t, "of the repaired finding", "DELETED not-allocated.ip-addresses.10.0.0.7 2 repaired")
		got = ended.take()
		want = map[string]bool{"DELETED " + lost + " 2 gone": true, "ADDED not-allocated.ip-addresses.10.0.0.7 2 repaired": true}
		if len(got) != 2 || !want[got[0]] || !want[got[1]] {
			t.Errorf("events of the history: %q, want %v", got, want)
		}
	})
}

func TestSnapshotWatch_IgnoringAFindingIsAChange(t *testing.T) {
	t.Parallel()
	inTerm(t, func(t *testing.T, _ *fakeCluster, r *leadership) {
		snapshot, err := r.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		open := serve(t, snapshot.Watch, allocation.Finding.IsOpen, func(f allocation.Finding) string {
			return fmt.Sprintf("%s ignored: %t", f.Name, f.Ignore != nil)
		})
		synctest.Wait()
		if got := open.take(); len(got) != 5 {
			t.Errorf("events at the start: %q, want five", got)
		}
		if _, err := r.Ignore(r.ctx, IgnoreRequest{Finding: missingAddress}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		open.want(t, "of the ignored finding", "DELETED "+missingAddress+" ignored: true")
	})
}

func TestRepairWatch_FollowsRepairsOnEveryReplica(t *testing.T) {
	t.Parallel()
	inTerm(t, func(t *testing.T, w *fakeCluster, r *leadership) {
		follower := New(w.config(), Deps{RepairStore: fakeStore{w}}) // a replica that does not lead
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := follower.Repairs.Ready(short); !errors.Is(err, repairstore.ErrUnavailable) {
			t.Errorf("before the first list: %v, want %v", err, repairstore.ErrUnavailable)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			follower.Repairs.Run(ctx)
		}()
		defer func() {
			stop()
			<-ended
		}()
		if err := follower.Repairs.Ready(t.Context()); err != nil || follower.Repairs.Problem() != nil {
			t.Fatalf("ready: %v, %v", err, follower.Repairs.Problem())
		}
		events := serve(t, follower.Repairs.Cache(), nil, func(repair repairstore.Repair) string { return fmt.Sprint(repair.State()) })
		repair, err := r.apply(r.plan(t, missingAddress))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		got := events.take()
		if len(got) == 0 || got[len(got)-1] != fmt.Sprint("MODIFIED ", repairstore.Succeeded) && got[len(got)-1] != fmt.Sprint("ADDED ", repairstore.Succeeded) {
			t.Errorf("events %q, want the last one to be the end of the repair", got)
		}
		if err := (fakeStore{w}).DeleteRepairs(r.ctx, []string{repair.ID}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		events.want(t, "of a forgotten repair", fmt.Sprint("DELETED ", repairstore.Succeeded))

		changed := follower.Repairs.Changed()
		follower.Repairs.OnError(repairstore.ErrUnavailable)
		select {
		case <-changed:
		default:
			t.Error("readers do not learn that the watch fails")
		}
		if follower.Repairs.Problem() == nil || follower.Repairs.Ready(t.Context()) != nil {
			t.Errorf("after a failure: %v, %v, want a problem and old repairs", follower.Repairs.Problem(), follower.Repairs.Ready(t.Context()))
		}
	})
}
