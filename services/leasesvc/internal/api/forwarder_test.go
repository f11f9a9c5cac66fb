package api_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/api"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// fakePeer is a peer whose answers the test decides.
type fakePeer struct {
	// answer decides the result of the nth call; nil accepts all beats.
	answer func(ctx context.Context, n int) (rejected int, err error)

	mu      sync.Mutex // guards the fields below
	batches [][]api.AgedBeat
	calls   int
	closed  int
}

func (p *fakePeer) Send(ctx context.Context, beats []api.AgedBeat) (int, error) {
	p.mu.Lock()
	p.calls++
	n := p.calls
	p.mu.Unlock()
	if p.answer != nil {
		if rejected, err := p.answer(ctx, n); err != nil || rejected > 0 {
			return rejected, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	batch := slices.Clone(beats)
	slices.SortFunc(batch, func(a, b api.AgedBeat) int { return cmp.Compare(a.Name, b.Name) })
	p.batches = append(p.batches, batch)
	return 0, nil
}

func (p *fakePeer) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed++
	return nil
}

// takeBatches returns the batches since the last call.
func (p *fakePeer) takeBatches() [][]api.AgedBeat {
	p.mu.Lock()
	defer p.mu.Unlock()
	batches := p.batches
	p.batches = nil
	return batches
}

func (p *fakePeer) closeCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// fixture is a Forwarder that runs until the end of its test.
type fixture struct {
	*api.Forwarder
	t        *testing.T
	registry *prometheus.Registry
	stop     func()
}

// newFixture starts a Forwarder that can dial the given api.
func newFixture(t *testing.T, byAddress map[string]*fakePeer) *fixture {
	t.Helper()
	f := &fixture{t: t, registry: prometheus.NewRegistry()}
	f.Forwarder = api.NewForwarder(api.ForwarderConfig{
		Dial: func(address string) (api.Connection, error) {
			if p := byAddress[address]; p != nil {
				return p, nil
			}
			return nil, errors.New("no such host")
		},
		Metrics: f.registry, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- f.Run(ctx) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(f.stop)
	return f
}

// newBubbleFixture is newFixture inside a synctest bubble: the Forwarder runs when it returns.
func newBubbleFixture(t *testing.T, byAddress map[string]*fakePeer) *fixture {
	t.Helper()
	f := newFixture(t, byAddress)
	synctest.Wait()
	return f
}

// expectMetrics compares all samples that are not zero.
func (f *fixture) expectMetrics(want map[string]float64) {
	f.t.Helper()
	families, err := f.registry.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.Metric {
			name := family.GetName()[len("trivet_lease_forward_"):]
			for _, label := range metric.Label {
				name += " " + label.GetValue()
			}
			if value := metric.GetCounter().GetValue() + metric.GetGauge().GetValue(); value != 0 {
				got[name] = value
			}
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		f.t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

func beatOf(name string, sequence uint64) api.Beat {
	return api.Beat{Class: "node", Name: name, Boot: "1", Sequence: sequence}
}

func beatsOf(n int, sequence uint64) []api.Beat {
	beats := make([]api.Beat, n)
	for i := range beats {
		beats[i] = beatOf(fmt.Sprintf("n%05d", i), sequence)
	}
	return beats
}

// advance lets d pass and waits until all goroutines of the bubble block.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func unavailable() error { return status.Error(codes.Unavailable, "unavailable") }

func TestForwarder_SendsBatchesOfAThousand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakePeer{}
		f := newBubbleFixture(t, map[string]*fakePeer{"b": b})
		if !f.Offer("b", beatsOf(2500, 1)) {
			t.Fatal("not accepted")
		}
		advance(0)
		sizes := []int{}
		for _, batch := range b.takeBatches() {
			sizes = append(sizes, len(batch))
		}
		if diff := gocmp.Diff([]int{1000, 1000, 500}, sizes); diff != "" {
			t.Errorf("sizes (-want +got):\n%s", diff)
		}
		f.expectMetrics(map[string]float64{"offered_total accepted": 2500, "beats_total forwarded": 2500, "peers": 1})
	})
}

func TestForwarder_SendsTheNewestBeatOfAHolderWithItsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakePeer{}
		b.answer = func(_ context.Context, n int) (int, error) {
			if n <= 2 {
				return 0, unavailable()
			}
			return 0, nil
		}
		f := newBubbleFixture(t, map[string]*fakePeer{"b": b})
		f.Offer("b", []api.Beat{beatOf("n1", 1), beatOf("n2", 1)})
		advance(10 * time.Millisecond)
		f.Offer("b", []api.Beat{beatOf("n1", 3), beatOf("n1", 2)})
		begin := time.Now()
		advance(5 * time.Second)
		batches := b.takeBatches()
		if len(batches) != 1 || len(batches[0]) != 2 {
			t.Fatalf("got %v, want one batch of two", batches)
		}
		first, second := batches[0][0], batches[0][1]
		if first.Beat != beatOf("n1", 3) || second.Beat != beatOf("n2", 1) {
			t.Errorf("got %v", batches)
		}
		if second.Age-first.Age != 10*time.Millisecond || first.Age <= 0 || first.Age > time.Since(begin) {
			t.Errorf("ages %v and %v", first.Age, second.Age)
		}
		f.expectMetrics(map[string]float64{"offered_total accepted": 4, "beats_total forwarded": 2, "peers": 1})
	})
}

func TestForwarder_NewBootReplacesTheOldOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakePeer{}
		f := newBubbleFixture(t, map[string]*fakePeer{"b": b})
		next := api.Beat{Class: "node", Name: "n1", Boot: "2", Sequence: 1}
		f.Offer("b", []api.Beat{beatOf("n1", 9), next})
		advance(0)
		want := [][]api.AgedBeat{{{Beat: next}}}
		if diff := gocmp.Diff(want, b.takeBatches()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestForwarder_BeatsOfAnAbsentPeerAreDroppedAfterAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c := &fakePeer{}, &fakePeer{}
		b.answer = func(context.Context, int) (int, error) { return 0, unavailable() }
		f := newBubbleFixture(t, map[string]*fakePeer{"b": b, "c": c})
		f.Offer("b", beatsOf(10, 1))
		advance(59 * time.Second)
		f.Offer("c", beatsOf(1, 1))
		advance(0)
		if got := len(c.takeBatches()); got != 1 {
			t.Errorf("%d batches for a peer that answers, want 1: it must not wait for another peer", got)
		}
		f.expectMetrics(map[string]float64{"offered_total accepted": 11, "beats_total forwarded": 1, "waiting": 10, "peers": 2})
		advance(5 * time.Second)
		f.expectMetrics(map[string]float64{"offered_total accepted": 11, "beats_total forwarded": 1, "beats_total dropped": 10, "peers": 2})
		advance(2 * time.Minute)
		f.expectMetrics(map[string]float64{"offered_total accepted": 11, "beats_total forwarded": 1, "beats_total dropped": 10})
		if b.closeCount() != 1 || c.closeCount() != 1 {
			t.Errorf("connections closed %d and %d times, want once each", b.closeCount(), c.closeCount())
		}
	})
}

func TestForwarder_HangingPeerTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakePeer{}
		b.answer = func(ctx context.Context, n int) (int, error) {
			if n > 1 {
				return 0, nil
			}
			<-ctx.Done()
			return 0, status.FromContextError(ctx.Err()).Err()
		}
		f := newBubbleFixture(t, map[string]*fakePeer{"b": b})
		f.Offer("b", beatsOf(1, 1))
		advance(5 * time.Second)
		batches := b.takeBatches()
		if len(batches) != 1 || batches[0][0].Age < 2*time.Second || batches[0][0].Age > 3*time.Second {
			t.Errorf("got %v, want the beat after one deadline", batches)
		}
	})
}

// A leader that takes a time for each call gets the beats, later. A frozen one gets none, and does
// not hold up another one. A leader that fails after it took the beats gets them again.
func TestForwarder_SlowLeadersGetTheBeats(t *testing.T) {
	taking := func(d time.Duration) func(context.Context, int) (int, error) {
		return func(ctx context.Context, _ int) (int, error) {
			select {
			case <-time.After(d):
				return 0, nil
			case <-ctx.Done():
				return 0, status.FromContextError(ctx.Err()).Err()
			}
		}
	}
	for name, c := range map[string]struct {
		slowness time.Duration
		within   time.Duration
		gets     bool
	}{
		"1 s":    {slowness: time.Second, within: 2 * time.Second, gets: true},
		"3 s":    {slowness: 3 * time.Second, within: 6 * time.Second, gets: true},
		"7 s":    {slowness: 7 * time.Second, within: 15 * time.Second, gets: true},
		"frozen": {slowness: time.Hour, within: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow, other := &fakePeer{answer: taking(c.slowness)}, &fakePeer{}
				f := newBubbleFixture(t, map[string]*fakePeer{"slow": slow, "other": other})
				f.Offer("slow", beatsOf(10, 1))
				f.Offer("other", beatsOf(10, 1))
				advance(time.Second / 2)
				if got := other.takeBatches(); len(got) != 1 || len(got[0]) != 10 {
					t.Errorf("the other leader got %v", got)
				}
				advance(c.within)
				if got := slow.takeBatches(); c.gets != (len(got) == 1 && len(got[0]) == 10) {
					t.Errorf("within %v the leader got %d batches, want its beats: %v", c.within, len(got), c.gets)
				}
			})
		})
	}
}

