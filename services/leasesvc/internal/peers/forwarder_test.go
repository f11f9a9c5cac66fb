package peers_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/peers"
)

// office is a peer that does what its test says.
type office struct {
	mu      sync.Mutex // guards what follows
	batches [][]peers.Delivery
	calls   int
	closed  int
	// answer decides about a call, the nth; nil accepts all.
	answer func(ctx context.Context, n int) (refused int, err error)
}

func (o *office) Deliver(ctx context.Context, beats []peers.Delivery) (int, error) {
	o.mu.Lock()
	o.calls++
	n, answer := o.calls, o.answer
	o.mu.Unlock()
	if answer != nil {
		if refused, err := answer(ctx, n); err != nil || refused > 0 {
			return refused, err
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	batch := slices.Clone(beats)
	slices.SortFunc(batch, func(a, b peers.Delivery) int { return cmpName(a.Name, b.Name) })
	o.batches = append(o.batches, batch)
	return 0, nil
}

func cmpName(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (o *office) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed++
	return nil
}

// taken returns the batches since the last call.
func (o *office) taken() [][]peers.Delivery {
	o.mu.Lock()
	defer o.mu.Unlock()
	batches := o.batches
	o.batches = nil
	return batches
}

func (o *office) closings() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closed
}

// desk is a Forwarder that runs until the end of its test.
type desk struct {
	*peers.Forwarder
	t        *testing.T
	registry *prometheus.Registry
	stop     func()
}

func open(t *testing.T, offices map[string]*office) *desk {
	t.Helper()
	d := &desk{t: t, registry: prometheus.NewRegistry()}
	metrics, err := peers.NewMetrics(d.registry)
	if err != nil {
		t.Fatal(err)
	}
	d.Forwarder = peers.New(peers.Config{
		Dial: func(address string) (peers.Link, error) {
			if o := offices[address]; o != nil {
				return o, nil
			}
			return nil, errors.New("no such host")
		},
		Metrics: metrics, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- d.Run(ctx) }()
	d.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(d.stop)
	synctest.Wait()
	return d
}

// expectMetrics compares all samples that are not zero.
func (d *desk) expectMetrics(want map[string]float64) {
	d.t.Helper()
	families, err := d.registry.Gather()
	if err != nil {
		d.t.Fatal(err)
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
	if diff := cmp.Diff(want, got); diff != "" {
		d.t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

func beatOf(name string, sequence uint64) peers.Beat {
	return peers.Beat{Class: "node", Name: name, Boot: "1", Sequence: sequence}
}

func beatsOf(n int, sequence uint64) []peers.Beat {
	beats := make([]peers.Beat, n)
	for i := range beats {
		beats[i] = beatOf(fmt.Sprintf("n%05d", i), sequence)
	}
	return beats
}

func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func unavailable() error { return status.Error(codes.Unavailable, "away") }

func TestForwarder_HandsOnAtOnceInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &office{}
		d := open(t, map[string]*office{"b": b})
		if !d.Offer("b", beatsOf(2500, 1)) {
			t.Fatal("not taken")
		}
		after(0)
		sizes := []int{}
		for _, batch := range b.taken() {
			sizes = append(sizes, len(batch))
		}
		if diff := cmp.Diff([]int{1000, 1000, 500}, sizes); diff != "" {
			t.Errorf("sizes (-want +got):\n%s", diff)
		}
		d.expectMetrics(map[string]float64{"offered_total taken": 2500, "beats_total forwarded": 2500, "peers": 1})
	})
}

func TestForwarder_NewestBeatOfAHolderWinsAndSaysItsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &office{}
		b.answer = func(_ context.Context, n int) (int, error) {
			if n <= 2 {
				return 0, unavailable()
			}
			return 0, nil
		}
		d := open(t, map[string]*office{"b": b})
		d.Offer("b", []peers.Beat{beatOf("n1", 1), beatOf("n2", 1)})
		after(10 * time.Millisecond)
		d.Offer("b", []peers.Beat{beatOf("n1", 3), beatOf("n1", 2)})
		begin := time.Now()
		after(5 * time.Second)
		batches := b.taken()
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
		d.expectMetrics(map[string]float64{"offered_total taken": 4, "beats_total forwarded": 2, "peers": 1})
	})
}

