package watchcache

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// watch is a running call of Serve in a synctest bubble.
type watch struct {
	mu     sync.Mutex
	events []Event[*thing]
	err    error
	cancel context.CancelCauseFunc
	// blocked, if not nil, holds up each send until a value comes.
	blocked chan struct{}
}

var errTestEnded = errors.New("test ended")

func serve(t *testing.T, c *Cache[*thing], request Request[*thing], change ...func(*watch)) *watch {
	t.Helper()
	if request.Method == "" {
		request.Method = "Watch"
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	w := &watch{cancel: cancel}
	for _, f := range change {
		f(w)
	}
	t.Cleanup(func() { cancel(errTestEnded) })
	go func() {
		err := c.Serve(ctx, request, func(e Event[*thing]) error {
			if w.blocked != nil {
				select {
				case <-w.blocked:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, e)
			return nil
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		w.err = err
	}()
	synctest.Wait()
	return w
}

// take returns the events since the last call.
func (w *watch) take() []string {
	return texts(w.takeEvents())
}

func texts(events []Event[*thing]) []string {
	var all []string
	for _, e := range events {
		all = append(all, text(e))
	}
	return all
}

func (w *watch) takeEvents() []Event[*thing] {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	events := w.events
	w.events = nil
	return events
}

// ended returns what Serve has returned.
func (w *watch) ended() error {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *watch) expect(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, w.take()); diff != "" {
		t.Errorf("events differ (-want +got):\n%s", diff)
	}
}

func TestServe_SendsObjectsBookmarkAndChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(0)
		c.Put(th("a", 1), th("b", 1), th("x", 1))
		c.Put(th("a", 2))
		c.Delete(th("x", 1))
		w := serve(t, c, Request[*thing]{})
		w.expect(t, "ADDED a2", "ADDED b1", "BOOKMARK initial")
		c.Put(th("b", 2))
		w.expect(t, "MODIFIED b2")
		c.Put(th("b", 2))
		w.expect(t)
		c.Delete(th("a", 3), th("none", 1))
		w.expect(t, "DELETED a3")
		c.Put(th("a", 4))
		w.expect(t, "ADDED a4")
		c.Replace([]*thing{th("b", 2), th("c", 1), th("a", 5)})
		w.expect(t, "ADDED c1", "MODIFIED a5")
		c.Replace(nil)
		w.expect(t, "DELETED a5", "DELETED b2", "DELETED c1")
	})
}

func TestServe_FilterAddsAndDeletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(0)
		c.Put(th("a", 1), th("b", 2))
		w := serve(t, c, Request[*thing]{Select: even})
		w.expect(t, "ADDED b2", "BOOKMARK initial")
		c.Put(th("a", 2), th("b", 4))
		w.expect(t, "ADDED a2", "MODIFIED b4")
		c.Put(th("a", 3), th("c", 1))
		w.expect(t, "DELETED a3")
		c.Delete(th("a", 3), th("b", 4), th("c", 1))
		w.expect(t, "DELETED b4")
	})
}

func TestServe_TwoFiltersSeeTheirOwnParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(0)
		evens := serve(t, c, Request[*thing]{Select: even})
		odds := serve(t, c, Request[*thing]{Select: func(x *thing) bool { return !even(x) }})
		c.Put(th("a", 1))
		c.Put(th("b", 2))
		evens.expect(t, "BOOKMARK initial", "ADDED b2")
		odds.expect(t, "BOOKMARK initial", "ADDED a1")
		c.Put(th("a", 2))
		evens.expect(t, "ADDED a2")
		odds.expect(t, "DELETED a2")
	})
}

func TestServe_ResumesAfterEachEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(0)
		c.Put(th("a", 1), th("b", 1), th("c", 1))
		c.Put(th("a", 2))
		first := serve(t, c, Request[*thing]{})
		first.cancel(nil)
		events := first.takeEvents()
		c.Put(th("b", 2))
		c.Delete(th("c", 1))
		c.Put(th("d", 1))
		wants := [][]string{
			{"ADDED b2", "ADDED c1", "MODIFIED b2", "DELETED c1", "ADDED d1", "BOOKMARK initial"},
			{"ADDED c1", "MODIFIED b2", "DELETED c1", "ADDED d1", "BOOKMARK initial"},
			{"MODIFIED b2", "DELETED c1", "ADDED d1", "BOOKMARK initial"},
			{"MODIFIED b2", "DELETED c1", "ADDED d1", "BOOKMARK initial"},
		}
		if len(events) != len(wants) {
			t.Fatalf("%d events, want %d", len(events), len(wants))
		}
		for i, want := range wants {
			serve(t, c, Request[*thing]{ResumeToken: events[i].ResumeToken}).expect(t, want...)
		}
	})
}

