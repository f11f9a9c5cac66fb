package writeback_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// The policies of a book, by their index.
const (
	mirror = iota
	relaxed
	onChange
)

var policies = []writeback.Policy{
	mirror:   {Mode: writeback.Mirror, Renew: 10 * time.Second, Duration: 40 * time.Second},
	relaxed:  {Mode: writeback.Relaxed, Renew: 24 * time.Second, Duration: 40 * time.Second},
	onChange: {Mode: writeback.OnChange, Renew: 300 * time.Second, Duration: 500 * time.Second},
}

func at(seconds float64) monotonic.Instant {
	return monotonic.Instant(seconds * float64(time.Second))
}

// desk is a book with the beats of its holders.
type desk struct {
	*writeback.Schedule
	beats map[uint32]monotonic.Instant
}

func newDesk() *desk {
	return &desk{Schedule: writeback.NewSchedule(policies), beats: map[uint32]monotonic.Instant{}}
}

// meet opens a slot of phase 0 for a holder that beats at the given second.
func (d *desk) meet(second float64, slot uint32, policy uint8) {
	d.beat(second, slot)
	d.Open(at(second), slot, writeback.SlotOptions{Policy: policy})
}

func (d *desk) beat(second float64, slots ...uint32) {
	for _, slot := range slots {
		d.beats[slot] = at(second)
	}
}

func (d *desk) start(second float64, budget int) []writeback.Write {
	return d.Start(at(second), func(slot uint32) monotonic.Instant { return d.beats[slot] }, budget)
}

// write starts and ends everything that is due.
func (d *desk) write(second float64) []writeback.Write {
	writes := d.start(second, 1000)
	for _, w := range writes {
		d.Succeeded(at(second), w)
	}
	return writes
}

// expect fails unless the writes are those.
func expect(t *testing.T, what string, got []writeback.Write, want ...writeback.Write) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestStart_TransitionsThenCreatesThenWhatLapsesFirst(t *testing.T) {
	d := newDesk()
	for slot, beat := range map[uint32]float64{1: 4, 2: 1, 3: 3, 4: 2} {
		d.meet(beat, slot, mirror)
		d.write(beat)
	}
	d.HolderExpired(at(20), 3)
	d.beat(25, 1, 2, 3, 4)
	d.meet(23, 5, mirror)
	d.meet(22, 6, mirror)
	d.HolderRecovered(at(25), 3)
	got := d.start(25, 100)
	expect(t, "order", got,
		writeback.Write{Slot: 3, Reason: writeback.Recovered, Beat: at(25), Planned: at(25)},
		writeback.Write{Slot: 6, Reason: writeback.First, Beat: at(22), Planned: at(25)},
		writeback.Write{Slot: 5, Reason: writeback.First, Beat: at(23), Planned: at(25)},
		writeback.Write{Slot: 2, Reason: writeback.Renewal, Beat: at(25), Planned: at(25)},
		writeback.Write{Slot: 4, Reason: writeback.Renewal, Beat: at(25), Planned: at(25)},
		writeback.Write{Slot: 1, Reason: writeback.Renewal, Beat: at(25), Planned: at(25)},
	)
	expect(t, "again while all are in flight", d.start(1000, 100))
}

