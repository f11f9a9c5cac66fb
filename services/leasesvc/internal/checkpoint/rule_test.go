package checkpoint_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpoint"
)

// nodeRule is that of the class node: a beat every 5 s, a grace of 20 s, and 5 s to find a new server.
func nodeRule() checkpoint.Rule {
	return checkpoint.Rule{Suspect: 12500 * time.Millisecond, TTL: 20 * time.Second, MinGrace: 10 * time.Second}
}

func TestRule_InheritsSilence(t *testing.T) {
	short := checkpoint.Rule{Suspect: 3 * time.Second, TTL: 5 * time.Second, MinGrace: 6 * time.Second}
	for _, c := range []struct {
		what    string
		rule    checkpoint.Rule
		silence time.Duration
		want    time.Duration
	}{
		{"a suspect is left a floor", nodeRule(), 13 * time.Second, 10 * time.Second},
		{"so is one that has just expired", nodeRule(), 20 * time.Second, 10 * time.Second},
		{"and one that was not expired for a floor", nodeRule(), 30*time.Second - 1, 10 * time.Second},
		{"who was stays expired", nodeRule(), 30 * time.Second, 30 * time.Second},
		{"the long dead stay dead", nodeRule(), time.Hour, time.Hour},
		{"a short silence counts whole", nodeRule(), 4 * time.Second, 4 * time.Second},
		{"a grace that is shorter than a floor is granted whole", short, 4 * time.Second, 0},
		{"and its dead stay dead", short, 11 * time.Second, 11 * time.Second},
	} {
		if got := c.rule.Inherited(c.silence); got != c.want {
			t.Errorf("%s: %v inherits %v, want %v", c.what, c.silence, got, c.want)
		}
	}
}

// Whatever was stored: a holder either was expired for a floor when that was written, or has a floor now, and never inherits
// more silence than it had.
func TestRule_NeverTakesTheFloorFromTheLiving(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		rule := checkpoint.Rule{MinGrace: time.Duration(random.Int64N(int64(time.Minute)))}
		rule.Suspect = time.Duration(random.Int64N(int64(time.Minute)))
		rule.TTL = rule.Suspect + time.Duration(random.Int64N(int64(time.Minute)))
		silence := time.Duration(random.Int64N(int64(5 * time.Minute)))
		got := rule.Inherited(silence)
		if got < 0 || got > silence {
			t.Fatalf("%+v: %v inherits %v", rule, silence, got)
		}
		wasDead := silence >= rule.TTL+rule.MinGrace
		if grace := rule.TTL - got; !wasDead && grace < min(rule.MinGrace, rule.TTL) {
			t.Fatalf("%+v: %v inherits %v, which leaves %v", rule, silence, got, grace)
		}
		if wasDead && got < rule.TTL {
			t.Fatalf("%+v: a holder that was silent for %v comes back to life with %v", rule, silence, got)
		}
	}
}
