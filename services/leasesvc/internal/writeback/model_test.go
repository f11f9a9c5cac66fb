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
	beats  monotonic.Instant
	silent bool
	last   monotonic.Instant
	// expired is what its session is.
	expired bool

	write       *writeback.Write
	ends        monotonic.Instant
	lease       writeback.Write // the last that landed
	written     bool
	untrueSince monotonic.Instant // since when its object does not say what is the matter with it
}

// world runs a Book beside the naive model of it: one goroutine's worth of ticks, with all that can happen to holders and writes.
type simulation struct {
	t        *rapid.T
	now      monotonic.Instant
	schedule *writeback.Schedule
	holders  []holder
	budget   int
	failures int // of a hundred writes
	writes   int
}

func (sim *simulation) chance(of100 int, label string) bool {
	return rapid.IntRange(0, 99).Draw(sim.t, label) < of100
}

func newSimulation(t *rapid.T, holders, budget, failures int) *simulation {
	sim := &simulation{t: t, schedule: writeback.NewSchedule(policies), budget: budget, failures: failures}
	for i := range holders {
		h := holder{policy: uint8(i % len(policies)), beats: sim.now.Add(interval), last: sim.now}
		sim.holders = append(sim.holders, h)
		sim.schedule.Open(sim.now, uint32(i), writeback.SlotOptions{Policy: h.policy, Phase: writeback.Phase(nodeName(i))})
	}
	return sim
}

// run lets time pass.
func (sim *simulation) run(f time.Duration) {
	for end := sim.now.Add(f); sim.now < end; {
		sim.now = sim.now.Add(tick)
		for i := range sim.holders {
			sim.stepHolder(uint32(i))
		}
		sim.finishWrites()
		sim.startWrites()
		sim.check()
	}
}

func (sim *simulation) stepHolder(i uint32) {
	h := &sim.holders[i]
	if !h.silent && sim.now >= h.beats {
		h.last, h.beats = sim.now, sim.now.Add(interval)
		if h.expired {
			h.expired = false
			sim.schedule.HolderRecovered(sim.now, i)
		}
	}
	if !h.expired && sim.now.Sub(h.last) > grace {
		h.expired = true
		sim.schedule.HolderExpired(sim.now, i)
	}
}

func (sim *simulation) finishWrites() {
	for i := range sim.holders {
		h := &sim.holders[i]
		if h.write == nil || sim.now < h.ends {
			continue
		}
		write := *h.write
		h.write = nil
		switch {
		case sim.failures > 0 && sim.chance(sim.failures, "fails"):
			// What failed may have been done all the same.
			if sim.chance(50, "was done") {
				h.lease, h.written = write, true
			}
			sim.schedule.Failed(sim.now, write, 0)
		default:
			if h.written && write.Beat < h.lease.Beat {
				sim.t.Fatalf("%v: the object of %d goes back from %v to %v", sim.now, i, h.lease.Beat, write.Beat)
			}
			h.lease, h.written = write, true
			sim.schedule.Succeeded(sim.now, write)
		}
	}
}

func (sim *simulation) startWrites() {
	lastBeat := func(i uint32) monotonic.Instant { return sim.holders[i].last }
	writes := sim.schedule.Start(sim.now, lastBeat, sim.budget)
	if len(writes) > sim.budget {
		sim.t.Fatalf("%d writes for a budget of %d", len(writes), sim.budget)
	}
	for _, write := range writes {
		h := &sim.holders[write.Slot]
		if h.write != nil {
			sim.t.Fatalf("%v: two writes of %d at a time", sim.now, write.Slot)
		}
		if write.Beat != h.last || h.expired != (write.Reason == writeback.Expired) {
			sim.t.Fatalf("%v: planned %+v for %+v", sim.now, write, *h)
		}
		h.write, h.ends = &write, sim.now.Add(time.Duration(rapid.Int64Range(0, int64(latency)).Draw(sim.t, "latency")))
		sim.writes++
	}
}

// check holds every object against what its policy promises while no write fails.
func (sim *simulation) check() {
	for i := range sim.holders {
		h := &sim.holders[i]
		if sim.isTrue(h) {
			h.untrueSince = sim.now
		}
		if sim.failures > 0 || sim.budget < len(sim.holders) {
			continue
		}
		if late := sim.now.Sub(h.untrueSince); late > latency+latency+2*tick {
			sim.t.Fatalf("%v: %d, expired %t, last heard %v, has shown %+v for %v", sim.now, i, h.expired, h.last, h.lease, late)
		}
	}
}

// truthful tells whether the object says what it must.
func (sim *simulation) isTrue(h *holder) bool {
	age := sim.now.Sub(h.lease.Beat)
	unanswered := h.lease.Reason == writeback.Expired
	beating := sim.now.Sub(h.last) <= interval
	switch h.policy {
	case mirror:
		return !beating || h.written && age <= policies[mirror].Renew*26/25+2*interval
	case relaxed:
		return !beating || h.written && age <= policies[relaxed].Renew
	}
	if h.expired {
		return unanswered && h.lease.Beat == h.last
	}
	return h.written && !unanswered && age <= policies[onChange].Renew*26/25+interval
}

// drawLives lets some holders fall silent or come back now and then.
func (sim *simulation) drawHolders(rounds int) {
	for range rounds {
		for i := range sim.holders {
			h := &sim.holders[i]
			h.silent = sim.chance(30, "mute")
			if !h.silent && h.beats < sim.now {
				h.beats = sim.now.Add(time.Duration(rapid.Int64Range(0, int64(interval)).Draw(sim.t, "comes back")))
			}
		}
		sim.run(time.Duration(rapid.IntRange(1, 400).Draw(sim.t, "ticks")) * tick)
	}
}

func TestBook_ObjectsKeepWhatTheirPoliciesPromise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sim := newSimulation(t, 9, 9, 0)
		sim.drawHolders(4)
	})
}

func TestBook_EveryObjectIsTrueAgainAfterTrouble(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sim := newSimulation(t, 9, rapid.IntRange(1, 3).Draw(t, "budget"), 60)
		sim.drawHolders(4)
		sim.failures = 0
		sim.run(30 * time.Second) // the longest pause after a failure is 7 s
		for i := range sim.holders {
			if h := &sim.holders[i]; !sim.isTrue(h) {
				t.Fatalf("%v: %d, expired %t, last heard %v, shows %+v", sim.now, i, h.expired, h.last, h.lease)
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
			lastBeat := func(i uint32) monotonic.Instant {
				return max(0, now-(now-phase(i))%monotonic.Instant(interval))
			}
			made := b.Start(now, lastBeat, fleet)
			for _, sim := range made {
				b.Succeeded(now, sim)
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
	f := newFixture()
	const stuck, fine = 400, 40
	for slot := range uint32(stuck + fine) {
		f.open(0, slot, mirror)
	}
	f.write(0)
	for slot := range uint32(100) { // as many who always fail to get their first object
		f.open(0, 1000+slot, mirror)
	}
	started := map[uint32]int{}
	for second := 60.0; second < 120; second += 0.1 {
		for slot := range uint32(stuck + fine) {
			f.beat(second, slot)
		}
		for _, sim := range f.start(second, 6) {
			started[sim.Slot]++
			if sim.Slot < stuck || sim.Slot >= 1000 {
				f.Failed(at(second), sim, 0)
			} else {
				f.Succeeded(at(second), sim)
			}
		}
	}
	for slot := range uint32(stuck + fine) {
		if started[slot] == 0 {
			t.Errorf("slot %d was not started in a minute, of %d starts", slot, 3600)
		}
	}
}
