package sharding_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/term/internal/sharding"
)

// drawReadiness draws which members can do the work.
func drawReadiness(t *rapid.T, ms []sharding.Member) []sharding.Member {
	drawn := append([]sharding.Member(nil), ms...)
	for i := range drawn {
		drawn[i].Unready = rapid.Bool().Draw(t, "unready")
	}
	return drawn
}

// unreadyOf returns who is unready among members.
func unreadyOf(ms []sharding.Member) map[string]bool {
	unready := map[string]bool{}
	for _, m := range ms {
		if m.Unready {
			unready[m.ID] = true
		}
	}
	return unready
}

func TestPlan_ReadyMembersComeFirst(t *testing.T) {
	mine, yours := ownedBy(t, "replica-0"), ownedBy(t, "replica-1")
	running := sharding.Shard{Ours: true, Work: sharding.Running}
	give := func(number int, reason sharding.Reason) sharding.Decision {
		return step(sharding.Step{Shard: number, Verb: sharding.Release, Reason: reason, To: "replica-1"})
	}
	for name, test := range map[string]struct {
		me, you bool // unready
		failing bool
		number  int
		shard   sharding.Shard
		want    sharding.Decision
	}{
		"an unready newcomer is given nothing": {you: true, number: yours, shard: running},
		"vacant, and its owner is unready": {
			you: true, number: yours, shard: sharding.Shard{Vacant: true},
			want: step(sharding.Step{Shard: yours, Verb: sharding.Claim, Reason: sharding.Vacant}),
		},
		"vacant and mine, but I am unready": {
			me: true, number: mine, shard: sharding.Shard{Vacant: true}, want: sharding.Decision{Wait: patience},
		},
		"vacant, I am unready, and you let it lie": {
			me: true, number: mine, shard: sharding.Shard{Vacant: true, VacantFor: patience},
			want: step(sharding.Step{Shard: mine, Verb: sharding.Claim, Reason: sharding.Neglected}),
		},
		"vacant and mine, and nobody is ready": {
			me: true, you: true, number: mine, shard: sharding.Shard{Vacant: true},
			want: step(sharding.Step{Shard: mine, Verb: sharding.Claim, Reason: sharding.Vacant}),
		},
		"running while I may yet become ready stays":   {me: true, number: mine, shard: running},
		"running while I fail goes to who is ready":    {me: true, failing: true, number: mine, shard: running, want: give(mine, sharding.Unready)},
		"running while all fail stays":                 {me: true, you: true, failing: true, number: mine, shard: running},
		"running while all fail stays, also if yours":  {me: true, you: true, failing: true, number: yours, shard: running},
		"running and mine before others know I fail":   {failing: true, number: mine, shard: running},
		"running and yours goes to you when I am fine": {number: yours, shard: running, want: give(yours, sharding.Moved)},
		"running because you had let it lie stays for a while though I fail": {
			me: true, failing: true, number: mine,
			shard: sharding.Shard{Ours: true, Work: sharding.Running, Borrowed: true, HeldFor: 10 * time.Second},
			want:  sharding.Decision{Wait: 20 * time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := situation(test.number, test.shard)
			s.Members = append([]sharding.Member(nil), two...)
			s.Members[0].Unready, s.Members[1].Unready, s.Failing = test.me, test.you, test.failing
			if diff := cmp.Diff(test.want, sharding.Plan(s)); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}

// Two divisions never work side by side, whether or not anybody is ready.
func TestPlan_AnotherDivisionIsGivenUpEvenToTheUnready(t *testing.T) {
	s := sharding.Situation{
		Self: "new", Moves: 1, Shards: []sharding.Shard{{Ours: true, Work: sharding.Running}},
		Members: []sharding.Member{{ID: "old", Shards: 8, Joined: 1, Unready: true}, {ID: "new", Shards: 1, Joined: 2}},
	}
	want := []sharding.Step{{Verb: sharding.Release, Reason: sharding.Divided, To: "old"}}
	if diff := cmp.Diff(want, sharding.Plan(s).Steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

func TestOwner_UnreadyOnlyWhereNobodyIsReady(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := drawReadiness(t, drawMembers(t, 16))
		unready := unreadyOf(ms)
		for shard := range 16 {
			if id := sharding.Owner(shard, ms); unready[id] && len(unready) < len(ms) {
				t.Fatalf("shard %d belongs to %q, which is unready, among %+v", shard, id, ms)
			}
		}
	})
}

// When one member's readiness changes, no shard moves between two others, unless it was the last ready member or is the
// first: then all are ranked anew.
func TestOwner_ReadinessMovesOnlyWhatItMust(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := drawReadiness(t, drawMembers(t, 16))
		changed := rapid.IntRange(0, len(before)-1).Draw(t, "changed")
		after := append([]sharding.Member(nil), before...)
		after[changed].Unready = !after[changed].Unready
		if len(unreadyOf(before)) == len(before) || len(unreadyOf(after)) == len(after) {
			t.Skip("nobody is ready before or after")
		}
		for shard := range 16 {
			from, to := sharding.Owner(shard, before), sharding.Owner(shard, after)
			if id := before[changed].ID; from != to && from != id && to != id {
				t.Fatalf("shard %d moved from %q to %q because %q changed", shard, from, to, id)
			}
		}
	})
}

// Whatever a replica sees, it gives a shard of its own division only to a member that is ready, and while it is itself
// unready only if it fails.
func TestPlan_ShardsAreGivenOnlyToTheReady(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSituation(t)
		unready := unreadyOf(s.Members)
		d := sharding.Plan(s)
		for _, step := range append(d.Steps, d.Postponed...) {
			if step.Verb != sharding.Release || step.Reason == sharding.Divided {
				continue
			}
			if unready[step.To] || unready[s.Self] && !s.Failing || (step.Reason == sharding.Unready) != unready[s.Self] {
				t.Fatalf("%+v although unready are %v and failing = %t", step, unready, s.Failing)
			}
		}
	})
}

// Where all are unready nobody gives anything away, and everything vacant finds somebody.
func TestPlan_WhereNobodyIsReadyNothingMovesAndAllIsClaimed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const shards = 8
		ms := drawMembers(t, shards)
		for i := range ms {
			ms[i].Unready = true
		}
		claims := make([]int, shards)
		for _, m := range ms {
			s := sharding.Situation{Self: m.ID, Members: ms, Patience: patience, Settle: settle, Moves: shards, Failing: rapid.Bool().Draw(t, "failing")}
			for number := range shards {
				if number%2 == 0 {
					s.Shards = append(s.Shards, sharding.Shard{Ours: true, Work: sharding.Running, HeldFor: time.Hour})
				} else {
					s.Shards = append(s.Shards, sharding.Shard{Vacant: true})
				}
			}
			for _, step := range sharding.Plan(s).Steps {
				if step.Verb != sharding.Claim {
					t.Fatalf("%s: %+v", m.ID, step)
				}
				claims[step.Shard]++
			}
		}
		if diff := cmp.Diff([]int{0, 1, 0, 1, 0, 1, 0, 1}, claims); diff != "" {
			t.Fatalf("claims of each shard (-want +got):\n%s", diff)
		}
	})
}