// A list that is read after its token may have an object that is gone when the watch begins.
func TestServe_ResumesAfterAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(0)
		c.Put(th("a", 2), th("b", 2))
		token, filtered := c.ResumeToken("Watch", ""), c.ResumeToken("Watch", "even")
		c.Put(th("new", 2), th("short", 2))
		c.Put(th("a", 4), th("b", 3), th("new", 3))
		c.Delete(th("short", 2))
		all := serve(t, c, Request[*thing]{ResumeToken: token})
		all.expect(t, "ADDED new3", "ADDED short2", "MODIFIED a4", "MODIFIED b3", "MODIFIED new3", "DELETED short2", "BOOKMARK initial")
		evens := serve(t, c, Request[*thing]{ResumeToken: filtered, Arguments: "even", Select: even})
		evens.expect(t, "DELETED new3", "ADDED short2", "ADDED a4", "DELETED b3", "DELETED short2", "BOOKMARK initial")
		c.Put(th("a", 5), th("b", 5), th("later", 1))
		evens.expect(t, "DELETED a5")
	})
}

func TestServe_RefusesTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, other := newCache(0), newCache(0)
		c.Put(th("a", 1))
		other.Put(th("a", 1))
		for name, request := range map[string]Request[*thing]{
			"of another cache":     {ResumeToken: other.ResumeToken("Watch", "")},
			"of another method":    {ResumeToken: c.ResumeToken("WatchOthers", "")},
			"with other arguments": {ResumeToken: c.ResumeToken("Watch", "even")},
			"that is none":         {ResumeToken: "x"},
			"of the future":        {ResumeToken: c.format("Watch", "").Encode(2, 2, 2)},
			"beyond its walk":      {ResumeToken: c.format("Watch", "").Encode(0, 0, 1)},
		} {
			w := serve(t, c, request)
			if got := w.take(); !errors.Is(w.ended(), ErrExpired) || got != nil {
				t.Errorf("token %s: %v after %v, want ErrExpired", name, w.ended(), got)
			}
		}
	})
}

func TestServe_ForgottenDeletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(2)
		c.Put(th("a", 1), th("b", 1), th("c", 1), th("d", 1))
		token := c.ResumeToken("Watch", "")
		slow := serve(t, c, Request[*thing]{}, func(w *watch) { w.blocked = make(chan struct{}) })
		late := serve(t, c, Request[*thing]{})
		for range 5 {
			slow.blocked <- struct{}{}
		}
		c.Put(th("d", 2))
		synctest.Wait() // the slow reader hangs in its send
		c.Delete(th("a", 1), th("b", 1))
		w := serve(t, c, Request[*thing]{ResumeToken: token})
		w.expect(t, "MODIFIED d2", "DELETED a1", "DELETED b1", "BOOKMARK initial")
		c.Delete(th("c", 1))
		if w := serve(t, c, Request[*thing]{ResumeToken: token}); !errors.Is(w.ended(), ErrExpired) {
			t.Errorf("token from before a forgotten deletion: %v, want ErrExpired", w.ended())
		}
		late.expect(t, "ADDED a1", "ADDED b1", "ADDED c1", "ADDED d1", "BOOKMARK initial", "MODIFIED d2", "DELETED a1", "DELETED b1", "DELETED c1")
		slow.blocked <- struct{}{}
		if err := slow.ended(); !errors.Is(err, ErrTooSlow) || rpcerror.ReasonOf(err) != rpcerror.WatchTooSlowReason {
			t.Errorf("slow reader: %v, want ErrTooSlow", err)
		}
		// What was deleted before the watch began is of no interest to it.
		serve(t, c, Request[*thing]{}).expect(t, "ADDED d2", "BOOKMARK initial")
	})
}

