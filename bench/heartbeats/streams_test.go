package main

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestBeat_KeepsThePaceAndCountsAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &streamSet{}
		for range 10 {
			c.beats = append(c.beats, func() error {
				time.Sleep(time.Millisecond) // the answer
				return nil
			})
		}
		begin := time.Now()
		answered, err := c.beat(t.Context(), 5*time.Second, time.Second)
		if answered != 50 || err != nil {
			t.Errorf("%d heartbeats, %v; want 5 of each of 10 streams", answered, err)
		}
		if took := time.Since(begin); took > 5*time.Second+time.Millisecond {
			t.Errorf("it took %v", took)
		}
		answered, err = c.beat(t.Context(), time.Second, 0)
		if answered != 10_000 || err != nil {
			t.Errorf("%d heartbeats without a pace, %v; want 1,000 of each", answered, err)
		}
	})
}

func TestBeat_EndsWithTheFirstThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		c := &streamSet{beats: []func() error{
			func() error { time.Sleep(time.Millisecond); return nil },
			func() error { return broken },
		}}
		begin := time.Now()
		if _, err := c.beat(t.Context(), time.Minute, time.Second); !errors.Is(err, broken) {
			t.Errorf("error %v, want that of the stream", err)
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("the others went on for %v", took)
		}
	})
}
