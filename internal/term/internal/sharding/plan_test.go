package sharding_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/term/internal/sharding"
)

const (
	patience = 5 * time.Second
	settle   = 30 * time.Second
)

// two is a pair of members; mine is a shard that self owns among them, yours one that the other does.
var two = members(2, 4)

func ownedBy(t *testing.T, id string) int {
	t.Helper()
	for shard := range 4 {
		if sharding.Owner(shard, two) == id {
			return shard
		}
	}
	t.Fatalf("%q owns none of 4 shards; choose other names", id)
	return 0
}

func held() sharding.Shard { return sharding.Shard{} }

// situation is one in which replica-0 has nothing to do: the other holds every shard.
func situation(number int, shard sharding.Shard) sharding.Situation {
	s := sharding.Situation{
		Self: "replica-0", Members: two, Moves: 1, Patience: patience, Settle: settle,
		Shards: []sharding.Shard{held(), held(), held(), held()}, Holders: []string{"replica-1"},
	}
	s.Shards[number] = shard
	return s
}

func TestPlan_OneShard(t *testing.T) {
	mine, yours := ownedBy(t, "replica-0"), ownedBy(t, "replica-1")
	for name, test := range map[string]struct {
		number int
		shard  sharding.Shard
		want   sharding.Decision
	}{
		"vacant and mine is claimed": {
			number: mine, shard: sharding.Shard{Vacant: true},
			want: step(sharding.Step{Shard: mine, Verb: sharding.Claim, Reason: sharding.Vacant}),
		},
		"vacant and mine rests": {number: mine, shard: sharding.Shard{Vacant: true, Work: sharding.Resting}},
		"vacant and yours is left to you": {
			number: yours, shard: sharding.Shard{Vacant: true, VacantFor: time.Second},
			want: sharding.Decision{Wait: 4 * time.Second},
		},
		"vacant and neglected by you is claimed": {
			number: yours, shard: sharding.Shard{Vacant: true, VacantFor: patience},
			want: step(sharding.Step{Shard: yours, Verb: sharding.Claim, Reason: sharding.Neglected}),
		},
		"held by another, though mine, is awaited": {number: mine, shard: held()},
		"ours without work is confirmed": {
			number: mine, shard: sharding.Shard{Ours: true},
			want: step(sharding.Step{Shard: mine, Verb: sharding.Claim, Reason: sharding.Unconfirmed}),
		},
		"running and mine stays": {number: mine, shard: sharding.Shard{Ours: true, Work: sharding.Running}},
		"running and yours is given to you": {
			number: yours, shard: sharding.Shard{Ours: true, Work: sharding.Running},
			want: step(sharding.Step{Shard: yours, Verb: sharding.Release, Reason: sharding.Moved, To: "replica-1"}),
		},
		"ending is left to end": {number: yours, shard: sharding.Shard{Ours: true, Work: sharding.Ending}},
		"ending is not claimed again": {
			number: mine, shard: sharding.Shard{Vacant: true, Work: sharding.Ending},
		},
		"borrowed is kept for a while": {
			number: yours, shard: sharding.Shard{Ours: true, Work: sharding.Running, Borrowed: true, HeldFor: 10 * time.Second},
			want: sharding.Decision{Wait: 20 * time.Second},
		},
		"borrowed is given back": {
			number: yours, shard: sharding.Shard{Ours: true, Work: sharding.Running, Borrowed: true, HeldFor: settle},
			want: step(sharding.Step{Shard: yours, Verb: sharding.Release, Reason: sharding.Moved, To: "replica-1"}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, sharding.Plan(situation(test.number, test.shard))); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}

func step(s sharding.Step) sharding.Decision { return sharding.Decision{Steps: []sharding.Step{s}} }

func TestPlan_MovesKeepToTheirBudget(t *testing.T) {
	s := situation(0, held())
	s.Members = members(2, 64)
	s.Shards = make([]sharding.Shard, 64)
	for number := range s.Shards {
		s.Shards[number] = sharding.Shard{Ours: true, Work: sharding.Running}
	}
	s.Moves = 8
	decision := sharding.Plan(s)
	yours := 0
	for number := range s.Shards {
		if sharding.Owner(number, s.Members) == "replica-1" {
			yours++
		}
	}
	if len(decision.Steps) != 8 || len(decision.Postponed) != yours-8 {
		t.Errorf("%d moves and %d postponed, want 8 and %d", len(decision.Steps), len(decision.Postponed), yours-8)
	}
}

func TestPlan_DifferentDivisionsNeverWorkSideBySide(t *testing.T) {
	old := sharding.Member{ID: "old", Shards: 8, Joined: 1}
	self := sharding.Member{ID: "replica-0", Shards: 4, Joined: 2}
	vacant := []sharding.Shard{{Vacant: true}, {Vacant: true}, {Vacant: true}, {Vacant: true}}
	for name, test := range map[string]struct {
		s           sharding.Situation
		wantBlocked string
		wantSteps   int
	}{
		"the first member divides otherwise": {
			s:           sharding.Situation{Self: self.ID, Members: []sharding.Member{old, self}, Shards: vacant},
			wantBlocked: `replica "old", which joined first, divides the work into 8 shards`,
		},
		"a later member divides otherwise": {
			s: sharding.Situation{
				Self: self.ID, Members: []sharding.Member{self, {ID: "new", Shards: 8, Joined: 3}}, Shards: vacant,
			},
			wantSteps: 4,
		},
		"a later member still holds a shard of the other division": {
			s: sharding.Situation{
				Self: self.ID, Members: []sharding.Member{self, {ID: "new", Shards: 8, Joined: 3}}, Shards: vacant,
				Holders: []string{"new"},
			},
			wantBlocked: `replica "new" still holds a shard of 8`,
		},
		"what runs is given up to the first member": {
			s: sharding.Situation{
				Self: self.ID, Members: []sharding.Member{old, self}, Moves: 4,
				Shards:  []sharding.Shard{{Ours: true, Work: sharding.Running}, held(), held(), held()},
				Holders: []string{self.ID},
			},
			wantBlocked: `replica "old", which joined first`, wantSteps: 1,
		},
		"not a member": {
			s:           sharding.Situation{Self: "stranger", Members: []sharding.Member{self}, Shards: vacant},
			wantBlocked: "not among the members",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := sharding.Plan(test.s)
			if len(got.Steps) != test.wantSteps || !strings.Contains(got.Blocked, test.wantBlocked) ||
				(got.Blocked == "") != (test.wantBlocked == "") {
				t.Errorf("%d steps, blocked %q; want %d, %q", len(got.Steps), got.Blocked, test.wantSteps, test.wantBlocked)
			}
		})
	}
}

// drawSituation draws anything a replica may see, contradictions included.
func drawSituation(t *rapid.T) sharding.Situation {
	shards := rapid.IntRange(1, 12).Draw(t, "shards")
	ms := drawMembers(t, shards)
	for i := range ms {
		ms[i].Shards = rapid.SampledFrom([]int{shards, shards, shards, 0, 3}).Draw(t, "division")
		ms[i].Unready = rapid.Bool().Draw(t, "unready")
		ms[i].Leaving = i > 0 && rapid.IntRange(0, 4).Draw(t, "leaving") == 0 // one that leaves plans nothing
	}
	s := sharding.Situation{
		Self: ms[0].ID, Members: ms, Moves: rapid.IntRange(0, 5).Draw(t, "moves"), Patience: patience, Settle: settle,
		Failing: rapid.Bool().Draw(t, "failing"),
	}
	for range shards {
		s.Shards = append(s.Shards, sharding.Shard{
			Work:   rapid.SampledFrom([]sharding.Work{sharding.Idle, sharding.Resting, sharding.Running, sharding.Ending}).Draw(t, "work"),
			Vacant: rapid.Bool().Draw(t, "vacant"), VacantFor: seconds(t), Ours: rapid.Bool().Draw(t, "ours"),
			Borrowed: rapid.Bool().Draw(t, "borrowed"), HeldFor: seconds(t),
		})
	}
	for _, m := range ms {
		if rapid.Bool().Draw(t, "holds") {
			s.Holders = append(s.Holders, m.ID)
		}
	}
	return s
}

func seconds(t *rapid.T) time.Duration {
	return time.Duration(rapid.IntRange(0, 60).Draw(t, "seconds")) * time.Second
}

func clone(s sharding.Situation) sharding.Situation {
	s.Members = append([]sharding.Member(nil), s.Members...)
	s.Shards = append([]sharding.Shard(nil), s.Shards...)
	s.Holders = append([]string(nil), s.Holders...)
	return s
}

// carriedOut is the situation right after a plan was carried out.
func carriedOut(s sharding.Situation, d sharding.Decision) sharding.Situation {
	s = clone(s)
	for _, step := range d.Steps {
		shard := &s.Shards[step.Shard]
		if step.Verb == sharding.Release {
			shard.Work = sharding.Ending
			s.Moves--
			continue
		}
		*shard = sharding.Shard{Work: sharding.Running, Ours: true, Borrowed: step.Reason == sharding.Neglected}
	}
	return s
}

func TestPlan_CarriedOutLeavesNothingToDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSituation(t)
		before := clone(s)
		first := sharding.Plan(s)
		if diff := cmp.Diff(before, s); diff != "" {
			t.Fatalf("Plan changed its argument:\n%s", diff)
		}
		if again := sharding.Plan(s); !cmp.Equal(first, again) {
			t.Fatalf("two plans of one situation differ:\n%s", cmp.Diff(first, again))
		}
		// A shard confirmed although another owns it may have to be given away next; that is a second step, not a repetition.
		after := sharding.Plan(carriedOut(s, first))
		for _, step := range after.Steps {
			if step.Verb == sharding.Claim || !confirmed(first, step.Shard) {
				t.Fatalf("after %+v there is still %+v", first.Steps, step)
			}
		}
	})
}

