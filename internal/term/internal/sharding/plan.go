// Package sharding decides which replica should hold each shard, and what one replica should do
// now.
//
// The package is pure: no clock, no context, no client. Every replica of a service computes the
// same [Owner] from the same members, so there is no central assignment. [Plan] says which shards
// this replica claims and which it releases. A plan is deterministic, ordered by shard, and empty
// after it was applied.
//
// Rules:
//   - The owner of a shard is the member with the highest hash of shard and member (rendezvous
//     hashing). A member that leaves moves only its own shards. A member that joins takes only the
//     shards that it now owns.
//   - A [Rank] is an order of preference and never a bar. Ready members come first, then able ones,
//     then unable ones. A vacant shard is always claimed, by a member of the first rank that has
//     one.
//   - A replica that is not ready keeps its running shards until it is known to fail. Then they
//     move to members of an earlier rank: also to able ones if no member is ready. If no member
//     ranks before it, no running shard is released, because no other member would do better.
//   - A replica that fails releases to an able member only after the member was able for one
//     ClaimDelay. Otherwise the end of an outage of all would move the shards to the member that
//     notices it first. If the replica released shards a short time ago because it failed, it
//     releases only to ready members. Otherwise a cause that makes every leader fail would move the
//     shards all the time. A replica that yields knows the cause, and does not wait.
//   - The owner claims a vacant shard at once. If it does not, the member next in rank claims it
//     after one ClaimDelay, the following one after two, and so on. A member that is alive but
//     cannot work therefore delays a shard only for a short time.
//   - A running shard that another member owns is released as the budget of moves allows. A shard
//     claimed because its owner did not claim it is kept for MinHold first, so that it does not
//     move back and forth. A replica that fails keeps it for two ClaimDelays only.
//   - Replicas with different numbers of shards never work at the same time, because one object
//     would belong to two shards. The number of the member that joined first (the anchor) counts.
//     Members with another number own nothing, release what they run, and wait until no shard of
//     the old division is held.
//
// The package does not prevent two replicas from claiming the same shard. The transaction that
// creates the shard's key only if it is absent does that. A plan made from stale members costs a
// refused claim, never an overlap.
package sharding

import (
	"fmt"
	"slices"
	"time"
)

// Input is what one replica knows when it plans.
type Input struct {
	// Self is the id of the replica that plans.
	Self string
	// Members are the live replicas, including this one, in any order.
	Members []Member
	// Shards has one entry for each shard. The index is the shard's number.
	Shards []Shard
	// Leaders are the ids of all replicas that hold a shard of the service. They include leaders of
	// shards beyond this replica's number of shards.
	Leaders []string
	// Failing says that this replica must release its shards to members of an earlier rank. The
	// rank is weaker: a replica that is not ready and does not fail keeps its shards. Yielding says
	// the same of a replica that knows that the cause is its own.
	Failing, Yielding bool
	// ReleasedRecently says that this replica released shards a short time ago because it failed.
	ReleasedRecently bool
	// Moves is how many running shards may be released now.
	Moves int
	// ClaimDelay is how long each rank waits for the previous one to claim a vacant shard.
	ClaimDelay time.Duration
	// MinHold is how long a borrowed shard is kept before it moves to its owner.
	MinHold time.Duration
}

// Shard is what a replica knows about one shard.
type Shard struct {
	// Work is what this replica does with the shard.
	Work Work
	// Vacant says that the shard's key does not exist, and VacantFor the least time since it did.
	Vacant    bool
	VacantFor time.Duration
	// Ours says that the key is bound to this replica's present session.
	Ours bool
	// Borrowed says that the shard was claimed because its owner did not claim it. HeldFor is the
	// time since the claim.
	Borrowed bool
	HeldFor  time.Duration
}

// Work is what a replica does with a shard.
type Work int

const (
	// Idle shards have no body here.
	Idle Work = iota
	// BackingOff shards have no body here and may not be claimed before a backoff has passed.
	BackingOff
	// Running shards have a body here.
	Running
	// Ending shards have a body or a release that has not finished.
	Ending
)

// Verb is what a step does to a shard.
type Verb string

const (
	// Claim creates the shard's key and starts a body.
	Claim Verb = "claim"
	// Release stops the body, waits for it and deletes the key.
	Release Verb = "release"
)

// Reason is why a step is taken.
type Reason string

const (
	// Vacant shards have no leader, and this replica owns them.
	Vacant Reason = "vacant"
	// Unclaimed shards have no leader, and no member of a higher rank has claimed them in time.
	Unclaimed Reason = "unclaimed"
	// Unconfirmed keys belong to this session although no claim is known to have succeeded. A
	// further claim confirms them.
	Unconfirmed Reason = "unconfirmed"
	// Moved shards belong to another member.
	Moved Reason = "moved"
	// Unready means that this replica cannot do the work of the shard and another member can.
	Unready Reason = "unready"
	// Divided means that the anchor divides the work into another number of shards.
	Divided Reason = "divided"
)

// Step is one change.
type Step struct {
	Shard  int
	Verb   Verb
	Reason Reason
	// To is the member that should hold the shard after a release.
	To string
}

// Decision is what to do now and when to plan again.
type Decision struct {
	// Steps are ordered by shard.
	Steps []Step
	// Postponed are the releases that the budget of moves did not allow, ordered by shard.
	Postponed []Step
	// Wait is the time after which the decision may change although the input does not; 0 means
	// never.
	Wait time.Duration
	// Blocked says why this replica may claim nothing. It is empty if it may.
	Blocked string
}

