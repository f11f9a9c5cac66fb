package nodehealth

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Moment is one moment in both notions of time: Instant decides, Wall is written into objects.
type Moment struct {
	Instant monotonic.Instant
	Wall    time.Time
}

// Kind is what a step does, in the order of urgency.
type Kind uint8

const (
	// Restore takes NoExecute taints off, which pods are waiting to be evicted for.
	Restore Kind = iota
	// Declare sets conditions to Unknown.
	Declare
	// Banish puts a NoExecute taint on, or swaps one for the other.
	Banish
	// Tidy brings NoSchedule taints and labels in line.
	Tidy
)

func (k Kind) String() string { return [...]string{"restore", "declare", "banish", "tidy"}[k] }

// Step is what one Node needs, in one write of its status or of the rest.
type Step struct {
	Kind Kind
	// Node is the version that was decided from; the write is guarded by it.
	Node *corev1.Node
	Zone string
	// Conditions to set, for Declare; those of other types stay.
	Conditions []corev1.NodeCondition
	// LeaseVersion is the Lease that the declaration rests on, to be read again before.
	LeaseVersion string
	// Taints are all of the Node's taints after the step, for all but Declare; nil when they stay as they are.
	Taints *[]corev1.Taint
	// Labels to set.
	Labels map[string]string
	// Counted tells that the node took its zone's turn.
	Counted bool
	// Reason says why, for people.
	Reason string
}

// Plan is what a pass found and what is to be done.
type Plan struct {
	// Steps are for different nodes, the most urgent first.
	Steps []Step
	// Check is nil when none is due.
	Check *Check
	// Held is how many nodes are silent and not declared, because the process is blind or many fell silent together.
	Held int
	// Doubted are the zones of which many fell silent together, ordered.
	Doubted []string
	// Zones are ordered by name.
	Zones []Zone
	// Counts is how many nodes there are of each Health.
	Counts [Dead + 1]int
	// Down are the nodes that are not ready: their pods are not either.
	Down []*corev1.Node
}

// Plan decides for all subjects at once. It makes at most budget steps; the others come up again in the next pass.
func (r Rules) Plan(now Moment, m Memory, subjects []Subject, budget int) (Plan, Memory) {
	p := pass{Rules: r, now: now, memory: m.caughtUp(subjects), zones: map[string]*tally{}}
	for i := range subjects {
		p.survey(&subjects[i])
	}
	p.count()
	p.doubt()
	p.decide()
	p.act(budget)
	p.check(subjects)
	return p.plan, p.memory
}

// pass is one call of Plan.
type pass struct {
	Rules
	now      Moment
	memory   Memory
	plan     Plan
	zones    map[string]*tally
	subjects []*Subject // those a step may be for
	silent   []silence
	steps    []Step
}

// tally is a zone while it is counted.
type tally struct {
	Zone
	nodes  int // excluded ones too
	recent int // that fell silent within the window
}

// silence is a node that is to be declared.
type silence struct {
	*Subject
	Judgement
}

func (p *pass) survey(s *Subject) {
	j := p.Judge(p.now.Instant, p.memory, s)
	p.plan.Counts[j.Health]++
	z := p.zones[s.traits.zone]
	if z == nil {
		z = &tally{Zone: Zone{Name: s.traits.zone}}
		p.zones[s.traits.zone] = z
	}
	z.nodes++
	ready := s.traits.ready == corev1.ConditionTrue
	if !s.traits.excluded {
		z.Size++
		if !ready {
			z.NotReady++
		}
	}
	if p.fellSilent(j) {
		z.recent++
	}
	if !ready && s.traits.ready != "" {
		p.plan.Down = append(p.plan.Down, s.Node)
	}
	switch {
	case j.Health == Silent:
		p.silent = append(p.silent, silence{Subject: s, Judgement: j})
	case s.traits.drifted || s.traits.tainted || s.traits.execute != inLine:
		p.subjects = append(p.subjects, s)
	}
}

// fellSilent tells whether a node counts among those that fell silent together: its silence became too long within the window,
// or it has been held since. One that was declared before this process knew it fell silent at some time in the past.
func (p *pass) fellSilent(j Judgement) bool {
	past := p.now.Instant.Sub(j.Deadline)
	switch j.Health {
	case Silent:
		return past < together || j.Deadline >= p.memory.checked
	case Dead:
		return past < together && past >= 0 && j.By != Reprieve
	}
	return false
}