func confirmed(d sharding.Decision, shard int) bool {
	for _, step := range d.Steps {
		if step.Shard == shard && step.Reason == sharding.Unconfirmed {
			return true
		}
	}
	return false
}

func TestPlan_OnlyWhatIsFreeIsClaimedAndOnlyWhatRunsIsReleased(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSituation(t)
		d := sharding.Plan(s)
		releases, last := 0, -1
		for _, step := range d.Steps {
			shard := s.Shards[step.Shard]
			switch {
			case step.Shard <= last:
				t.Fatalf("steps are not ordered by shard: %+v", d.Steps)
			case step.Verb == sharding.Claim && (shard.Work != sharding.Idle || !shard.Vacant && !shard.Ours || d.Blocked != ""):
				t.Fatalf("claim of %+v while blocked by %q", shard, d.Blocked)
			case step.Verb == sharding.Release && (shard.Work != sharding.Running || step.To == s.Self || step.To == ""):
				t.Fatalf("release of %+v to %q", shard, step.To)
			case step.Verb == sharding.Release:
				releases++
			}
			last = step.Shard
		}
		if releases > s.Moves {
			t.Fatalf("%d releases with a budget of %d", releases, s.Moves)
		}
	})
}

func TestPlan_MembersAgreeOnOneClaimant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const shards = 8
		ms := drawReadiness(t, drawMembers(t, shards))
		claimed := map[int][]string{}
		for _, m := range ms {
			s := sharding.Situation{Self: m.ID, Members: ms, Patience: patience, Shards: make([]sharding.Shard, shards)}
			for number := range s.Shards {
				s.Shards[number].Vacant = true
			}
			for _, step := range sharding.Plan(s).Steps {
				claimed[step.Shard] = append(claimed[step.Shard], m.ID)
			}
		}
		want := map[int][]string{}
		for number := range shards {
			want[number] = []string{sharding.Owner(number, ms)}
		}
		if diff := cmp.Diff(want, claimed, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("claimants of each shard (-want +got):\n%s", diff)
		}
	})
}
