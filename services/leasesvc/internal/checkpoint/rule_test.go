package checkpoint_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpoint"
)

// nodeRule is the rule of the class node: interval 5 s, grace period 20 s, and 5 s to reconnect.
func nodeRule() checkpoint.Rule {
	return checkpoint.Rule{Suspect: 12500 * time.Millisecond, TTL: 20 * time.Second, MinGrace: 10 * time.Second}
}

func TestInherited_FollowsFromTheSilence(t *testing.T) {
	short := checkpoint.Rule{Suspect: 3 * time.Second, TTL: 5 * time.Second, MinGrace: 6 * time.Second}
	for _, c := range []struct {
		what    string
		rule    checkpoint.Rule
		silence time.Duration
		want    time.Duration
	}{
		{"suspect keeps MinGrace", nodeRule(), 13 * time.Second, 10 * time.Second},
		{"just expired keeps MinGrace", nodeRule(), 20 * time.Second, 10 * time.Second},
		{"expired for less than MinGrace keeps MinGrace", nodeRule(), 30*time.Second - 1, 10 * time.Second},
		{"expired for MinGrace stays expired", nodeRule(), 30 * time.Second, 30 * time.Second},
		{"long expired stays expired", nodeRule(), time.Hour, time.Hour},
		{"short silence counts fully", nodeRule(), 4 * time.Second, 4 * time.Second},
		{"TTL below MinGrace gives the full grace", short, 4 * time.Second, 0},
		{"TTL below MinGrace, long expired", short, 11 * time.Second, 11 * time.Second},
	} {
		if got := c.rule.Inherited(c.silence); got != c.want {
			t.Errorf("%s: %v inherits %v, want %v", c.what, c.silence, got, c.want)
		}
	}
}

// A holder either was expired for MinGrace when its silence was stored, or keeps MinGrace. It never
// inherits more silence than was stored.
func TestInherited_LeavesMinGraceToLiveHolders(t *testing.T) {
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
		stayedExpired := silence >= rule.TTL+rule.MinGrace
		if grace := rule.TTL - got; !stayedExpired && grace < min(rule.MinGrace, rule.TTL) {
			t.Fatalf("%+v: %v inherits %v, which leaves %v", rule, silence, got, grace)
		}
		if stayedExpired && got < rule.TTL {
			t.Fatalf("%+v: a holder that was silent for %v is revived with %v", rule, silence, got)
		}
	}
}
