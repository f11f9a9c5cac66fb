package allocationcontroller

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
)

// hangCreates makes the create of each address in 10.0.1.0/24 hang.
func (w *fakeCluster) hangCreates() {
	w.onWrite(func(write string, after bool) error {
		if strings.HasPrefix(write, "create 10.0.1.") && !after {
			time.Sleep(workTimeout)
			return guarded.ErrUnavailable
		}
		return nil
	})
}

// countWrites counts the writes that succeeded and begin with a prefix.
func (w *fakeCluster) countWrites(prefix string) (n int) {
	for _, write := range w.writesDone() {
		if strings.HasPrefix(write, prefix) {
			n++
		}
	}
	return n
}

// As many creates hang at their first attempt as there are workers.
func TestStarvation_FirstAttemptsThatHangDelayNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		for i := range 2 * maxWorkers {
			w.addService(fmt.Sprint("hangs", i), fmt.Sprint("10.0.1.", i+1))
		}
		w.hangCreates()
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		for i := range 40 {
			address := fmt.Sprint("10.0.0.", i+1)
			w.addService(fmt.Sprint("lost", i), address)
			w.wantAllocatedWithin(t, 2*time.Second, address)
		}
	})
}

// A webhook fails between the deletes and the creates of many replacements. The addresses that it
// does not concern are allocated.
func TestStarvation_CreatesThatFailAfterTheirDeletesDelayNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.addService("other", "10.0.0.200")
		w.addAddress("10.0.0.200", "other")
		for i := range 2 * maxWorkers {
			address := fmt.Sprint("10.0.1.", i+1)
			w.addService(fmt.Sprint("owner", i), address)
			w.addAddress(address, "other")
		}
		w.hangCreates()
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(time.Minute)
		if deleted := w.countWrites("delete 10.0.1."); deleted > maxReplacing {
			t.Errorf("%d addresses in use were deleted and not created", deleted)
		}
		for i := range 40 {
			address := fmt.Sprint("10.0.0.", i+1)
			w.addService(fmt.Sprint("lost", i), address)
			w.wantAllocatedWithin(t, 2*time.Second, address)
		}
		w.onWrite(nil)
		time.Sleep(time.Minute)
		for i := range 2 * maxWorkers {
			if got, _ := (fakeObjects{w}).IPAddress(t.Context(), fmt.Sprint("10.0.1.", i+1)); got == nil || got.Parent.Name != fmt.Sprint("owner", i) {
				t.Errorf("10.0.1.%d is %+v, want it replaced", i+1, got)
			}
		}
	})
}
