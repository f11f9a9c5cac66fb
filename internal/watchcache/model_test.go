package watchcache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Readers with and without a filter are slow at random and resume at random tokens while objects
// change at random.
func TestServe_EveryReaderEndsWithTheStateOfTheCache(t *testing.T) {
	for seed := range uint64(150) {
		deletions := 100_000
		if seed%3 == 0 {
			deletions = 1 + int(seed%7)
		}
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runModel(t, seed, deletions) })
		})
	}
}

func runModel(t *testing.T, seed uint64, deletions int) {
	random := rand.New(rand.NewPCG(seed, 1))
	c := newCache(deletions)
	state := map[string]*thing{}
	var readers []*modelReader
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var calm atomic.Bool
	for i := range 8 {
		r := &modelReader{t: t, cache: c, random: rand.New(rand.NewPCG(seed, uint64(i+2))), lasting: deletions > 1000, filter: i%2 == 1, calm: &calm}
		readers = append(readers, r)
		running.Go(func() { r.run(ctx) })
	}
	for version := range 400 {
		changeAtRandom(c, random, state, version)
		if random.IntN(3) == 0 {
			time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
		}
		if random.IntN(40) == 0 {
			readers[random.IntN(len(readers))].list(maps.Clone(state))
		}
	}
	calm.Store(true)
	time.Sleep(time.Hour)
	cancel()
	running.Wait()
	for i, r := range readers {
		want := maps.Clone(state)
		if r.filter {
			maps.DeleteFunc(want, func(_ string, x *thing) bool { return !even(x) })
		}
		if diff := cmp.Diff(want, r.has, cmp.AllowUnexported(thing{})); diff != "" {
			t.Errorf("reader %d differs from the cache (-want +got):\n%s", i, diff)
		}
	}
}

func changeAtRandom(c *Cache[*thing], random *rand.Rand, state map[string]*thing, version int) {
	x := th(string(rune('a'+random.IntN(12))), version)
	switch n := random.IntN(20); {
	case n == 0:
		maps.DeleteFunc(state, func(string, *thing) bool { return random.IntN(3) == 0 })
		state[x.name] = x
		c.Replace(slices.Collect(maps.Values(state)))
	case n < 7:
		if last := state[x.name]; last != nil {
			delete(state, x.name)
			c.Delete(last)
		}
	default:
		state[x.name] = x
		c.Put(x)
	}
}

// modelReader applies the events of its watches and checks each.
type modelReader struct {
	t       *testing.T
	cache   *Cache[*thing]
	random  *rand.Rand
	filter  bool
	calm    *atomic.Bool // no more interruptions
	lasting bool         // no deletion is forgotten
	has     map[string]*thing
	token   string
	// resumed says that the watch has a token, listed that the token was one of a list.
	resumed, listed bool
	initial         bool
	// next is what a list returned after its token was taken.
	mu   sync.Mutex
	next *listed
}

type listed struct {
	token string
	items map[string]*thing
}

var errInterrupted = errors.New("interrupted")

// list makes the reader start again with a list. The token is older than the items.
func (r *modelReader) list(items map[string]*thing) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.filter {
		maps.DeleteFunc(items, func(_ string, x *thing) bool { return !even(x) })
	}
	if r.next == nil {
		r.next = &listed{token: r.cache.ResumeToken("Watch", "")}
	} else {
		r.next.items = items
	}
}

func (r *modelReader) run(ctx context.Context) {
	r.has = map[string]*thing{}
	for ctx.Err() == nil {
		r.takeList()
		request := Request[*thing]{Method: "Watch", ResumeToken: r.token, Pause: time.Duration(r.random.IntN(3)) * time.Second}
		if r.filter {
			request.Select = even
		}
		r.resumed, r.initial = r.token != "", false
		err := r.cache.Serve(ctx, request, r.apply)
		switch {
		case errors.Is(err, ErrExpired), errors.Is(err, ErrTooSlow):
			if r.lasting {
				r.t.Errorf("Serve() = %v, but all deletions are remembered", err)
			}
			r.has, r.token, r.listed = map[string]*thing{}, "", false
		case !errors.Is(err, errInterrupted) && ctx.Err() == nil:
			r.t.Errorf("Serve() = %v", err)
			return
		}
	}
}

func (r *modelReader) takeList() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next != nil && r.next.items != nil {
		r.has, r.token, r.listed, r.next = r.next.items, r.next.token, true, nil
	}
}

// apply checks an event against what the reader has.
func (r *modelReader) apply(e Event[*thing]) error {
	if r.random.IntN(4) == 0 {
		time.Sleep(time.Duration(r.random.IntN(4000)) * time.Millisecond)
	}
	r.token = e.ResumeToken
	if e.Type == bookmark {
		if e.Bookmark.GetInitialEventsEnd() == r.initial {
			r.t.Errorf("bookmark with initial_events_end=%v, the first is %v", !r.initial, !r.initial)
		}
		r.initial = true
		return r.interrupt()
	}
	known := r.has[e.Item.name]
	repeats := r.resumed && (r.filter || r.listed)
	switch {
	case e.Type == added && known != nil && !repeats,
		e.Type == deleted && known == nil && !repeats,
		e.Type == modified && known == nil:
		r.t.Errorf("%s, but the reader has %v", text(e), known)
	case known != nil && known.version > e.Item.version && !r.listed:
		r.t.Errorf("%s after %v", text(e), known)
	case r.filter && e.Type != deleted && !even(e.Item):
		r.t.Errorf("%s is not selected", text(e))
	}
	if e.Type == deleted {
		delete(r.has, e.Item.name)
	} else {
		r.has[e.Item.name] = e.Item
	}
	return r.interrupt()
}

func (r *modelReader) interrupt() error {
	if r.random.IntN(12) == 0 && !r.calm.Load() {
		return errInterrupted
	}
	return nil
}
