package writeback_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// Indexes of policies.
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

func nodeName(i int) string { return fmt.Sprintf("node-%06d", i) }

// fixture is a Schedule with the last beats of its holders.
type fixture struct {
	*writeback.Schedule
	beats map[uint32]monotonic.Instant
}

func newFixture() *fixture {
	return &fixture{Schedule: writeback.NewSchedule(policies), beats: map[uint32]monotonic.Instant{}}
}

// open opens a slot of phase 0 whose holder beats at the given second.
func (f *fixture) open(second float64, slot uint32, policy uint8) {
	f.beat(second, slot)
	f.Open(at(second), slot, writeback.SlotOptions{Policy: policy})
}

func (f *fixture) beat(second float64, slots ...uint32) {
	for _, slot := range slots {
		f.beats[slot] = at(second)
	}
}

func (f *fixture) start(second float64, budget int) []writeback.Write {
	return f.Start(at(second), func(slot uint32) monotonic.Instant { return f.beats[slot] }, budget)
}

// write starts all due writes and lets them succeed.
func (f *fixture) write(second float64) []writeback.Write {
	writes := f.start(second, 1000)
	for _, w := range writes {
		f.Succeeded(at(second), w)
	}
	return writes
}

func expect(t *testing.T, what string, got []writeback.Write, want ...writeback.Write) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
