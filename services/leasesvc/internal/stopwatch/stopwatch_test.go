package stopwatch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

func TestWatch_StandsStillWhileNobodyReadsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Start(100*time.Millisecond, time.Second)
		for _, step := range []struct {
			sleep, now, lost time.Duration
		}{
			{sleep: 500 * time.Millisecond, now: 500 * time.Millisecond},
			{sleep: time.Second, now: 1500 * time.Millisecond},
			{sleep: time.Minute, now: 1600 * time.Millisecond, lost: time.Minute - 100*time.Millisecond},
			{sleep: 100 * time.Millisecond, now: 1700 * time.Millisecond},
		} {
			time.Sleep(step.sleep)
			now, lost := c.Read()
			if now != monotonic.Instant(step.now) || lost != step.lost {
				t.Errorf("after %v: now %v, lost %v; want %v, %v", step.sleep, time.Duration(now), lost, step.now, step.lost)
			}
		}
		now, _ := c.Read()
		if got := time.Until(c.Wall(now, now.Add(time.Second))); got != time.Second {
			t.Errorf("an instant in a second is %v away by the wall clock", got)
		}
	})
}