func TestStart_RenewalsGetEveryFourthStart(t *testing.T) {
	d := newDesk()
	for slot := range uint32(10) {
		d.meet(0, slot, mirror)
	}
	d.write(0)
	d.beat(60, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	for slot := range uint32(20) {
		d.meet(60, 100+slot, mirror)
	}
	renewals := 0
	for range 16 { // one at a time, as where the kube-apiserver bears no more
		if d.start(61, 1)[0].Reason == writeback.Renewal {
			renewals++
		}
	}
	if renewals != 4 {
		t.Errorf("%d of 16 starts went to renewals, want 4", renewals)
	}
}

func TestStart_MirrorWritesOncePerInterval(t *testing.T) {
	d := newDesk()
	d.meet(0, 0, mirror)
	d.write(0)
	d.write(0.1) // the first renewal is anywhere in the interval: with phase 0 at its begin
	d.beat(3, 0)
	d.write(3)
	d.beat(9, 0)
	expect(t, "before the interval has passed", d.write(12.9))
	expect(t, "after it", d.write(13.1), writeback.Write{Reason: writeback.Renewal, Beat: at(9), Planned: at(13.1)})
}

func TestStart_NothingNewIsNotWritten(t *testing.T) {
	for name, prepare := range map[string]func(d *desk){
		"no holder":     func(*desk) {},
		"no beat since": func(d *desk) { d.meet(0, 0, mirror); d.write(0) },
		"restored, and not heard since": func(d *desk) {
			d.Open(at(5), 0, writeback.SlotOptions{})
			d.beats[0] = at(-3)
		},
		"expired unwritten":      func(d *desk) { d.meet(0, 0, mirror); d.HolderExpired(at(1), 0) },
		"expired, by relaxed":    func(d *desk) { d.meet(0, 0, relaxed); d.write(0); d.beat(2, 0); d.HolderExpired(at(20), 0) },
		"write in flight":        func(d *desk) { d.meet(0, 0, mirror); d.start(0, 1) },
		"held for a release":     func(d *desk) { d.meet(0, 0, mirror); d.Suspend(0) },
		"closed":                 func(d *desk) { d.meet(0, 0, mirror); d.Close(0) },
		"closed while in flight": func(d *desk) { d.meet(0, 0, mirror); d.start(0, 1); d.Close(0) },
	} {
		d := newDesk()
		prepare(d)
		for _, second := range []float64{0.5, 30, 1000} {
			if got := d.start(second, 10); got != nil {
				t.Errorf("%s: %v", name, got)
			}
		}
	}
	d := newDesk()
	d.meet(0, 0, mirror)
	d.Suspend(0)
	d.start(1, 1)
	d.Resume(at(1), 0)
	if got := d.start(1, 1); len(got) != 1 {
		t.Errorf("let go: %v, want one write", got)
	}
}

func TestStart_OnChangeWritesDeathAndRecovery(t *testing.T) {
	d := newDesk()
	d.meet(0, 0, onChange)
	d.write(0)
	d.beat(30, 0)
	d.write(1) // the first refresh
	d.beat(40, 0)
	d.write(40)
	d.beat(100, 0)
	expect(t, "while it beats", d.write(120))
	d.HolderExpired(at(121), 0)
	expect(t, "death", d.write(121), writeback.Write{Reason: writeback.Expired, Beat: at(100), Planned: at(121)})
	expect(t, "it is said once", d.write(5000))
	d.beat(5001, 0)
	d.HolderRecovered(at(5001), 0)
	expect(t, "recovery", d.write(5001), writeback.Write{Reason: writeback.Recovered, Beat: at(5001), Planned: at(5001)})
}

func TestStart_DeathThatNobodyWroteNeedsNoRecovery(t *testing.T) {
	d := newDesk()
	d.meet(0, 0, onChange)
	d.write(0)
	d.beat(50, 0)
	d.write(50)
	d.HolderExpired(at(70), 0)
	d.beat(70.1, 0)
	d.HolderRecovered(at(70.1), 0)
	expect(t, "back before it was said", d.write(71))
}

func TestStart_RecoveryWhileDeathIsWrittenIsWrittenNext(t *testing.T) {
	for name, end := range map[string]func(d *desk, w writeback.Write){
		"written": func(d *desk, w writeback.Write) { d.Succeeded(at(72), w) },
		"failed":  func(d *desk, w writeback.Write) { d.Failed(at(72), w, 0) },
	} {
		d := newDesk()
		d.meet(0, 0, onChange)
		d.write(0)
		d.HolderExpired(at(70), 0)
		w := d.start(70, 1)[0]
		d.beat(71, 0)
		d.HolderRecovered(at(71), 0)
		expect(t, name+", in flight", d.start(71, 1))
		end(d, w)
		expect(t, name, d.start(73, 1), writeback.Write{Reason: writeback.Recovered, Beat: at(71), Planned: at(73)})
	}
}

func TestStart_RecoveryIsHurriedWhereTheObjectMayHaveLapsed(t *testing.T) {
	d := newDesk()
	d.meet(0, 0, relaxed)
	d.write(0)
	d.HolderExpired(at(20), 0)
	d.beat(21, 0)
	d.HolderRecovered(at(21), 0)
	expect(t, "recovery", d.write(21), writeback.Write{Reason: writeback.Recovered, Beat: at(21), Planned: at(21)})
}

func TestSucceeded_BeatDuringTheWriteStaysToBeWritten(t *testing.T) {
	d := newDesk()
	d.meet(0, 0, mirror)
	w := d.start(0, 1)[0]
	d.beat(2, 0)
	d.Succeeded(at(3), w)
	expect(t, "next", d.start(11, 1), writeback.Write{Reason: writeback.Renewal, Beat: at(2), Planned: at(11)})
}

func TestSucceeded_AfterSilenceLeavesNothingToWrite(t *testing.T) {
	d := newDesk()
	d.meet(0, 0, relaxed)
	w := d.start(0, 1)[0]
	d.beat(2, 0)
	d.HolderExpired(at(22), 0)
	d.Succeeded(at(23), w)
	expect(t, "expired", d.start(1000, 1))
}

func TestFailed_BacksOffAsUpstream(t *testing.T) {
	d := newDesk()
	d.meet(0, 0, mirror)
	pause := func(asked time.Duration) time.Duration {
		d.Failed(at(0), d.start(0, 1)[0], asked)
		due := d.Status(0).Due
		d.Close(0)
		return due.Sub(at(0))
	}
	if got := pause(0); got != 200*time.Millisecond {
		t.Errorf("first failure: next attempt after %v, want 200 ms", got)
	}
	d.meet(0, 0, mirror)
	if got := pause(time.Minute); got != time.Minute {
		t.Errorf("the pause asked for is longer: next attempt after %v, want a minute", got)
	}
	var got []time.Duration
	for failures := range int32(9) {
		got = append(got, writeback.Backoff(failures+1))
	}
	ms := time.Millisecond
	want := []time.Duration{200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 6400 * ms, 7000 * ms, 7000 * ms, 7000 * ms}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pauses (-want +got):\n%s", diff)
	}
}

