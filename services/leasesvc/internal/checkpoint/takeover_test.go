package checkpoint_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpoint"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// history is a term of a shard: holders beat and fall silent, and some writes fail, with or without
// effect.
type history struct {
	random        *rand.Rand
	tracker       checkpoint.Tracker
	now           monotonic.Instant
	lastBeats     map[string]monotonic.Instant
	silentUntil   map[string]monotonic.Instant // a holder does not beat before this time
	stored        []byte
	lastConfirmed monotonic.Instant // the last look with a known result
}

func newHistory(seed uint64) *history {
	h := &history{
		random: rand.New(rand.NewPCG(seed, 42)), tracker: checkpoint.NewTracker(rules(), true),
		lastBeats: map[string]monotonic.Instant{}, silentUntil: map[string]monotonic.Instant{},
	}
	for i := range 30 {
		h.lastBeats[fmt.Sprintf("node-%d", i)] = 0
	}
	return h
}

// second advances by a second, in which some holders beat, and then looks.
func (h *history) second() {
	end := h.now.Add(time.Second)
	for i := range 30 {
		name := fmt.Sprintf("node-%d", i)
		beat := h.now.Add(time.Duration(h.random.Int64N(int64(time.Second))))
		switch {
		case h.silentUntil[name] > beat:
		case h.random.IntN(60) == 0:
			h.silentUntil[name] = beat.Add(time.Duration(h.random.Int64N(int64(2 * time.Minute))))
		case h.random.IntN(5) == 0:
			h.lastBeats[name] = beat
		}
	}
	h.now = end
	h.look()
}

func (h *history) look() {
	var silences []checkpoint.Entry
	for name, lastBeat := range h.lastBeats {
		silences = append(silences, silent(name, h.now.Sub(lastBeat)))
	}
	plan := h.tracker.Plan(h.now, silences)
	if plan.Action != checkpoint.None {
		fails, effective := h.random.IntN(4) == 0, h.random.IntN(2) == 0
		if !fails || effective {
			h.stored = plan.Value
		}
		if fails {
			h.tracker = h.tracker.Unconfirmed(h.now, plan)
			return
		}
	}
	h.tracker, h.lastConfirmed = h.tracker.Applied(h.now, plan), h.now
}

// The replica is lost at a random time. A holder that inherits less than MinGrace stays expired by
// the Rule. A holder inherits more than its true silence only if it beat after the last look with a
// known result.
func TestTakeover_LiveHoldersLoseNoMoreThanTheRuleAllows(t *testing.T) {
	rule, settled, inherited := nodeRule(), 0, 0
	for seed := range uint64(40) {
		h := newHistory(seed)
		for range 60 + h.random.IntN(240) {
			h.second()
		}
		if h.stored == nil {
			continue
		}
		entries, err := checkpoint.Decode(h.stored)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			silence := rule.Inherited(e.Silence)
			inherited++
			if rule.StaysExpired(e.Silence) {
				settled++
			} else if left := rule.TTL - silence; left < rule.MinGrace {
				t.Errorf("seed %d: %s, stored with silence %v, keeps %v", seed, e.Name, e.Silence, left)
			}
			if lastBeat := h.lastBeats[e.Name]; h.now.Sub(lastBeat) < silence && lastBeat < h.lastConfirmed {
				t.Errorf("seed %d: %s beat %v before the loss; the last look was %v before it; it inherits %v",
					seed, e.Name, h.now.Sub(lastBeat), h.now.Sub(h.lastConfirmed), silence)
			}
		}
	}
	if settled < 100 || inherited < settled+100 {
		t.Errorf("%d holders were taken over, %d of them expired: too few for this test", inherited, settled)
	}
}