func TestForwarder_PermanentFailuresAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakePeer{}
		b.answer = func(_ context.Context, n int) (int, error) {
			if n == 1 {
				return 0, status.Error(codes.InvalidArgument, "bad request")
			}
			return 3, nil
		}
		f := newBubbleFixture(t, map[string]*fakePeer{"b": b})
		f.Offer("b", beatsOf(5, 1))
		advance(time.Second)
		f.Offer("b", beatsOf(4, 2))
		advance(0)
		f.expectMetrics(map[string]float64{
			"offered_total accepted": 9, "beats_total dropped": 5, "beats_total forwarded": 1, "beats_total rejected": 3, "peers": 1,
		})
	})
}

func TestForwarder_AcceptsAllOrNothingWithinLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakePeer{}
		b.answer = func(ctx context.Context, _ int) (int, error) {
			<-ctx.Done()
			return 0, unavailable()
		}
		f := newBubbleFixture(t, map[string]*fakePeer{"b": b})
		f.Offer("b", []api.Beat{beatOf("in-flight", 1)})
		advance(0) // the call hangs, so later beats wait
		for _, c := range []struct {
			address string
			n       int
			want    bool
		}{
			{address: "", n: 1}, {address: "b", n: 0}, {address: "b", n: 20_001}, {address: "b", n: 20_000, want: true}, {address: "b", n: 1},
		} {
			if got := f.Offer(c.address, beatsOf(c.n, 1)); got != c.want {
				t.Errorf("offer of %d to %q = %t, want %t", c.n, c.address, got, c.want)
			}
		}
		f.expectMetrics(map[string]float64{"offered_total accepted": 20_001, "offered_total rejected": 20_003, "waiting": 20_000, "peers": 1})
		for i := range 100 {
			f.Offer(fmt.Sprintf("invented-%d", i), beatsOf(1, 1))
		}
		advance(0)
		accepted := 0
		for i := range 100 {
			if f.Offer(fmt.Sprintf("invented-again-%d", i), beatsOf(1, 1)) {
				accepted++
			}
		}
		if accepted > 63 {
			t.Errorf("%d further peers accepted", accepted)
		}
		f.stop()
		if f.Offer("b", beatsOf(1, 1)) {
			t.Error("accepted after the end")
		}
	})
}

// Many goroutines offer beats while the peer fails now and then: no offer blocks, and the newest
// beats arrive.
func TestForwarder_ConcurrentOffersToAFlakyPeer(t *testing.T) {
	b := &fakePeer{answer: func(_ context.Context, n int) (int, error) {
		if n%7 == 0 {
			return 0, unavailable()
		}
		return 0, nil
	}}
	f := newFixture(t, map[string]*fakePeer{"b": b})
	testkit.Eventually(t, time.Minute, func() error {
		if !f.Offer("b", []api.Beat{beatOf("first", 1)}) {
			return errors.New("the forwarder does not run yet")
		}
		return nil
	})
	const streams, messages, holders = 8, 50, 500
	var slowest sync.Map
	var senders sync.WaitGroup
	for s := range streams {
		senders.Go(func() {
			var worst time.Duration
			for m := range messages {
				beats := make([]api.Beat, holders)
				for i := range beats {
					beats[i] = beatOf(fmt.Sprintf("s%d-n%d", s, i), uint64(m+1))
				}
				begin := time.Now()
				f.Offer("b", beats)
				worst = max(worst, time.Since(begin))
			}
			slowest.Store(s, worst)
		})
	}
	senders.Wait()
	slowest.Range(func(stream, worst any) bool {
		if took, ok := worst.(time.Duration); ok && took > 20*time.Second {
			t.Errorf("an offer of stream %v took %v", stream, took)
		}
		return true
	})
	f.awaitLast(b, streams*holders, messages)
}

// awaitLast waits until the peer has received the last beat of each holder.
func (f *fixture) awaitLast(b *fakePeer, holders int, last uint64) {
	f.t.Helper()
	newest := map[string]uint64{}
	testkit.Eventually(f.t, 20*time.Second, func() error {
		for _, batch := range b.takeBatches() {
			if len(batch) > 1000 {
				f.t.Fatalf("a batch of %d", len(batch))
			}
			for _, beat := range batch {
				newest[beat.Name] = max(newest[beat.Name], beat.Sequence)
			}
		}
		arrived := 0
		for _, sequence := range newest {
			if sequence == last {
				arrived++
			}
		}
		if arrived != holders {
			return fmt.Errorf("%d of %d holders arrived with their last beat", arrived, holders)
		}
		return nil
	})
}
