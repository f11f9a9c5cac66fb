package writeback_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

const (
	tick     = 100 * time.Millisecond
	interval = 5 * time.Second
	grace    = 20 * time.Second
	// latency is how long a write takes at most.
	latency = time.Second
)

// holder is one of the model: what it does, and what its object shows.
type holder struct {
	policy uint8
	// beats is when the next one comes; it stops while mute.
	beats monotonic.Instant
	mute  bool
	last  monotonic.Instant
	// expired is what its session is.
	expired bool

	flight    *writeback.Write
	lands     monotonic.Instant
	object    writeback.Write // the last that landed
	written   bool
	unwritten monotonic.Instant // since when its object does not say what is the matter with it
}

// world runs a Book beside the naive model of it: one goroutine's worth of ticks, with all that can happen to holders and writes.
type world struct {
	t        *rapid.T
	now      monotonic.Instant
	book     *writeback.Schedule
	holders  []holder
	budget   int
	failures int // of a hundred writes
	writes   int
}

func (w *world) chance(of100 int, label string) bool {
	return rapid.IntRange(0, 99).Draw(w.t, label) < of100
}

func newWorld(t *rapid.T, holders, budget, failures int) *world {
	w := &world{t: t, book: writeback.NewSchedule(policies), budget: budget, failures: failures}
	for i := range holders {
		h := holder{policy: uint8(i % len(policies)), beats: w.now.Add(interval), last: w.now}
		w.holders = append(w.holders, h)
		w.book.Open(w.now, uint32(i), writeback.SlotOptions{Policy: h.policy, Phase: writeback.Phase(nodeName(i))})
	}
	return w
}

// run lets time pass.
func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now < end; {
		w.now = w.now.Add(tick)
		for i := range w.holders {
			w.live(uint32(i))
		}
		w.land()
		w.start()
		w.check()
	}
}

func (w *world) live(i uint32) {
	h := &w.holders[i]
	if !h.mute && w.now >= h.beats {
		h.last, h.beats = w.now, w.now.Add(interval)
		if h.expired {
			h.expired = false
			w.book.HolderRecovered(w.now, i)
		}
	}
	if !h.expired && w.now.Sub(h.last) > grace {
		h.expired = true
		w.book.HolderExpired(w.now, i)
	}
}

func (w *world) land() {
	for i := range w.holders {
		h := &w.holders[i]
		if h.flight == nil || w.now < h.lands {
			continue
		}
		write := *h.flight
		h.flight = nil
		switch {
		case w.failures > 0 && w.chance(w.failures, "fails"):
			// What failed may have been done all the same.
			if w.chance(50, "was done") {
				h.object, h.written = write, true
			}
			w.book.Failed(w.now, write, 0)
		default:
			if h.written && write.Beat < h.object.Beat {
				w.t.Fatalf("%v: the object of %d goes back from %v to %v", w.now, i, h.object.Beat, write.Beat)
			}
			h.object, h.written = write, true
			w.book.Succeeded(w.now, write)
		}
	}
}

func (w *world) start() {
	heard := func(i uint32) monotonic.Instant { return w.holders[i].last }
	writes := w.book.Start(w.now, heard, w.budget)
	if len(writes) > w.budget {
		w.t.Fatalf("%d writes for a budget of %d", len(writes), w.budget)
	}
	for _, write := range writes {
		h := &w.holders[write.Slot]
		if h.flight != nil {
			w.t.Fatalf("%v: two writes of %d at a time", w.now, write.Slot)
		}
		if write.Beat != h.last || h.expired != (write.Reason == writeback.Expired) {
			w.t.Fatalf("%v: planned %+v for %+v", w.now, write, *h)
		}
		h.flight, h.lands = &write, w.now.Add(time.Duration(rapid.Int64Range(0, int64(latency)).Draw(w.t, "latency")))
		w.writes++
	}
}

// check holds every object against what its policy promises while no write fails.
func (w *world) check() {
	for i := range w.holders {
		h := &w.holders[i]
		if w.truthful(h) {
			h.unwritten = w.now
		}
		if w.failures > 0 || w.budget < len(w.holders) {
			continue
		}
		if late := w.now.Sub(h.unwritten); late > latency+latency+2*tick {
			w.t.Fatalf("%v: %d, expired %t, last heard %v, has shown %+v for %v", w.now, i, h.expired, h.last, h.object, late)
		}
	}
}

