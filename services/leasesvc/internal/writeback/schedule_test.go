package writeback_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

func TestStart_OrdersTransitionsFirstWritesAndRenewals(t *testing.T) {
	f := newFixture()
	for slot, beat := range map[uint32]float64{1: 4, 2: 1, 3: 3, 4: 2} {
		f.open(beat, slot, mirror)
		f.write(beat)
	}
	f.HolderExpired(at(20), 3)
	f.beat(25, 1, 2, 3, 4)
	f.open(23, 5, mirror)
	f.open(22, 6, mirror)
	f.HolderRecovered(at(25), 3)
	got := f.start(25, 100)
	expect(t, "order", got,
		writeback.Write{Slot: 3, Reason: writeback.Recovered, Beat: at(25), Planned: at(25)},
		writeback.Write{Slot: 6, Reason: writeback.First, Beat: at(22), Planned: at(25)},
		writeback.Write{Slot: 5, Reason: writeback.First, Beat: at(23), Planned: at(25)},
		writeback.Write{Slot: 2, Reason: writeback.Renewal, Beat: at(25), Planned: at(25)},
		writeback.Write{Slot: 4, Reason: writeback.Renewal, Beat: at(25), Planned: at(25)},
		writeback.Write{Slot: 1, Reason: writeback.Renewal, Beat: at(25), Planned: at(25)},
	)
	expect(t, "while all are in flight", f.start(1000, 100))
}