// count works out the states of the zones, and whether everything is down.
func (p *pass) count() {
	counted, down := 0, true
	for _, z := range p.zones {
		z.State = p.stateOf(z.Zone)
		z.Rate = p.rateOf(z.Zone)
		if z.Size > 0 {
			counted++
			down = down && z.State == FullDisruption
		}
	}
	down = down && counted > 0
	for _, z := range p.zones {
		if down {
			z.Rate = 0
		}
		p.plan.Zones = append(p.plan.Zones, z.Zone)
	}
	slices.SortFunc(p.plan.Zones, func(a, b Zone) int { return cmp.Compare(a.Name, b.Name) })
	p.memory = p.memory.after(p.now.Instant, down)
}

// doubt finds the zones of which many nodes fell silent together.
func (p *pass) doubt() {
	for name, z := range p.zones {
		if z.recent > max(fewTogether, int(manyShare*float64(z.nodes))) {
			p.plan.Doubted = append(p.plan.Doubted, name)
		}
	}
	slices.Sort(p.plan.Doubted)
}

// decide makes the steps of all nodes, without regard to turns and budget.
func (p *pass) decide() {
	_, blind := p.memory.Blind()
	for _, s := range p.silent {
		switch {
		// The floor may have been raised a moment ago, so the deadline is looked at again.
		case p.Judge(p.now.Instant, p.memory, s.Subject).Health != Silent:
		case blind || p.doubts(s):
			p.plan.Held++
		case !s.Busy:
			p.steps = append(p.steps, p.declare(s))
		}
	}
	for _, s := range p.subjects {
		if !s.Busy && p.due(s, blind) {
			p.amend(s, blind)
		}
	}
}

// due tells whether a step could do anything for a Node now. Thousands may wait for their turn, and each is a glance only.
func (p *pass) due(s *Subject, blind bool) bool {
	switch {
	case s.traits.drifted:
		return true
	case p.memory.down:
		return s.traits.tainted
	case s.traits.execute == inTurn:
		return !blind && p.turn(s.traits.zone)
	}
	return s.traits.execute == atOnce
}

// turn tells whether a zone has its turn.
func (p *pass) turn(zone string) bool {
	return p.memory.turns[zone].come(p.now.Instant, p.zones[zone].Rate)
}

// doubts tells whether a node fell silent together with many others, and since the last self-check.
func (p *pass) doubts(s silence) bool {
	_, doubted := slices.BinarySearch(p.plan.Doubted, s.traits.zone)
	return doubted && s.Deadline >= p.memory.checked
}

func (p *pass) declare(s silence) Step {
	return Step{
		Kind: Declare, Node: s.Node, Zone: s.traits.zone, LeaseVersion: s.LeaseVersion(),
		Conditions: unknownConditions(s.Node, p.now.Wall),
		Reason:     reasonOfSilence(p.now.Instant.Sub(s.Heard).Round(time.Millisecond), s.By),
	}
}

func reasonOfSilence(silence time.Duration, by Source) string {
	if by == Reprieve {
		return fmt.Sprintf("no sign of life in the %v that count", silence)
	}
	return fmt.Sprintf("no sign of life for %v, the last was of its %v", silence, by)
}

// act picks the most urgent steps and lets zones take their turns. A node whose turn has not come is tidied at least.
func (p *pass) act(budget int) {
	slices.SortFunc(p.steps, func(a, b Step) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), compareNodes(a.Node, b.Node))
	})
	for _, step := range p.steps {
		if len(p.plan.Steps) == budget {
			return
		}
		if step.Counted && !p.turn(step.Zone) {
			step = p.filled(Step{Kind: Tidy, Node: step.Node, Zone: step.Zone}, scheduleTaints(step.Node), taintChange{}, missingLabels(step.Node.Labels))
		}
		if step.Counted {
			p.memory = p.memory.taken(p.now.Instant, step.Zone)
		}
		if step.Conditions != nil || step.Taints != nil || step.Labels != nil {
			p.plan.Steps = append(p.plan.Steps, step)
		}
	}
}