func TestServe_SlowReaderSkipsStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(0)
		c.Put(th("a", 1))
		w := serve(t, c, Request[*thing]{}, func(w *watch) { w.blocked = make(chan struct{}) })
		w.blocked <- struct{}{}
		w.blocked <- struct{}{}
		c.Put(th("a", 2))
		synctest.Wait()
		for version := range 100 {
			c.Put(th("a", 3+version), th("b", version), th("short", version))
			c.Delete(th("short", version))
		}
		synctest.Wait()
		close(w.blocked)
		// The reader hung in the send of a2.
		w.expect(t, "ADDED a1", "BOOKMARK initial", "MODIFIED a2", "ADDED b99", "MODIFIED a102")
	})
}

func TestServe_Bookmarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(0)
		var changed atomic.Pointer[chan struct{}]
		var sources atomic.Pointer[[]*metav1.Source]
		change := func(replicas ...*metav1.Source) {
			before, after := changed.Load(), make(chan struct{})
			sources.Store(&replicas)
			changed.Store(&after)
			if before != nil {
				close(*before)
			}
		}
		change(&metav1.Source{ReplicaId: "r1"})
		w := serve(t, c, Request[*thing]{
			Bookmark:        func() *metav1.Bookmark { return &metav1.Bookmark{Sources: *sources.Load()} },
			BookmarkChanged: func() <-chan struct{} { return *changed.Load() },
		})
		w.expect(t, "BOOKMARK initial")
		time.Sleep(29 * time.Second)
		c.Put(th("a", 1))
		w.expect(t, "ADDED a1")
		time.Sleep(time.Second)
		w.expect(t, "BOOKMARK")
		time.Sleep(time.Minute)
		w.expect(t, "BOOKMARK", "BOOKMARK")
		// A source is put into the cache before its bookmark.
		c.Put(th("b", 1))
		change(&metav1.Source{ReplicaId: "r1"}, &metav1.Source{ReplicaId: "r2"})
		events := w.takeEvents()
		if got := texts(events); !slices.Equal(got, []string{"ADDED b1", "BOOKMARK"}) {
			t.Fatalf("events after a new source: %v", got)
		}
		last := events[1]
		if len(last.Bookmark.GetSources()) != 2 || last.ResumeToken != c.ResumeToken("Watch", "") {
			t.Errorf("bookmark = %v, want both sources and the newest token", last)
		}
	})
}

func TestServe_PausesBetweenSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(0)
		w := serve(t, c, Request[*thing]{Pause: time.Second})
		w.expect(t, "BOOKMARK initial")
		var got []string
		for version := range 30 {
			time.Sleep(100 * time.Millisecond)
			c.Put(th("a", version))
			got = append(got, w.take()...)
		}
		if want := 3; len(got) != want {
			t.Errorf("%d events in 3 s with a pause of 1 s, want %d: %v", len(got), want, got)
		}
	})
}

func TestServe_EndsWithCauseOrErrorOfSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(0)
		w := serve(t, c, Request[*thing]{})
		boom := errors.New("boom")
		w.cancel(boom)
		if err := w.ended(); !errors.Is(err, boom) {
			t.Errorf("Serve() = %v, want the cause %v", err, boom)
		}
		if err := c.Serve(t.Context(), Request[*thing]{}, func(Event[*thing]) error { return boom }); !errors.Is(err, boom) {
			t.Errorf("Serve() = %v, want the error of send", err)
		}
	})
}

func TestPut_SameStateReplacesWhatReadersDoNotCompare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(0)
		w := serve(t, c, Request[*thing]{})
		c.Put(&thing{name: "a", version: 1, age: 1})
		c.Put(&thing{name: "a", version: 1, age: 2})
		w.expect(t, "BOOKMARK initial", "ADDED a1")
		later := serve(t, c, Request[*thing]{})
		if got := later.takeEvents()[0].Item.age; got != 2 {
			t.Errorf("a later reader gets age %d, want 2", got)
		}
	})
}

func TestCache_LogStaysInProportion(t *testing.T) {
	c := newCache(10)
	for i := range 50_000 {
		c.Put(th("a", i), th("b", i), th("c", i))
		if i%3 == 0 {
			c.Delete(th("b", i))
		}
	}
	valid := len(slices.DeleteFunc(slices.Clone(c.log), record[*thing].stale))
	if valid != c.current {
		t.Errorf("%d records are not stale, counted %d", valid, c.current)
	}
	if limit := 2*c.current + minStale; len(c.log) > limit {
		t.Errorf("the log has %d records, want at most %d", len(c.log), limit)
	}
}
