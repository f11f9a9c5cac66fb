package pauseclock

import (
	"strings"
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
		if got := time.Until(c.WallTime(now, now.Add(time.Second))); got != time.Second {
			t.Errorf("an instant in a second is %v away by the wall clock", got)
		}
	})
}

// A clock that is stepped moves no difference between two times that have a monotonic reading, and those here have.
func TestWatch_CountsByTheMonotonicClock(t *testing.T) {
	c := Start(100*time.Millisecond, time.Second)
	c.Read()
	for name, instant := range map[string]time.Time{"origin": c.origin, "last": c.last, "origin of the face": c.reader.origin} {
		if !strings.Contains(instant.String(), " m=") {
			t.Errorf("%s is %v: it has no monotonic reading", name, instant)
		}
	}
}

func TestFace_ShowsTheTimeAndNotWhatTheOwnerHasNotSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Start(100*time.Millisecond, time.Second)
		face := c.Reader()
		time.Sleep(700 * time.Millisecond)
		if got := face.Now(); got != monotonic.Instant(700*time.Millisecond) {
			t.Errorf("%v after 700 ms", time.Duration(got))
		}
		time.Sleep(time.Hour) // nobody read it: the process did not run
		if got := face.Now(); got != monotonic.Instant(time.Second) {
			t.Errorf("%v, want no more than a second beyond what the owner saw", time.Duration(got))
		}
		now, _ := c.Read()
		if got := face.Now(); got != now {
			t.Errorf("%v where the owner reads %v", time.Duration(got), time.Duration(now))
		}
	})
}
