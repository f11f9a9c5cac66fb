package sharding_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/term/internal/eligibility"
	"github.com/trivet-dev/trivet/internal/term/internal/sharding"
)

const (
	modelTTL    = 5 * time.Second
	modelStep   = 250 * time.Millisecond
	modelShards = 3
	// leaseEnd is the longest time from the death of a leader until its keys are gone.
	leaseEnd = modelTTL + time.Second
)

// modelReplica is one replica of a model: its faults, its eligibility and what it announced.
type modelReplica struct {
	id string
	// passing and failing say what the checks report. dead replicas do nothing, and their keys
	// expire.
	passing, dead, yields, prefers bool
	// old replicas are of a version that announces no rank between Ready and Unable.
	old    bool
	diedAt time.Time

	tracker     eligibility.Tracker
	announced   sharding.Rank
	announcedAt time.Time
	// ableSince is the start of the unbroken time in which the replica could do the work.
	ableSince time.Time
}

func (r *modelReplica) isAble() bool { return !r.dead && r.passing && !r.yields }

func (r *modelReplica) rank() sharding.Rank {
	isReady := r.tracker.Verdict() == eligibility.Ready
	switch {
	case r.yields, !isReady && !r.tracker.Passing():
		return sharding.Unable
	case isReady && !r.prefers:
		return sharding.Ready
	default:
		return sharding.Able
	}
}

// model is a service with several replicas and perfect knowledge of members and terms.
type model struct {
	now      time.Time
	replicas []*modelReplica
	shards   [modelShards]modelShard
}

type modelShard struct {
	leader   *modelReplica // nil while it is vacant
	since    time.Time     // of the claim, or of the vacancy
	borrowed bool
	// unservedSince is the start of the unbroken time without a leader that can do the work.
	unservedSince time.Time
}

func newModel(replicas int) *model {
	m := &model{now: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)}
	for i := range replicas {
		m.replicas = append(m.replicas, &modelReplica{
			id: fmt.Sprintf("replica-%d", i), passing: true, tracker: eligibility.New(m.now, modelTTL, true), ableSince: m.now,
		})
	}
	for i := range m.shards {
		m.shards[i] = modelShard{since: m.now, unservedSince: m.now}
	}
	return m
}

// step lets time pass and has every replica plan once.
func (m *model) step() {
	m.now = m.now.Add(modelStep)
	for _, r := range m.replicas {
		if !r.isAble() {
			r.ableSince = m.now
		}
		if !r.dead {
			r.tracker = r.tracker.Observe(m.now, r.passing)
		}
	}
	for i := range m.shards {
		if s := &m.shards[i]; s.leader != nil && s.leader.dead && m.now.Sub(s.leader.diedAt) >= leaseEnd {
			*s = modelShard{since: m.now, unservedSince: s.unservedSince}
		}
	}
	for _, r := range m.replicas {
		if !r.dead {
			m.plan(r)
		}
	}
	for _, r := range m.replicas {
		if rank := r.announcedRank(); rank != r.announced {
			r.announced, r.announcedAt = rank, m.now
		}
	}
	for i := range m.shards {
		if s := &m.shards[i]; s.leader != nil && s.leader.isAble() {
			s.unservedSince = m.now
		}
	}
}

// members are the replicas whose keys exist, as they announced themselves.
func (m *model) members() []sharding.Member {
	var members []sharding.Member
	for i, r := range m.replicas {
		if !r.dead || m.now.Sub(r.diedAt) < leaseEnd {
			members = append(members, sharding.Member{ID: r.id, Shards: modelShards, Joined: int64(i + 1), Rank: r.announced, RankFor: m.now.Sub(r.announcedAt)})
		}
	}
	return members
}

func (m *model) plan(r *modelReplica) {
	in := sharding.Input{
		Self: r.id, Members: m.members(), Moves: modelShards, ClaimDelay: modelTTL, MinHold: 6 * modelTTL,
		Failing: r.tracker.Verdict() == eligibility.Failing, Yielding: r.yields,
		ReleasedRecently: r.tracker.ReleasedRecently(m.now),
	}
	for _, s := range m.shards {
		shard := sharding.Shard{Vacant: s.leader == nil, VacantFor: m.now.Sub(s.since)}
		if s.leader == r {
			shard = sharding.Shard{Work: sharding.Running, Ours: true, Borrowed: s.borrowed, HeldFor: m.now.Sub(s.since)}
		}
		in.Shards = append(in.Shards, shard)
	}
	for _, step := range sharding.Plan(in).Steps {
		s := &m.shards[step.Shard]
		if step.Verb == sharding.Claim {
			*s = modelShard{leader: r, since: m.now, borrowed: step.Reason == sharding.Unclaimed, unservedSince: s.unservedSince}
			continue
		}
		*s = modelShard{since: m.now, unservedSince: s.unservedSince}
		if step.Reason == sharding.Unready && !r.yields {
			r.tracker = r.tracker.BackOff(m.now)
		}
	}
}