func TestAdopt_ObjectIsWrittenAsItsDurationAllows(t *testing.T) {
	const half = 1 << 15
	for name, c := range map[string]struct {
		policy uint8
		object writeback.ExistingLease
		due    float64
		reason writeback.Reason
	}{
		"fresh":               {relaxed, writeback.ExistingLease{Renewed: at(95), Duration: 40 * time.Second}, 112, writeback.Renewal},
		"half its life over":  {relaxed, writeback.ExistingLease{Renewed: at(80), Duration: 40 * time.Second}, 106, writeback.Renewal},
		"about to lapse":      {relaxed, writeback.ExistingLease{Renewed: at(65), Duration: 40 * time.Second}, 100, writeback.Renewal},
		"lapsed":              {relaxed, writeback.ExistingLease{Renewed: at(50), Duration: 40 * time.Second}, 100, writeback.Recovered},
		"of a clock ahead":    {relaxed, writeback.ExistingLease{Renewed: at(9e6), Duration: 40 * time.Second}, 112, writeback.Renewal},
		"refreshed long ago":  {onChange, writeback.ExistingLease{Renewed: at(-100), Duration: 500 * time.Second}, 200, writeback.Renewal},
		"said to be dead":     {onChange, writeback.ExistingLease{Renewed: at(70), Duration: 20 * time.Second}, 100, writeback.Recovered},
		"of another's policy": {mirror, writeback.ExistingLease{Renewed: at(0), Duration: 500 * time.Second}, 105, writeback.Renewal},
	} {
		d := newDesk()
		d.beat(100, 0)
		d.Open(at(100), 0, writeback.SlotOptions{Policy: c.policy, Phase: half, Wait: 10 * time.Second})
		d.Adopt(at(100), 0, c.object)
		want := writeback.SlotStatus{State: writeback.Pending, Reason: c.reason, Due: at(c.due), Scheduled: true}
		if diff := cmp.Diff(want, d.Status(0)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestAdopt_WhatIsKnownBetterStays(t *testing.T) {
	d := newDesk()
	d.meet(0, 0, relaxed)
	w := d.start(0, 1)[0]
	d.Adopt(at(0.5), 0, writeback.ExistingLease{Renewed: at(-100), Duration: time.Second})
	d.Succeeded(at(1), w)
	d.Adopt(at(1), 0, writeback.ExistingLease{Renewed: at(-100), Duration: time.Second})
	if got := d.Status(0); got.State != writeback.Written || got.Reason != writeback.Renewal {
		t.Errorf("%+v, want a written object with a renewal to come", got)
	}
}

func TestOpen_UnseenObjectWaitsForAdoptionNoLongerThanItsWait(t *testing.T) {
	d := newDesk()
	d.beat(0, 0)
	d.Open(at(0), 0, writeback.SlotOptions{Wait: 10 * time.Second})
	expect(t, "meanwhile", d.start(9.8, 1))
	expect(t, "then", d.start(10, 1), writeback.Write{Reason: writeback.First, Planned: at(10)})
}

func TestPhase_SpreadsNamesEvenly(t *testing.T) {
	const names, bins = 100_000, 16
	var counts [bins]int
	for i := range names {
		counts[int(writeback.Phase(nodeName(i)))*bins>>16]++
	}
	for bin, n := range counts {
		if n < names/bins*9/10 || n > names/bins*11/10 {
			t.Errorf("%d of %d names in part %d of %d", n, names, bin, bins)
		}
	}
}