func TestForwarder_NewBootTakesThePlaceOfTheOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &office{}
		d := open(t, map[string]*office{"b": b})
		next := peers.Beat{Class: "node", Name: "n1", Boot: "2", Sequence: 1}
		d.Offer("b", []peers.Beat{beatOf("n1", 9), next})
		after(0)
		want := [][]peers.Delivery{{{Beat: next}}}
		if diff := cmp.Diff(want, b.taken()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestForwarder_BeatsOfAnAbsentPeerAreDroppedAfterAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c := &office{}, &office{}
		b.answer = func(context.Context, int) (int, error) { return 0, unavailable() }
		d := open(t, map[string]*office{"b": b, "c": c})
		d.Offer("b", beatsOf(10, 1))
		after(59 * time.Second)
		d.Offer("c", beatsOf(1, 1))
		after(0)
		if got := len(c.taken()); got != 1 {
			t.Errorf("%d batches for a peer that answers, want 1: it must not wait for the other", got)
		}
		d.expectMetrics(map[string]float64{"offered_total taken": 11, "beats_total forwarded": 1, "waiting": 10, "peers": 2})
		after(5 * time.Second)
		d.expectMetrics(map[string]float64{"offered_total taken": 11, "beats_total forwarded": 1, "beats_total dropped": 10, "peers": 2})
		after(2 * time.Minute)
		d.expectMetrics(map[string]float64{"offered_total taken": 11, "beats_total forwarded": 1, "beats_total dropped": 10})
		if b.closings() != 1 || c.closings() != 1 {
			t.Errorf("connections closed %d and %d times, want once each", b.closings(), c.closings())
		}
	})
}

func TestForwarder_PeerThatHangsCostsADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &office{}
		b.answer = func(ctx context.Context, n int) (int, error) {
			if n > 1 {
				return 0, nil
			}
			<-ctx.Done()
			return 0, status.FromContextError(ctx.Err()).Err()
		}
		d := open(t, map[string]*office{"b": b})
		d.Offer("b", beatsOf(1, 1))
		after(5 * time.Second)
		batches := b.taken()
		if len(batches) != 1 || batches[0][0].Age < 2*time.Second || batches[0][0].Age > 3*time.Second {
			t.Errorf("got %v, want the beat after one deadline", batches)
		}
	})
}

func TestForwarder_WhatNoRepetitionCanHelpIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &office{}
		b.answer = func(_ context.Context, n int) (int, error) {
			if n == 1 {
				return 0, status.Error(codes.InvalidArgument, "what is this")
			}
			return 3, nil
		}
		d := open(t, map[string]*office{"b": b})
		d.Offer("b", beatsOf(5, 1))
		after(time.Second)
		d.Offer("b", beatsOf(4, 2))
		after(0)
		d.expectMetrics(map[string]float64{
			"offered_total taken": 9, "beats_total dropped": 5, "beats_total forwarded": 1, "beats_total refused": 3, "peers": 1,
		})
	})
}

func TestForwarder_TakesAllOrNothingAndWithinBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &office{}
		b.answer = func(ctx context.Context, _ int) (int, error) {
			<-ctx.Done()
			return 0, unavailable()
		}
		d := open(t, map[string]*office{"b": b})
		d.Offer("b", []peers.Beat{beatOf("under way", 1)})
		after(0) // the peer hangs with it, so what follows waits
		for _, c := range []struct {
			owner string
			n     int
			want  bool
		}{
			{owner: "", n: 1}, {owner: "b", n: 0}, {owner: "b", n: 20_001}, {owner: "b", n: 20_000, want: true}, {owner: "b", n: 1},
		} {
			if got := d.Offer(c.owner, beatsOf(c.n, 1)); got != c.want {
				t.Errorf("offer of %d to %q = %t, want %t", c.n, c.owner, got, c.want)
			}
		}
		d.expectMetrics(map[string]float64{"offered_total taken": 20_001, "offered_total not_taken": 20_003, "waiting": 20_000, "peers": 1})
		for i := range 100 {
			d.Offer(fmt.Sprintf("made-up-%d", i), beatsOf(1, 1))
		}
		after(0)
		taken := 0
		for i := range 100 {
			if d.Offer(fmt.Sprintf("made-up-again-%d", i), beatsOf(1, 1)) {
				taken++
			}
		}
		if taken > 63 {
			t.Errorf("%d further peers taken", taken)
		}
		d.stop()
		if d.Offer("b", beatsOf(1, 1)) {
			t.Error("taken after the end")
		}
	})
}

// A flood from many goroutines while the peer comes and goes: nothing blocks, memory stays bounded, and every beat is accounted for.
func TestForwarder_SurvivesAFlood(t *testing.T) {
	b := &office{}
	b.answer = func(_ context.Context, n int) (int, error) {
		if n%7 == 0 {
			return 0, unavailable()
		}
		return 0, nil
	}
	d := openPlain(t, b)
	const streams, messages, holders = 8, 50, 500
	var slowest sync.Map
	var senders sync.WaitGroup
	for s := range streams {
		senders.Go(func() {
			var worst time.Duration
			for m := range messages {
				beats := make([]peers.Beat, holders)
				for i := range beats {
					beats[i] = beatOf(fmt.Sprintf("s%d-n%d", s, i), uint64(m+1))
				}
				begin := time.Now()
				d.Offer("b", beats)
				worst = max(worst, time.Since(begin))
			}
			slowest.Store(s, worst)
		})
	}
	senders.Wait()
	slowest.Range(func(stream, worst any) bool {
		if took, ok := worst.(time.Duration); ok && took > 2*time.Second {
			t.Errorf("an offer of stream %v took %v", stream, took)
		}
		return true
	})
	d.awaitLast(t, b, streams*holders, messages)
}
