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
type reign struct {
	random *rand.Rand
	ledger checkpoint.Tracker
	now    monotonic.Instant
	heard  map[string]monotonic.Instant
	mute   map[string]monotonic.Instant // until when a holder does not beat
	stored []byte
	clean  monotonic.Instant // of the last look that left what is stored true
}

func newReign(seed uint64) *reign {
	r := &reign{
		random: rand.New(rand.NewPCG(seed, 42)), ledger: checkpoint.NewTracker(rules(), true),
		heard: map[string]monotonic.Instant{}, mute: map[string]monotonic.Instant{},
	}
	for i := range 30 {
		r.heard[fmt.Sprintf("node-%d", i)] = 0
	}
	return r
}

// second passes: who is not mute beats at some time of it, once in five, and then the replica looks.
func (r *reign) second() {
	end := r.now.Add(time.Second)
	for i := range 30 {
		name := fmt.Sprintf("node-%d", i)
		beat := r.now.Add(time.Duration(r.random.Int64N(int64(time.Second))))
		switch {
		case r.mute[name] > beat:
		case r.random.IntN(60) == 0:
			r.mute[name] = beat.Add(time.Duration(r.random.Int64N(int64(2 * time.Minute))))
		case r.random.IntN(5) == 0:
			r.heard[name] = beat
		}
	}
	r.now = end
	r.look()
}

func (r *reign) look() {
	var silences []checkpoint.Entry
	for name, heard := range r.heard {
		silences = append(silences, silent(name, r.now.Sub(heard)))
	}
	plan := r.ledger.Plan(r.now, silences)
	if plan.Action != checkpoint.None {
		fails, effective := r.random.IntN(4) == 0, r.random.IntN(2) == 0
		if !fails || effective {
			r.stored = plan.Value
		}
		if fails {
			r.ledger = r.ledger.Unconfirmed(r.now, plan)
			return
		}
	}
	r.ledger, r.clean = r.ledger.Applied(r.now, plan), r.now
}

// Whenever the replica is lost: who is taken over with less than a floor was silent for a grace and a floor before it was
// written, and if it beat since, then after the last look whose outcome is known. Nobody else is worse off than by what is true.
func TestTakeover_CostsTheLivingNoMoreThanTheRuleSays(t *testing.T) {
	rule, settled, inherited := nodeRule(), 0, 0
	for seed := range uint64(40) {
		r := newReign(seed)
		for range 60 + r.random.IntN(240) {
			r.second()
		}
		if r.stored == nil {
			continue
		}
		entries, err := checkpoint.Decode(r.stored)
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
			if heard := r.heard[e.Name]; r.now.Sub(heard) < silence && heard < r.clean {
				t.Errorf("seed %d: %s beat %v before the loss, was looked at %v before it, and is taken over with %v",
					seed, e.Name, r.now.Sub(heard), r.now.Sub(r.clean), silence)
			}
		}
	}
	if settled < 100 || inherited < settled+100 {
		t.Errorf("%d holders were taken over, %d of them expired: the histories show too little", inherited, settled)
	}
}