// unserved returns the first shard that could have had a leader that can do the work for longer
// than a bound, because one replica was able all the time.
func (m *model) unserved(bound time.Duration) error {
	for number, s := range m.shards {
		for _, r := range m.replicas {
			since := s.unservedSince
			if r.ableSince.After(since) {
				since = r.ableSince
			}
			if lasted := m.now.Sub(since); r.isAble() && lasted > bound {
				return fmt.Errorf("shard %d has had no able leader for %v although %s was able", number, lasted, r.id)
			}
		}
	}
	return nil
}

// Each shard has a leader that can do the work within a bound, while one replica is able and
// whatever happened before: kills, failing checks, yields and preferences at any moment.
func TestModel_EachShardReachesAnAbleReplica(t *testing.T) {
	// A dead leader's lease ends, the next leader fails for two TTLs, a leader that released
	// recently waits for 12, a borrowed shard for two, and an able replica must be able for one.
	const bound = leaseEnd + (2+12+2+1)*modelTTL + 4*modelStep
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(rapid.IntRange(1, 4).Draw(t, "replicas"))
		for range rapid.IntRange(1, 40).Draw(t, "faults") {
			m.disturb(t)
			for range rapid.IntRange(1, 200).Draw(t, "steps") {
				m.step()
				if err := m.unserved(bound); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// disturb changes one fault of one replica.
func (m *model) disturb(t *rapid.T) {
	r := m.replicas[rapid.IntRange(0, len(m.replicas)-1).Draw(t, "replica")]
	switch rapid.SampledFrom([]string{"checks", "yields", "prefers", "dead"}).Draw(t, "fault") {
	case "checks":
		r.passing = !r.passing
	case "yields":
		r.yields = !r.yields
	case "prefers":
		r.prefers = !r.prefers
	case "dead":
		if r.dead {
			r.id += "x" // a new process has a new id and no history
			r.dead, r.tracker = false, eligibility.New(m.now, modelTTL, r.passing)
			return
		}
		r.dead, r.diedAt = true, m.now
	}
}

// A leader that yields is replaced at once, also by a replica that ranks behind ready ones only
// because its dependency was away a short time ago.
func TestModel_LeaderThatYieldsIsReplacedByAnAbleReplica(t *testing.T) {
	m := newModel(3)
	m.run(modelTTL)
	for _, r := range m.replicas[1:] {
		r.prefers = true
	}
	m.run(2 * modelTTL)
	m.replicas[0].yields = true
	m.run(time.Second)
	for number, s := range m.shards {
		if s.leader == nil || !s.leader.isAble() {
			t.Errorf("shard %d is held by %+v a second after its leader yielded", number, s.leader)
		}
	}
}

// A leader that fails is replaced by a replica that backs off if no replica is ready.
func TestModel_LeaderThatFailsIsReplacedByAReplicaThatBacksOff(t *testing.T) {
	m := newModel(2)
	m.run(modelTTL)
	m.replicas[0].passing = false
	m.run(4 * modelTTL)
	m.replicas[0].passing = true // it backs off for 12 TTLs
	m.run(2 * modelTTL)
	m.replicas[1].passing = false
	m.run(2*modelTTL + time.Second)
	for number, s := range m.shards {
		if s.leader != m.replicas[0] {
			t.Errorf("shard %d is not held by the only replica whose checks pass", number)
		}
	}
}

// A dependency of all fails and returns, and each replica notices it at another moment.
func TestModel_OutageOfAllMovesNoShard(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(3)
		m.run(modelTTL)
		before := m.shards
		for _, passing := range []bool{false, true} {
			for _, r := range m.replicas {
				r.passing = passing
				m.run(time.Duration(rapid.IntRange(0, int(modelTTL/modelStep)/2-2).Draw(t, "steps")) * modelStep)
			}
			m.run(time.Duration(rapid.IntRange(0, 30).Draw(t, "seconds")) * time.Second)
		}
		for number, s := range m.shards {
			if s.leader != before[number].leader {
				t.Fatalf("shard %d moved from %s to %s", number, before[number].leader.id, s.leader.id)
			}
		}
	})
}

// A cause that makes every leader fail moves each replica's shards once in 12 TTLs at most.
func TestModel_CauseThatFollowsTheShardMovesItRarely(t *testing.T) {
	m := newModel(3)
	moves, last := 0, m.shards[0].leader
	for range int(time.Hour / modelStep) {
		for _, r := range m.replicas {
			r.passing = m.shards[0].leader != r
		}
		m.step()
		if leader := m.shards[0].leader; leader != nil && leader != last {
			moves, last = moves+1, leader
		}
	}
	if most := 3 * int(time.Hour/(12*modelTTL)); moves < 3 || moves > most {
		t.Errorf("the shard moved %d times in an hour, want 3 to %d", moves, most)
	}
}

func (m *model) run(d time.Duration) {
	for range int(d / modelStep) {
		m.step()
	}
}