func TestStart_RenewalsGetEveryFourthStart(t *testing.T) {
	f := newFixture()
	for slot := range uint32(10) {
		f.open(0, slot, mirror)
	}
	f.write(0)
	f.beat(60, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	for slot := range uint32(20) {
		f.open(60, 100+slot, mirror)
	}
	renewals := 0
	for range 16 { // one at a time, as with a concurrency limit of 1
		if f.start(61, 1)[0].Reason == writeback.Renewal {
			renewals++
		}
	}
	if renewals != 4 {
		t.Errorf("%d of 16 starts went to renewals, want 4", renewals)
	}
}

func TestStart_MirrorWritesOncePerInterval(t *testing.T) {
	f := newFixture()
	f.open(0, 0, mirror)
	f.write(0)
	f.write(0.1) // the first renewal falls anywhere in the period: with phase 0 at its begin
	f.beat(3, 0)
	f.write(3)
	f.beat(9, 0)
	expect(t, "before the period has passed", f.write(12.9))
	expect(t, "after it", f.write(13.1), writeback.Write{Reason: writeback.Renewal, Beat: at(9), Planned: at(13.1)})
}

func TestStart_UnchangedLeaseIsNotWritten(t *testing.T) {
	for name, prepare := range map[string]func(f *fixture){
		"no holder":     func(*fixture) {},
		"no beat since": func(f *fixture) { f.open(0, 0, mirror); f.write(0) },
		"no beat since it was opened": func(f *fixture) {
			f.Open(at(5), 0, writeback.SlotOptions{})
			f.beats[0] = at(-3)
		},
		"expired unwritten":      func(f *fixture) { f.open(0, 0, mirror); f.HolderExpired(at(1), 0) },
		"expired, by relaxed":    func(f *fixture) { f.open(0, 0, relaxed); f.write(0); f.beat(2, 0); f.HolderExpired(at(20), 0) },
		"write in flight":        func(f *fixture) { f.open(0, 0, mirror); f.start(0, 1) },
		"suspended":              func(f *fixture) { f.open(0, 0, mirror); f.Suspend(0) },
		"closed":                 func(f *fixture) { f.open(0, 0, mirror); f.Close(0) },
		"closed while in flight": func(f *fixture) { f.open(0, 0, mirror); f.start(0, 1); f.Close(0) },
	} {
		f := newFixture()
		prepare(f)
		for _, second := range []float64{0.5, 30, 1000} {
			if got := f.start(second, 10); got != nil {
				t.Errorf("%s: %v", name, got)
			}
		}
	}
	f := newFixture()
	f.open(0, 0, mirror)
	f.Suspend(0)
	f.start(1, 1)
	f.Resume(at(1), 0)
	if got := f.start(1, 1); len(got) != 1 {
		t.Errorf("after Resume: %v, want one write", got)
	}
}

func TestStart_OnChangeWritesExpiryAndRecovery(t *testing.T) {
	f := newFixture()
	f.open(0, 0, onChange)
	f.write(0)
	f.beat(30, 0)
	f.write(1) // the first refresh
	f.beat(40, 0)
	f.write(40)
	f.beat(100, 0)
	expect(t, "while it beats", f.write(120))
	f.HolderExpired(at(121), 0)
	expect(t, "expiry", f.write(121), writeback.Write{Reason: writeback.Expired, Beat: at(100), Planned: at(121)})
	expect(t, "after the expiry was written", f.write(5000))
	f.beat(5001, 0)
	f.HolderRecovered(at(5001), 0)
	expect(t, "recovery", f.write(5001), writeback.Write{Reason: writeback.Recovered, Beat: at(5001), Planned: at(5001)})
}

func TestStart_RecoveryAfterAnUnwrittenExpiryIsNotWritten(t *testing.T) {
	f := newFixture()
	f.open(0, 0, onChange)
	f.write(0)
	f.beat(50, 0)
	f.write(50)
	f.HolderExpired(at(70), 0)
	f.beat(70.1, 0)
	f.HolderRecovered(at(70.1), 0)
	expect(t, "recovered before the expiry was written", f.write(71))
}

func TestStart_RecoveryDuringTheWriteOfTheExpiryIsWrittenNext(t *testing.T) {
	for name, end := range map[string]func(f *fixture, w writeback.Write){
		"written": func(f *fixture, w writeback.Write) { f.Succeeded(at(72), w) },
		"failed":  func(f *fixture, w writeback.Write) { f.Failed(at(72), w, 0) },
	} {
		f := newFixture()
		f.open(0, 0, onChange)
		f.write(0)
		f.HolderExpired(at(70), 0)
		w := f.start(70, 1)[0]
		f.beat(71, 0)
		f.HolderRecovered(at(71), 0)
		expect(t, name+", in flight", f.start(71, 1))
		end(f, w)
		expect(t, name, f.start(73, 1), writeback.Write{Reason: writeback.Recovered, Beat: at(71), Planned: at(73)})
	}
}

func TestStart_RecoveryIsWrittenAtOnceIfTheLeaseMayHaveLapsed(t *testing.T) {
	f := newFixture()
	f.open(0, 0, relaxed)
	f.write(0)
	f.HolderExpired(at(20), 0)
	f.beat(21, 0)
	f.HolderRecovered(at(21), 0)
	expect(t, "recovery", f.write(21), writeback.Write{Reason: writeback.Recovered, Beat: at(21), Planned: at(21)})
}

func TestSucceeded_BeatDuringTheWriteIsWrittenNext(t *testing.T) {
	f := newFixture()
	f.open(0, 0, mirror)
	w := f.start(0, 1)[0]
	f.beat(2, 0)
	f.Succeeded(at(3), w)
	expect(t, "next", f.start(11, 1), writeback.Write{Reason: writeback.Renewal, Beat: at(2), Planned: at(11)})
}

func TestSucceeded_NoWriteAfterTheHolderExpired(t *testing.T) {
	f := newFixture()
	f.open(0, 0, relaxed)
	w := f.start(0, 1)[0]
	f.beat(2, 0)
	f.HolderExpired(at(22), 0)
	f.Succeeded(at(23), w)
	expect(t, "expired", f.start(1000, 1))
}

func TestFailed_BacksOffAsUpstreamDoes(t *testing.T) {
	f := newFixture()
	f.open(0, 0, mirror)
	pause := func(asked time.Duration) time.Duration {
		f.Failed(at(0), f.start(0, 1)[0], asked)
		due := f.Status(0).Due
		f.Close(0)
		return due.Sub(at(0))
	}
	if got := pause(0); got != 200*time.Millisecond {
		t.Errorf("first failure: next attempt after %v, want 200 ms", got)
	}
	f.open(0, 0, mirror)
	if got := pause(time.Minute); got != time.Minute {
		t.Errorf("with a pause of a minute: next attempt after %v, want a minute", got)
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

func TestAdopt_LeaseIsWrittenWhenItsDurationRequiresIt(t *testing.T) {
	const half = 1 << 15
	for name, c := range map[string]struct {
		policy uint8
		object writeback.ExistingLease
		due    float64
		reason writeback.Reason
	}{
		"fresh":              {relaxed, writeback.ExistingLease{Renewed: at(95), Duration: 40 * time.Second}, 112, writeback.Renewal},
		"half lapsed":        {relaxed, writeback.ExistingLease{Renewed: at(80), Duration: 40 * time.Second}, 106, writeback.Renewal},
		"about to lapse":     {relaxed, writeback.ExistingLease{Renewed: at(65), Duration: 40 * time.Second}, 100, writeback.Renewal},
		"lapsed":             {relaxed, writeback.ExistingLease{Renewed: at(50), Duration: 40 * time.Second}, 100, writeback.Recovered},
		"clock ahead":        {relaxed, writeback.ExistingLease{Renewed: at(9e6), Duration: 40 * time.Second}, 112, writeback.Renewal},
		"refreshed long ago": {onChange, writeback.ExistingLease{Renewed: at(-100), Duration: 500 * time.Second}, 200, writeback.Renewal},
		"written as expired": {onChange, writeback.ExistingLease{Renewed: at(70), Duration: 20 * time.Second}, 100, writeback.Recovered},
		"longer duration":    {mirror, writeback.ExistingLease{Renewed: at(0), Duration: 500 * time.Second}, 105, writeback.Renewal},
	} {
		f := newFixture()
		f.beat(100, 0)
		f.Open(at(100), 0, writeback.SlotOptions{Policy: c.policy, Phase: half, Wait: 10 * time.Second})
		f.Adopt(at(100), 0, c.object)
		want := writeback.SlotStatus{State: writeback.Pending, Reason: c.reason, Due: at(c.due), Scheduled: true}
		if diff := cmp.Diff(want, f.Status(0)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestAdopt_DoesNotReplaceAKnownLease(t *testing.T) {
	f := newFixture()
	f.open(0, 0, relaxed)
	w := f.start(0, 1)[0]
	f.Adopt(at(0.5), 0, writeback.ExistingLease{Renewed: at(-100), Duration: time.Second})
	f.Succeeded(at(1), w)
	f.Adopt(at(1), 0, writeback.ExistingLease{Renewed: at(-100), Duration: time.Second})
	if got := f.Status(0); got.State != writeback.Written || got.Reason != writeback.Renewal {
		t.Errorf("%+v, want a written Lease with a planned renewal", got)
	}
}

func TestOpen_FirstWriteWaitsForAdoption(t *testing.T) {
	f := newFixture()
	f.beat(0, 0)
	f.Open(at(0), 0, writeback.SlotOptions{Wait: 10 * time.Second})
	expect(t, "during the wait", f.start(9.8, 1))
	expect(t, "after the wait", f.start(10, 1), writeback.Write{Reason: writeback.First, Planned: at(10)})
}

func TestPhase_SpreadsNamesEvenly(t *testing.T) {
	const names, bins = 100_000, 16
	var counts [bins]int
	for i := range names {
		counts[int(writeback.Phase(nodeName(i)))*bins>>16]++
	}
	for bin, n := range counts {
		if n < names/bins*9/10 || n > names/bins*11/10 {
			t.Errorf("%d of %d names in bin %d of %d", n, names, bin, bins)
		}
	}
}
