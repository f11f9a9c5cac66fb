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
	// latency is the maximum duration of a write.
	latency = time.Second
)

// holder is a holder in the model, with what its Lease shows.
type holder struct {
	policy uint8
	// beats is the time of the next beat, unless it is silent.
	beats  monotonic.Instant
	silent bool
	last   monotonic.Instant
	// expired is the state of its session.
	expired bool

	write       *writeback.Write
	ends        monotonic.Instant
	lease       writeback.Write // the last successful write
	written     bool
	untrueSince monotonic.Instant // since when its Lease has been wrong
}

// simulation runs a Schedule beside a model of the holders and their Leases.
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
func (sim *simulation) run(d time.Duration) {
	for end := sim.now.Add(d); sim.now < end; {
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
			// A failed write may have been applied.
			if sim.chance(50, "was applied") {
				h.lease, h.written = write, true
			}
			sim.schedule.Failed(sim.now, write, 0)
		default:
			if h.written && write.Beat < h.lease.Beat {
				sim.t.Fatalf("%v: the Lease of %d goes back from %v to %v", sim.now, i, h.lease.Beat, write.Beat)
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

// check compares all Leases with the promises of their policies while no write fails.
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
			sim.t.Fatalf("%v: %d, expired %t, last beat %v, has shown %+v for %v", sim.now, i, h.expired, h.last, h.lease, late)
		}
	}
}

// isTrue reports whether the Lease shows what its policy promises.
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

// drawHolders lets some holders fall silent or beat again.
func (sim *simulation) drawHolders(rounds int) {
	for range rounds {
		for i := range sim.holders {
			h := &sim.holders[i]
			h.silent = sim.chance(30, "silent")
			if !h.silent && h.beats < sim.now {
				h.beats = sim.now.Add(time.Duration(rapid.Int64Range(0, int64(interval)).Draw(sim.t, "beats again")))
			}
		}
		sim.run(time.Duration(rapid.IntRange(1, 400).Draw(sim.t, "ticks")) * tick)
	}
}

func TestSchedule_LeasesKeepThePromisesOfTheirPolicies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sim := newSimulation(t, 9, 9, 0)
		sim.drawHolders(4)
	})
}

func TestSchedule_LeasesAreTrueAgainAfterFailures(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sim := newSimulation(t, 9, rapid.IntRange(1, 3).Draw(t, "budget"), 60)
		sim.drawHolders(4)
		sim.failures = 0
		sim.run(30 * time.Second) // the longest pause after a failure is 7 s
		for i := range sim.holders {
			if h := &sim.holders[i]; !sim.isTrue(h) {
				t.Fatalf("%v: %d, expired %t, last beat %v, shows %+v", sim.now, i, h.expired, h.last, h.lease)
			}
		}
	})
}

// Holders that beat steadily cost the writes that their policy implies.
func TestSchedule_WriteRateFollowsThePolicy(t *testing.T) {
	const holders = 3000
	for policy, want := range map[uint8]float64{
		mirror:   holders / 10.0,
		relaxed:  holders / 20.0, // four beats of 5 s fit into 24 s
		onChange: holders / 300.0,
	} {
		schedule := writeback.NewSchedule(policies)
		for i := range uint32(holders) {
			schedule.Open(0, i, writeback.SlotOptions{Policy: policy, Phase: writeback.Phase(nodeName(int(i)))})
		}
		phase := func(i uint32) monotonic.Instant {
			return monotonic.Instant(int64(interval) * int64(writeback.Phase("beats of "+nodeName(int(i)))) >> 16)
		}
		var writes, busiest int
		for now := monotonic.Instant(0); now < at(1500); now = now.Add(tick) {
			lastBeat := func(i uint32) monotonic.Instant {
				return max(0, now-(now-phase(i))%monotonic.Instant(interval))
			}
			made := schedule.Start(now, lastBeat, holders)
			for _, w := range made {
				schedule.Succeeded(now, w)
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

func TestStart_NoSlotStarves(t *testing.T) {
	f := newFixture()
	const stuck, fine = 400, 40
	for slot := range uint32(stuck + fine) {
		f.open(0, slot, mirror)
	}
	f.write(0)
	for slot := range uint32(100) { // slots whose first write always fails
		f.open(0, 1000+slot, mirror)
	}
	started := map[uint32]int{}
	for second := 60.0; second < 120; second += 0.1 {
		for slot := range uint32(stuck + fine) {
			f.beat(second, slot)
		}
		for _, w := range f.start(second, 6) {
			started[w.Slot]++
			if w.Slot < stuck || w.Slot >= 1000 {
				f.Failed(at(second), w, 0)
			} else {
				f.Succeeded(at(second), w)
			}
		}
	}
	for slot := range uint32(stuck + fine) {
		if started[slot] == 0 {
			t.Errorf("slot %d was not started in a minute, of %d starts", slot, 3600)
		}
	}
}
