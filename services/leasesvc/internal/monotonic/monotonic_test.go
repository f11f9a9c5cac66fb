package monotonic

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestClock_StandsStillWhileItIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := StartClock(100*time.Millisecond, time.Second)
		for _, step := range []struct {
			sleep, now, paused time.Duration
		}{
			{sleep: 500 * time.Millisecond, now: 500 * time.Millisecond},
			{sleep: time.Second, now: 1500 * time.Millisecond},
			{sleep: time.Minute, now: 1600 * time.Millisecond, paused: time.Minute - 100*time.Millisecond},
			{sleep: 100 * time.Millisecond, now: 1700 * time.Millisecond},
		} {
			time.Sleep(step.sleep)
			now, paused := c.Read()
			if now != Instant(step.now) || paused != step.paused {
				t.Errorf("after %v: now %v, paused %v; want %v, %v", step.sleep, time.Duration(now), paused, step.now, step.paused)
			}
		}
		now, _ := c.Read()
		if got := time.Until(c.WallTime(now, now.Add(time.Second))); got != time.Second {
			t.Errorf("an instant in a second is %v away in wall time", got)
		}
	})
}

// A step of the wall clock does not change the difference of two times with a monotonic reading.
func TestClock_UsesMonotonicReadings(t *testing.T) {
	c := StartClock(100*time.Millisecond, time.Second)
	c.Read()
	for name, instant := range map[string]time.Time{"origin": c.origin, "last": c.last, "origin of the reader": c.reader.origin} {
		if !strings.Contains(instant.String(), " m=") {
			t.Errorf("%s is %v, without a monotonic reading", name, instant)
		}
	}
}

func TestReader_DoesNotCountAnUndetectedPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := StartClock(100*time.Millisecond, time.Second)
		reader := c.Reader()
		time.Sleep(700 * time.Millisecond)
		if got := reader.Now(); got != Instant(700*time.Millisecond) {
			t.Errorf("%v after 700 ms", time.Duration(got))
		}
		time.Sleep(time.Hour) // the clock is not read: the process is paused
		if got := reader.Now(); got != Instant(time.Second) {
			t.Errorf("%v, want at most a second after the last Read", time.Duration(got))
		}
		now, _ := c.Read()
		if got := reader.Now(); got != now {
			t.Errorf("reader %v, clock %v", time.Duration(got), time.Duration(now))
		}
	})
}

// A process that runs a tenth of the time is late nearly all the time, although no gap is a pause.
func TestClock_CountsHowLateItIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := StartClock(25*time.Millisecond, time.Second)
		for range 10 {
			time.Sleep(10 * time.Millisecond) // an event before the tick
			c.Read()
		}
		if c.Late() != 0 {
			t.Errorf("late by %v although it was read within each tick", c.Late())
		}
		for range 10 {
			time.Sleep(100 * time.Millisecond)
			if _, paused := c.Read(); paused > 0 {
				t.Errorf("a gap within the tolerance is a pause of %v", paused)
			}
		}
		time.Sleep(10 * time.Second)
		c.Read()
		if want := 10*75*time.Millisecond + 9975*time.Millisecond; c.Late() != want {
			t.Errorf("late by %v, want %v", c.Late(), want)
		}
	})
}