// truthful tells whether the object says what it must.
func (w *world) truthful(h *holder) bool {
	age := w.now.Sub(h.object.Beat)
	dead := h.object.Reason == writeback.Expired
	beating := w.now.Sub(h.last) <= interval
	switch h.policy {
	case mirror:
		return !beating || h.written && age <= policies[mirror].Renew*26/25+2*interval
	case relaxed:
		return !beating || h.written && age <= policies[relaxed].Renew
	}
	if h.expired {
		return dead && h.object.Beat == h.last
	}
	return h.written && !dead && age <= policies[onChange].Renew*26/25+interval
}

// drawLives lets some holders fall silent or come back now and then.
func (w *world) drawLives(rounds int) {
	for range rounds {
		for i := range w.holders {
			h := &w.holders[i]
			h.mute = w.chance(30, "mute")
			if !h.mute && h.beats < w.now {
				h.beats = w.now.Add(time.Duration(rapid.Int64Range(0, int64(interval)).Draw(w.t, "comes back")))
			}
		}
		w.run(time.Duration(rapid.IntRange(1, 400).Draw(w.t, "ticks")) * tick)
	}
}

func TestBook_ObjectsKeepWhatTheirPoliciesPromise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 9, 9, 0)
		w.drawLives(4)
	})
}

func TestBook_EveryObjectIsTrueAgainAfterTrouble(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 9, rapid.IntRange(1, 3).Draw(t, "budget"), 60)
		w.drawLives(4)
		w.failures = 0
		w.run(30 * time.Second) // the longest pause after a failure is 7 s
		for i := range w.holders {
			if h := &w.holders[i]; !w.truthful(h) {
				t.Fatalf("%v: %d, expired %t, last heard %v, shows %+v", w.now, i, h.expired, h.last, h.object)
			}
		}
	})
}

// A steady fleet costs what its policy says and no more.
func TestBook_CostOfASteadyFleet(t *testing.T) {
	const fleet = 3000
	for policy, want := range map[uint8]float64{
		mirror:   fleet / 10.0,
		relaxed:  fleet / 20.0, // four beats of 5 s fit into 24 s
		onChange: fleet / 300.0,
	} {
		b := writeback.NewSchedule(policies)
		for i := range uint32(fleet) {
			b.Open(0, i, writeback.SlotOptions{Policy: policy, Phase: writeback.Phase(nodeName(int(i)))})
		}
		phase := func(i uint32) monotonic.Instant {
			return monotonic.Instant(int64(interval) * int64(writeback.Phase("beats of "+nodeName(int(i)))) >> 16)
		}
		var writes, busiest int
		for now := monotonic.Instant(0); now < at(1500); now = now.Add(tick) {
			heard := func(i uint32) monotonic.Instant {
				return max(0, now-(now-phase(i))%monotonic.Instant(interval))
			}
			made := b.Start(now, heard, fleet)
			for _, w := range made {
				b.Succeeded(now, w)
			}
			if now >= at(900) {
				writes += len(made)
				busiest = max(busiest, len(made))
			}
		}
		got := float64(writes) / 600
		if got > want*1.01 || got < want*0.8 {
			t.Errorf("policy %d: %.1f writes a second, want %.1f", policy, got, want)
		}
		if limit := int(want/10*4) + 8; busiest > limit {
			t.Errorf("policy %d: %d writes in one tick, want no more than %d of an even spread", policy, busiest, limit)
		}
	}
}

func TestStart_NobodyStarves(t *testing.T) {
	d := newDesk()
	const stuck, fine = 400, 40
	for slot := range uint32(stuck + fine) {
		d.meet(0, slot, mirror)
	}
	d.write(0)
	for slot := range uint32(100) { // as many who always fail to get their first object
		d.meet(0, 1000+slot, mirror)
	}
	started := map[uint32]int{}
	for second := 60.0; second < 120; second += 0.1 {
		for slot := range uint32(stuck + fine) {
			d.beat(second, slot)
		}
		for _, w := range d.start(second, 6) {
			started[w.Slot]++
			if w.Slot < stuck || w.Slot >= 1000 {
				d.Failed(at(second), w, 0)
			} else {
				d.Succeeded(at(second), w)
			}
		}
	}
	for slot := range uint32(stuck + fine) {
		if started[slot] == 0 {
			t.Errorf("slot %d was not started in a minute, of %d starts", slot, 3600)
		}
	}
}
