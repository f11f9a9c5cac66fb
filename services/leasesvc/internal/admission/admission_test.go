package admission_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/admission"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

func at(d time.Duration) monotonic.Instant { return monotonic.Instant(d) }

func TestGate_LetsABurstInAndThenItsRate(t *testing.T) {
	gate := admission.NewGate(100)
	for _, step := range []struct {
		now      time.Duration
		come, in int
	}{
		{come: 150, in: 100},
		{come: 1, in: 0},
		{now: 500 * time.Millisecond, come: 80, in: 50},
		{now: time.Hour, come: 1000, in: 100},
	} {
		if got := gate.Admit(at(step.now), step.come); got != step.in {
			t.Errorf("at %v: %d of %d came in, want %d", step.now, got, step.come, step.in)
		}
	}
}

func TestGate_WhoWaitsGetsATurnOfHisOwn(t *testing.T) {
	gate := admission.NewGate(100)
	for i := range 5 {
		if got, want := gate.Wait(at(time.Second)), time.Duration(i+1)*10*time.Millisecond; got != want {
			t.Errorf("number %d waits %v, want %v", i, got, want)
		}
	}
	if got := gate.Wait(at(time.Hour)); got != 10*time.Millisecond {
		t.Errorf("after the rush: %v, want 10ms", got)
	}
}

func TestGate_NeverLetsMoreInThanBurstAndRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.IntRange(1, 1000).Draw(t, "rate")
		gate := admission.NewGate(rate)
		now, in := time.Duration(0), 0
		for range rapid.IntRange(1, 50).Draw(t, "rounds") {
			now += time.Duration(rapid.IntRange(0, int(2*time.Second)).Draw(t, "pause"))
			in += gate.Admit(at(now), rapid.IntRange(0, 2000).Draw(t, "come"))
			if most := float64(rate) * (1 + now.Seconds()); float64(in) > most+1e-6 {
				t.Fatalf("%d came in within %v at a rate of %d", in, now, rate)
			}
		}
	})
}

func TestMeter_SlowsDownFirstThenRefuses(t *testing.T) {
	meters := admission.NewMeters(10)
	meter := meters.Open("a")
	var fine, slow, refused int
	for range 200 {
		switch meter.Note(0) {
		case admission.Fine:
			fine++
		case admission.Slow:
			slow++
		case admission.TooMuch:
			refused++
		}
	}
	if fine != 10 || slow != 90 || refused != 100 {
		t.Errorf("%d fine, %d slow, %d refused; want 10, 90 and 100", fine, slow, refused)
	}
	if got := meters.Open("b").Note(0); got != admission.Fine {
		t.Errorf("another sender: %v, want Fine", got)
	}
	meters.Close("a", 0)
	if got := meters.Open("a").Note(at(time.Millisecond)); got != admission.TooMuch {
		t.Errorf("with another stream: %v, want TooMuch as before", got)
	}
	if got := meter.Note(at(10 * time.Second)); got != admission.Fine {
		t.Errorf("after a pause: %v, want Fine", got)
	}
}
