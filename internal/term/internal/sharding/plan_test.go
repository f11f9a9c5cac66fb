package sharding_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/term/internal/sharding"
)

const (
	claimDelay = 5 * time.Second
	minHold    = 30 * time.Second
)

// two has the members replica-0 (self) and replica-1 (the peer). In tests, own is a shard that self
// owns, and peers is one that the peer owns.
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

// newInput returns an input with which replica-0 has nothing to do, because replica-1 holds every
// shard, except for one given shard.
func newInput(number int, shard sharding.Shard) sharding.Input {
	s := sharding.Input{
		Self: "replica-0", Members: two, Moves: 1, ClaimDelay: claimDelay, MinHold: minHold,
		Shards: []sharding.Shard{held(), held(), held(), held()}, Leaders: []string{"replica-1"},
	}
	s.Shards[number] = shard
	return s
}

func TestPlan_OneShard(t *testing.T) {
	own, peers := ownedBy(t, "replica-0"), ownedBy(t, "replica-1")
	for name, test := range map[string]struct {
		number int
		shard  sharding.Shard
		want   sharding.Decision
	}{
		"vacant, owned by self: claimed": {
			number: own, shard: sharding.Shard{Vacant: true},
			want: step(sharding.Step{Shard: own, Verb: sharding.Claim, Reason: sharding.Vacant}),
		},
		"vacant, owned by self, backing off: left": {number: own, shard: sharding.Shard{Vacant: true, Work: sharding.BackingOff}},
		"vacant, owned by peer: left to peer": {
			number: peers, shard: sharding.Shard{Vacant: true, VacantFor: time.Second},
			want: sharding.Decision{Wait: 4 * time.Second},
		},
		"vacant, unclaimed by peer: claimed": {
			number: peers, shard: sharding.Shard{Vacant: true, VacantFor: claimDelay},
			want: step(sharding.Step{Shard: peers, Verb: sharding.Claim, Reason: sharding.Unclaimed}),
		},
		"held by peer, owned by self: left": {number: own, shard: held()},
		"ours without body: confirmed": {
			number: own, shard: sharding.Shard{Ours: true},
			want: step(sharding.Step{Shard: own, Verb: sharding.Claim, Reason: sharding.Unconfirmed}),
		},
		"running, owned by self: kept": {number: own, shard: sharding.Shard{Ours: true, Work: sharding.Running}},
		"running, owned by peer: released": {
			number: peers, shard: sharding.Shard{Ours: true, Work: sharding.Running},
			want: step(sharding.Step{Shard: peers, Verb: sharding.Release, Reason: sharding.Moved, To: "replica-1"}),
		},
		"ending, owned by peer: left": {number: peers, shard: sharding.Shard{Ours: true, Work: sharding.Ending}},
		"ending, owned by self: not claimed again": {
			number: own, shard: sharding.Shard{Vacant: true, Work: sharding.Ending},
		},
		"borrowed for less than MinHold: kept": {
			number: peers, shard: sharding.Shard{Ours: true, Work: sharding.Running, Borrowed: true, HeldFor: 10 * time.Second},
			want: sharding.Decision{Wait: 20 * time.Second},
		},
		"borrowed for MinHold: released": {
			number: peers, shard: sharding.Shard{Ours: true, Work: sharding.Running, Borrowed: true, HeldFor: minHold},
			want: step(sharding.Step{Shard: peers, Verb: sharding.Release, Reason: sharding.Moved, To: "replica-1"}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, sharding.Plan(newInput(test.number, test.shard))); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}

func step(s sharding.Step) sharding.Decision { return sharding.Decision{Steps: []sharding.Step{s}} }

func TestPlan_MovesAreLimited(t *testing.T) {
	s := newInput(0, held())
	s.Members = members(2, 64)
	s.Shards = make([]sharding.Shard, 64)
	for number := range s.Shards {
		s.Shards[number] = sharding.Shard{Ours: true, Work: sharding.Running}
	}
	s.Moves = 8
	decision := sharding.Plan(s)
	peers := 0
	for number := range s.Shards {
		if sharding.Owner(number, s.Members) == "replica-1" {
			peers++
		}
	}
	if len(decision.Steps) != 8 || len(decision.Postponed) != peers-8 {
		t.Errorf("%d moves and %d postponed, want 8 and %d", len(decision.Steps), len(decision.Postponed), peers-8)
	}
}

func TestPlan_DifferentShardCountsNeverRunTogether(t *testing.T) {
	old := sharding.Member{ID: "old", Shards: 8, Joined: 1}
	self := sharding.Member{ID: "replica-0", Shards: 4, Joined: 2}
	vacant := []sharding.Shard{{Vacant: true}, {Vacant: true}, {Vacant: true}, {Vacant: true}}
	for name, test := range map[string]struct {
		s           sharding.Input
		wantBlocked string
		wantSteps   int
	}{
		"anchor has another number of shards": {
			s:           sharding.Input{Self: self.ID, Members: []sharding.Member{old, self}, Shards: vacant},
			wantBlocked: `replica "old", which joined first, divides the work into 8 shards`,
		},
		"later member has another number of shards": {
			s: sharding.Input{
				Self: self.ID, Members: []sharding.Member{self, {ID: "new", Shards: 8, Joined: 3}}, Shards: vacant,
			},
			wantSteps: 4,
		},
		"later member with another number still holds a shard": {
			s: sharding.Input{
				Self: self.ID, Members: []sharding.Member{self, {ID: "new", Shards: 8, Joined: 3}}, Shards: vacant,
				Leaders: []string{"new"},
			},
			wantBlocked: `replica "new" still holds a shard of 8`,
		},
		"running shard is released to the anchor": {
			s: sharding.Input{
				Self: self.ID, Members: []sharding.Member{old, self}, Moves: 4,
				Shards:  []sharding.Shard{{Ours: true, Work: sharding.Running}, held(), held(), held()},
				Leaders: []string{self.ID},
			},
			wantBlocked: `replica "old", which joined first`, wantSteps: 1,
		},
		"not a member": {
			s:           sharding.Input{Self: "stranger", Members: []sharding.Member{self}, Shards: vacant},
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

// drawInput draws any input, including contradictory ones.
func drawInput(t *rapid.T) sharding.Input {
	shards := rapid.IntRange(1, 12).Draw(t, "shards")
	ms := drawMembers(t, shards)
	for i := range ms {
		ms[i].Shards = rapid.SampledFrom([]int{shards, shards, shards, 0, 3}).Draw(t, "shard count")
		ms[i].Rank, ms[i].RankFor = drawRank(t), seconds(t)
		ms[i].Leaving = i > 0 && rapid.IntRange(0, 4).Draw(t, "leaving") == 0 // a leaving replica does not plan
	}
	s := sharding.Input{
		Self: ms[0].ID, Members: ms, Moves: rapid.IntRange(0, 5).Draw(t, "moves"), ClaimDelay: claimDelay, MinHold: minHold,
		Failing: rapid.Bool().Draw(t, "failing"), Yielding: rapid.Bool().Draw(t, "yielding"), ReleasedRecently: rapid.Bool().Draw(t, "released recently"),
	}
	for range shards {
		s.Shards = append(s.Shards, sharding.Shard{
			Work:   rapid.SampledFrom([]sharding.Work{sharding.Idle, sharding.BackingOff, sharding.Running, sharding.Ending}).Draw(t, "work"),
			Vacant: rapid.Bool().Draw(t, "vacant"), VacantFor: seconds(t), Ours: rapid.Bool().Draw(t, "ours"),
			Borrowed: rapid.Bool().Draw(t, "borrowed"), HeldFor: seconds(t),
		})
	}
	for _, m := range ms {
		if rapid.Bool().Draw(t, "holds") {
			s.Leaders = append(s.Leaders, m.ID)
		}
	}
	return s
}

func seconds(t *rapid.T) time.Duration {
	return time.Duration(rapid.IntRange(0, 60).Draw(t, "seconds")) * time.Second
}

func clone(s sharding.Input) sharding.Input {
	s.Members = append([]sharding.Member(nil), s.Members...)
	s.Shards = append([]sharding.Shard(nil), s.Shards...)
	s.Leaders = append([]string(nil), s.Leaders...)
	return s
}

// applied returns the input right after a plan was applied.
func applied(s sharding.Input, d sharding.Decision) sharding.Input {
	s = clone(s)
	for _, step := range d.Steps {
		shard := &s.Shards[step.Shard]
		if step.Verb == sharding.Release {
			shard.Work = sharding.Ending
			s.Moves--
			continue
		}
		*shard = sharding.Shard{Work: sharding.Running, Ours: true, Borrowed: step.Reason == sharding.Unclaimed}
	}
	return s
}

func TestPlan_AppliedPlanIsComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawInput(t)
		before := clone(s)
		first := sharding.Plan(s)
		if diff := cmp.Diff(before, s); diff != "" {
			t.Fatalf("Plan changed its argument:\n%s", diff)
		}
		if again := sharding.Plan(s); !cmp.Equal(first, again) {
			t.Fatalf("two plans of one input differ:\n%s", cmp.Diff(first, again))
		}
		// A confirmed shard that another member owns is released next. That is a second step, not a
		// repetition.
		after := sharding.Plan(applied(s, first))
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

func TestPlan_ClaimsOnlyFreeAndReleasesOnlyRunningShards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawInput(t)
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
			s := sharding.Input{Self: m.ID, Members: ms, ClaimDelay: claimDelay, Shards: make([]sharding.Shard, shards)}
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

// drawReadiness draws which members are ready.
func drawReadiness(t *rapid.T, ms []sharding.Member) []sharding.Member {
	drawn := append([]sharding.Member(nil), ms...)
	for i := range drawn {
		drawn[i].Rank = drawRank(t)
	}
	return drawn
}

func drawRank(t *rapid.T) sharding.Rank {
	return rapid.SampledFrom([]sharding.Rank{sharding.Ready, sharding.Able, sharding.Unable}).Draw(t, "rank")
}

// firstRank returns the earliest rank that a member has.
func firstRank(ms []sharding.Member) sharding.Rank {
	return slices.MinFunc(ms, func(a, b sharding.Member) int { return int(a.Rank) - int(b.Rank) }).Rank
}

func ranksOf(ms []sharding.Member) map[string]sharding.Rank {
	ranks := map[string]sharding.Rank{}
	for _, m := range ms {
		ranks[m.ID] = m.Rank
	}
	return ranks
}

func TestPlan_EarlierRanksComeFirst(t *testing.T) {
	own, peers := ownedBy(t, "replica-0"), ownedBy(t, "replica-1")
	running := sharding.Shard{Ours: true, Work: sharding.Running}
	release := func(number int, reason sharding.Reason) sharding.Decision {
		return step(sharding.Step{Shard: number, Verb: sharding.Release, Reason: reason, To: "replica-1"})
	}
	for name, test := range map[string]struct {
		self, peer sharding.Rank
		// peerFor is how long the peer has its rank.
		peerFor                     time.Duration
		failing, yielding, recently bool
		number                      int
		shard                       sharding.Shard
		want                        sharding.Decision
	}{
		"running, owned by unready peer: kept": {peer: sharding.Unable, number: peers, shard: running},
		"vacant, owned by unready peer: claimed": {
			peer: sharding.Unable, number: peers, shard: sharding.Shard{Vacant: true},
			want: step(sharding.Step{Shard: peers, Verb: sharding.Claim, Reason: sharding.Vacant}),
		},
		"vacant, owned by unready self: left to peer": {
			self: sharding.Unable, number: own, shard: sharding.Shard{Vacant: true}, want: sharding.Decision{Wait: claimDelay},
		},
		"vacant, owned by unready self, unclaimed by peer: claimed": {
			self: sharding.Unable, number: own, shard: sharding.Shard{Vacant: true, VacantFor: claimDelay},
			want: step(sharding.Step{Shard: own, Verb: sharding.Claim, Reason: sharding.Unclaimed}),
		},
		"vacant, owned by self, both unready: claimed": {
			self: sharding.Unable, peer: sharding.Unable, number: own, shard: sharding.Shard{Vacant: true},
			want: step(sharding.Step{Shard: own, Verb: sharding.Claim, Reason: sharding.Vacant}),
		},
		"running, self unready: kept":                   {self: sharding.Unable, number: own, shard: running},
		"running, self failing: released to ready peer": {self: sharding.Unable, failing: true, number: own, shard: running, want: release(own, sharding.Unready)},
		"running, both failing: kept":                   {self: sharding.Unable, peer: sharding.Unable, failing: true, number: own, shard: running},
		"running, owned by peer, both failing: kept":    {self: sharding.Unable, peer: sharding.Unable, failing: true, number: peers, shard: running},
		"running, self failing but not announced: kept": {failing: true, number: own, shard: running},
		"running, owned by peer, both ready: released":  {number: peers, shard: running, want: release(peers, sharding.Moved)},
		"running, self failing, peer able: released": {
			self: sharding.Unable, peer: sharding.Able, peerFor: claimDelay, failing: true, number: own, shard: running, want: release(own, sharding.Unready),
		},
		"running, self failing, peer able for a moment: kept": {
			self: sharding.Unable, peer: sharding.Able, peerFor: time.Second, failing: true, number: own, shard: running,
			want: sharding.Decision{Wait: claimDelay - time.Second},
		},
		"running, self yielding, peer able for a moment: released": {
			self: sharding.Unable, peer: sharding.Able, yielding: true, recently: true, number: own, shard: running, want: release(own, sharding.Unready),
		},
		"running, self failing, released recently, peer able: kept": {
			self: sharding.Unable, peer: sharding.Able, peerFor: claimDelay, failing: true, recently: true, number: own, shard: running,
		},
		"running, self failing, released recently, peer ready: released": {
			self: sharding.Unable, failing: true, recently: true, number: own, shard: running, want: release(own, sharding.Unready),
		},
		"running, self able, peer ready: kept":                 {self: sharding.Able, number: own, shard: running},
		"running, owned by peer, both able: kept":              {self: sharding.Able, peer: sharding.Able, number: peers, shard: running},
		"running, owned by peer, self able, peer unable: kept": {self: sharding.Able, peer: sharding.Unable, number: peers, shard: running},
		"vacant, owned by unable peer, self able: claimed": {
			self: sharding.Able, peer: sharding.Unable, number: peers, shard: sharding.Shard{Vacant: true},
			want: step(sharding.Step{Shard: peers, Verb: sharding.Claim, Reason: sharding.Vacant}),
		},
		"borrowed, self failing: kept for two claim delays": {
			self: sharding.Unable, failing: true, number: own,
			shard: sharding.Shard{Ours: true, Work: sharding.Running, Borrowed: true, HeldFor: 4 * time.Second},
			want:  sharding.Decision{Wait: 6 * time.Second},
		},
		"borrowed, self failing, held long enough: released": {
			self: sharding.Unable, failing: true, number: own,
			shard: sharding.Shard{Ours: true, Work: sharding.Running, Borrowed: true, HeldFor: 10 * time.Second},
			want:  release(own, sharding.Unready),
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newInput(test.number, test.shard)
			s.Members = append([]sharding.Member(nil), two...)
			s.Members[0].Rank, s.Members[1].Rank, s.Members[1].RankFor = test.self, test.peer, test.peerFor
			s.Failing, s.Yielding, s.ReleasedRecently = test.failing, test.yielding, test.recently
			if diff := cmp.Diff(test.want, sharding.Plan(s)); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}

// Replicas with different numbers of shards never run together, even if the anchor is unable.
func TestPlan_OtherShardCountIsReleasedEvenToUnableAnchor(t *testing.T) {
	s := sharding.Input{
		Self: "new", Moves: 1, Shards: []sharding.Shard{{Ours: true, Work: sharding.Running}},
		Members: []sharding.Member{{ID: "old", Shards: 8, Joined: 1, Rank: sharding.Unable}, {ID: "new", Shards: 1, Joined: 2}},
	}
	want := []sharding.Step{{Verb: sharding.Release, Reason: sharding.Divided, To: "old"}}
	if diff := cmp.Diff(want, sharding.Plan(s).Steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

func TestOwner_IsOfTheEarliestRank(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := drawReadiness(t, drawMembers(t, 16))
		ranks := ranksOf(ms)
		for shard := range 16 {
			if id := sharding.Owner(shard, ms); ranks[id] != firstRank(ms) {
				t.Fatalf("shard %d belongs to %q of rank %d among %+v", shard, id, ranks[id], ms)
			}
		}
	})
}

// When one member's rank changes, no shard moves between two other members. The exception is the
// last or first member of the earliest rank: then the whole ranking changes.
func TestOwner_RankChangeMovesOnlyItsShards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := drawReadiness(t, drawMembers(t, 16))
		changed := rapid.IntRange(0, len(before)-1).Draw(t, "changed")
		after := append([]sharding.Member(nil), before...)
		after[changed].Rank = drawRank(t)
		if firstRank(before) != firstRank(after) {
			t.Skip("the earliest rank changes")
		}
		for shard := range 16 {
			from, to := sharding.Owner(shard, before), sharding.Owner(shard, after)
			if id := before[changed].ID; from != to && from != id && to != id {
				t.Fatalf("shard %d moved from %q to %q because %q changed", shard, from, to, id)
			}
		}
	})
}

// For any input, a replica that is not ready releases a shard only to a member of an earlier rank,
// and only if it fails. A different number of shards is the exception.
func TestPlan_ReleasesOnlyToMembersThatDoBetter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawInput(t)
		ranks := ranksOf(s.Members)
		d := sharding.Plan(s)
		for _, step := range append(d.Steps, d.Postponed...) {
			if step.Verb != sharding.Release || step.Reason == sharding.Divided {
				continue
			}
			self, to := ranks[s.Self], ranks[step.To]
			isMove := step.Reason == sharding.Moved && self == sharding.Ready && to == sharding.Ready
			isFailure := step.Reason == sharding.Unready && to < self &&
				(s.Yielding || s.Failing && (to == sharding.Ready || !s.ReleasedRecently))
			if !isMove && !isFailure {
				t.Fatalf("%+v although ranks are %v, failing = %t and yielding = %t", step, ranks, s.Failing, s.Yielding)
			}
		}
	})
}

// If all members have one rank behind the ready ones, no shard is released and each vacant shard is
// claimed once.
func TestPlan_OneRankClaimsVacantAndReleasesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const shards = 8
		ms := drawMembers(t, shards)
		common := rapid.SampledFrom([]sharding.Rank{sharding.Able, sharding.Unable}).Draw(t, "rank")
		for i := range ms {
			ms[i].Rank = common
		}
		claims := make([]int, shards)
		for _, m := range ms {
			s := sharding.Input{Self: m.ID, Members: ms, ClaimDelay: claimDelay, MinHold: minHold, Moves: shards, Failing: rapid.Bool().Draw(t, "failing")}
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
