package checkpoint_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpoint"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// reign is one replica's time with a shard: holders that beat and fall silent, looks, and writes of which some fail, with or
// without effect.
type history struct {
	random        *rand.Rand
	tracker       checkpoint.Tracker
	now           monotonic.Instant
	lastBeats     map[string]monotonic.Instant
	silentUntil   map[string]monotonic.Instant // until when a holder does not beat
	stored        []byte
	lastConfirmed monotonic.Instant // of the last look that left what is stored true
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

// second passes: who is not mute beats at some time of it, once in five, and then the replica looks.
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

// Whenever the replica is lost: who is taken over with less than a floor was silent for a grace and a floor before it was
// written, and if it beat since, then after the last look whose outcome is known. Nobody else is worse off than by what is true.
func TestTakeover_CostsTheLivingNoMoreThanTheRuleSays(t *testing.T) {
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
				t.Errorf("seed %d: %s, stored with %v, is left %v", seed, e.Name, e.Silence, left)
			}
			if lastBeat := h.lastBeats[e.Name]; h.now.Sub(lastBeat) < silence && lastBeat < h.lastConfirmed {
				t.Errorf("seed %d: %s beat %v before the loss, was looked at %v before it, and is taken over with %v",
					seed, e.Name, h.now.Sub(lastBeat), h.now.Sub(h.lastConfirmed), silence)
			}
		}
	}
	if settled < 100 || inherited < settled+100 {
		t.Errorf("%d holders were taken over, %d of them expired: the histories show too little", inherited, settled)
	}
}
