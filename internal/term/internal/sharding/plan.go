package sharding

import (
	"fmt"
	"slices"
	"time"
)

// Situation is what one replica knows when it decides.
type Situation struct {
	// Self is the id of the replica that decides.
	Self string
	// Members are the replicas alive, this one included, in any order.
	Members []Member
	// Shards has one entry for every shard; the index is its number.
	Shards []Shard
	// Holders are the ids of all replicas that hold a shard of the service, also one beyond this replica's number of shards.
	Holders []string
	// Failing says that this replica has been unable to do the work of its shards for long enough to give them to others. It
	// is not the same as this replica's Member.Unready: one that has just recovered is not ranked yet and yet keeps what it has.
	Failing bool
	// Moves is how many running shards may be given away now.
	Moves int
	// Patience is how long each rank waits for the one before it to claim a vacant shard.
	Patience time.Duration
	// Settle is how long a shard taken over from an owner that let it lie is kept before it is offered to that owner again.
	Settle time.Duration
}

// Shard is what a replica knows about one shard.
type Shard struct {
	// Work is what this replica does about the shard.
	Work Work
	// Vacant says that nobody holds the shard's key, and VacantFor for how long at least.
	Vacant    bool
	VacantFor time.Duration
	// Ours says that the key is bound to this replica's present session.
	Ours bool
	// Borrowed says that the shard was claimed because its owner had let it lie, and HeldFor since when.
	Borrowed bool
	HeldFor  time.Duration
}

// Work is what a replica does about a shard.
type Work int

const (
	// Idle: no body runs here.
	Idle Work = iota
	// Resting: no body runs here, and none may before a backoff has passed.
	Resting
	// Running: a body runs here.
	Running
	// Ending: a body or its release is still under way.
	Ending
)

// Verb is what is done to a shard.
type Verb string

const (
	// Claim creates the shard's key and starts a body.
	Claim Verb = "claim"
	// Release stops the body, waits for it and deletes the key.
	Release Verb = "release"
)

// Reason is why.
type Reason string

const (
	// Vacant: nobody holds the shard and this replica owns it.
	Vacant Reason = "vacant"
	// Neglected: nobody holds the shard and those who should have let it lie.
	Neglected Reason = "neglected"
	// Unconfirmed: the key is this session's, although no claim was seen to succeed; claiming again confirms it.
	Unconfirmed Reason = "unconfirmed"
	// Moved: another member owns the shard.
	Moved Reason = "moved"
	// Unready: this replica cannot do the work of the shard and another member can.
	Unready Reason = "unready"
	// Divided: the member that joined first divides the work into another number of shards.
	Divided Reason = "divided"
)

// Step is one thing to do.
type Step struct {
	Shard  int
	Verb   Verb
	Reason Reason
	// To is the member that should hold the shard after a release.
	To string
}

// Decision is what to do now and when to look again.
type Decision struct {
	// Steps are ordered by shard.
	Steps []Step
	// Postponed are the releases that the budget did not allow, ordered by shard.
	Postponed []Step
	// Wait is the time after which the passing of time alone may change the decision; 0 when it cannot.
	Wait time.Duration
	// Blocked says why this replica may claim nothing; empty when it may.
	Blocked string
}

// Plan decides what the replica does about every shard. It does not change its argument.
func Plan(s Situation) Decision {
	p := planner{Situation: s, eligible: eligible(s.Members), budget: s.Moves}
	if i := slices.IndexFunc(s.Members, func(m Member) bool { return m.ID == s.Self }); i >= 0 {
		p.self = s.Members[i]
	}
	p.decision.Blocked = blocked(s)
	for number, shard := range s.Shards {
		p.decide(number, shard)
	}
	return p.decision
}

// planner is one run of Plan.
type planner struct {
	Situation
	self     Member // as the others see it; the zero Member when they do not
	eligible []Member
	budget   int
	decision Decision
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
	if reason != Divided && shard.Borrowed && shard.HeldFor < p.Settle {
		p.wait(p.Settle - shard.HeldFor)
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

// successor is to whom a shard that runs here goes, and why. It is false when the shard stays: with its owner; and where
// nobody can be given it who is any better off, because a duty that is done badly is not helped by being handed around.
func (p *planner) successor(number int) (to string, reason Reason, ok bool) {
	best, found := owner(number, p.eligible)
	switch {
	case !found || best.ID == p.Self:
		return "", "", false
	case !slices.ContainsFunc(p.eligible, func(m Member) bool { return m.ID == p.Self }):
		return best.ID, Divided, true
	case best.Unready:
		return "", "", false
	case !p.self.Unready:
		return best.ID, Moved, true
	default:
		return best.ID, Unready, p.Failing
	}
}

func (p *planner) claim(number int, shard Shard) {
	n := rank(number, p.eligible, p.self)
	if patience := time.Duration(n) * p.Patience; shard.VacantFor < patience {
		p.wait(patience - shard.VacantFor)
		return
	}
	reason := Vacant
	if n > 0 {
		reason = Neglected
	}
	p.step(Step{Shard: number, Verb: Claim, Reason: reason})
}

func (p *planner) step(step Step) { p.decision.Steps = append(p.decision.Steps, step) }

func (p *planner) wait(wait time.Duration) {
	if p.decision.Wait == 0 || wait < p.decision.Wait {
		p.decision.Wait = wait
	}
}

// blocked says why the replica may not claim. Not being a member comes first: a replica that the others cannot see would
// claim shards which they expect somebody else to hold.
func blocked(s Situation) string {
	shardsOf := make(map[string]int, len(s.Members))
	for _, m := range s.Members {
		shardsOf[m.ID] = m.Shards
	}
	if shardsOf[s.Self] != len(s.Shards) {
		return fmt.Sprintf("this replica is not among the members that announced %d shards", len(s.Shards))
	}
	if anchor, found := Anchor(s.Members); found && anchor.Shards != len(s.Shards) {
		return fmt.Sprintf("replica %q, which joined first, divides the work into %d shards and this one into %d",
			anchor.ID, anchor.Shards, len(s.Shards))
	}
	for _, holder := range s.Holders {
		if n, member := shardsOf[holder]; member && n != len(s.Shards) {
			return fmt.Sprintf("replica %q still holds a shard of %d and this one divides the work into %d",
				holder, n, len(s.Shards))
		}
	}
	return ""
}
