package writeback

import (
	"math/rand/v2"
	"testing"
	"time"
)

// The clock of a writer steps by up to an hour at any write, as does that of the next leader. The
// renewTime never goes back, and each renewal changes it, so that a reader sees a beat.
func TestUpdatedLease_SteppedClocksNeverTakeTheRenewTimeBack(t *testing.T) {
	random := rand.New(rand.NewPCG(17, 12))
	lease := NewLease(testUpdate, "uid-1")
	clock := testUpdate.RenewTime
	for n := range 2000 {
		if random.IntN(4) == 0 {
			clock = clock.Add(time.Duration(2*random.Int64N(int64(time.Hour))) - time.Hour)
		}
		clock = clock.Add(10 * time.Second)
		update := testUpdate
		if update.RenewTime = clock; random.IntN(5) == 0 {
			update.ExpireTime = clock.Add(update.Duration)
		}
		next, err := UpdatedLease(lease, update, "uid-1")
		if err != nil {
			t.Fatal(err)
		}
		before, after := lease.Spec.RenewTime.Time, next.Spec.RenewTime.Time
		if after.Before(before) || update.ExpireTime.IsZero() && !after.After(before) {
			t.Fatalf("write %d with the clock at %v changes the renewTime from %v to %v", n, clock, before, after)
		}
		if *next.Spec.LeaseDurationSeconds < 1 {
			t.Fatalf("write %d has a duration of %d seconds, which kube-apiserver refuses", n, *next.Spec.LeaseDurationSeconds)
		}
		lease = next
	}
}
