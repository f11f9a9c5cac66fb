package slicecontroller

import (
	"testing"
	"time"
)

func TestBudget_BoundsWritesAndStarvesNobody(t *testing.T) {
	const services, seconds = 1000, 60
	b := newBudget()
	start := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	due := make([]time.Time, services) // when each comes again; each compacts once, by two writes
	for i := range due {
		due[i] = start
	}
	writes, asked := 0, 0
	for now := start; now.Before(start.Add(seconds * time.Second)); now = now.Add(10 * time.Millisecond) {
		for i := range due {
			if due[i].IsZero() || due[i].After(now) {
				continue
			}
			asked++
			granted, wait := b.take(now, compactionBudget)
			if granted == 0 {
				due[i] = now.Add(wait)
				continue
			}
			writes += leastCompaction
			b.giveBack(granted - leastCompaction)
			due[i] = time.Time{}
		}
	}
	if most := compactionBurst + seconds*compactionRate; writes > most || writes < most*9/10 {
		t.Errorf("%d writes in %d s, want up to %d and not many less", writes, seconds, most)
	}
	if asked > 4*services {
		t.Errorf("%d Services asked %d times", services, asked)
	}
}

func TestBudget_WhoIsTurnedAwayGetsOnLater(t *testing.T) {
	b := newBudget()
	now := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	for range compactionBurst / compactionBudget {
		if granted, wait := b.take(now, compactionBudget); granted != compactionBudget || wait != 0 {
			t.Fatalf("granted %d after %v, want %d", granted, wait, compactionBudget)
		}
	}
	granted, wait := b.take(now, compactionBudget)
	if granted != 0 || wait <= 0 || wait > time.Second {
		t.Fatalf("granted %d after %v, want none for less than a second", granted, wait)
	}
	if granted, _ := b.take(now.Add(wait), compactionBudget); granted < leastBudget {
		t.Errorf("granted %d then, want at least %d", granted, leastBudget)
	}
}