// Plan decides what the replica does with each shard. It does not change in.
func Plan(in Input) Decision {
	p := planner{Input: in, participants: participants(in.Members), budget: in.Moves}
	if i := slices.IndexFunc(in.Members, func(m Member) bool { return m.ID == in.Self }); i >= 0 {
		p.self = in.Members[i]
	}
	p.decision.Blocked = blocked(in)
	for number, shard := range in.Shards {
		p.decide(number, shard)
	}
	return p.decision
}

// planner is one run of Plan.
type planner struct {
	Input
	self         Member // zero if this replica is not a member
	participants []Member
	budget       int
	decision     Decision
}

func (p *planner) decide(number int, shard Shard) {
	switch {
	case shard.Work == Running:
		p.release(number, shard)
	case shard.Work != Idle || p.decision.Blocked != "":
	case shard.Vacant:
		p.claim(number, shard)
	case shard.Ours:
		p.step(Step{Shard: number, Verb: Claim, Reason: Unconfirmed})
	}
}

func (p *planner) release(number int, shard Shard) {
	to, reason, ok := p.successor(number)
	if !ok {
		return
	}
	if least := p.leastHold(shard, reason); shard.HeldFor < least {
		p.wait(least - shard.HeldFor)
		return
	}
	release := Step{Shard: number, Verb: Release, Reason: reason, To: to}
	if p.budget <= 0 {
		p.decision.Postponed = append(p.decision.Postponed, release)
		return
	}
	p.budget--
	p.step(release)
}

// leastHold returns how long a shard must be held before it may be released for a reason.
func (p *planner) leastHold(shard Shard, reason Reason) time.Duration {
	switch {
	case !shard.Borrowed || reason == Divided:
		return 0
	case reason == Unready:
		return min(p.MinHold, 2*p.ClaimDelay)
	default:
		return p.MinHold
	}
}

// successor returns the member that should hold a shard that runs here, and why. It is false if the
// shard stays: this replica owns it, or no member would do the work better.
func (p *planner) successor(number int) (to string, reason Reason, ok bool) {
	best, found := owner(number, p.participants)
	switch {
	case !found || best.ID == p.Self:
		return "", "", false
	case !slices.ContainsFunc(p.participants, func(m Member) bool { return m.ID == p.Self }):
		return best.ID, Divided, true
	case best.Rank == Ready && p.self.Rank == Ready:
		return best.ID, Moved, true
	case best.Rank < p.self.Rank:
		return best.ID, Unready, p.Yielding || p.Failing && p.hasProven(best)
	default:
		return "", "", false
	}
}

// hasProven says whether a member of an earlier rank has shown for long enough that it does better.
func (p *planner) hasProven(member Member) bool {
	switch {
	case member.Rank == Ready:
		return true
	case p.ReleasedRecently:
		return false
	case member.RankFor < p.ClaimDelay:
		p.wait(p.ClaimDelay - member.RankFor)
		return false
	default:
		return true
	}
}

func (p *planner) claim(number int, shard Shard) {
	n := rank(number, p.participants, p.self)
	if delay := time.Duration(n) * p.ClaimDelay; shard.VacantFor < delay {
		p.wait(delay - shard.VacantFor)
		return
	}
	reason := Vacant
	if n > 0 {
		reason = Unclaimed
	}
	p.step(Step{Shard: number, Verb: Claim, Reason: reason})
}

func (p *planner) step(step Step) { p.decision.Steps = append(p.decision.Steps, step) }

func (p *planner) wait(wait time.Duration) {
	if p.decision.Wait == 0 || wait < p.decision.Wait {
		p.decision.Wait = wait
	}
}

// blocked returns why the replica may claim nothing, or "". A replica that is not a member must not
// claim, because the members expect another leader.
func blocked(in Input) string {
	shardsOf, dryRunOf := make(map[string]int, len(in.Members)), make(map[string]string, len(in.Members))
	for _, m := range in.Members {
		shardsOf[m.ID], dryRunOf[m.ID] = m.Shards, m.DryRun
	}
	if shardsOf[in.Self] != len(in.Shards) {
		return fmt.Sprintf("this replica is not among the members that announced %d shards", len(in.Shards))
	}
	if anchor, found := Anchor(in.Members); found && anchor.Shards != len(in.Shards) {
		return fmt.Sprintf("replica %q, which joined first, divides the work into %d shards and this one into %d",
			anchor.ID, anchor.Shards, len(in.Shards))
	} else if found && anchor.DryRun != dryRunOf[in.Self] {
		return fmt.Sprintf("replica %q, which joined first, has --dry-run=%q and this one %q", anchor.ID, anchor.DryRun, dryRunOf[in.Self])
	}
	for _, leader := range in.Leaders {
		if n, member := shardsOf[leader]; member && n != len(in.Shards) {
			return fmt.Sprintf("replica %q still holds a shard of %d and this one divides the work into %d",
				leader, n, len(in.Shards))
		}
		if dryRun, member := dryRunOf[leader]; member && dryRun != dryRunOf[in.Self] {
			return fmt.Sprintf("replica %q still holds a shard with --dry-run=%q and this one has %q", leader, dryRun, dryRunOf[in.Self])
		}
	}
	return ""
}
