package simulate

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// Config sizes the fleet.
type Config struct {
	// Nodes, Services and Pods are counts; Pods are spread evenly over Services and Nodes.
	Nodes, Services, Pods int
	// Namespace holds Services and Pods.
	Namespace string
	// Seed makes the history of changes reproducible.
	Seed uint64
}

// pod is the simulated state of a Pod.
type pod struct {
	name    string
	service int // index of its Service
	node    int // index of its Node
	ip      int // ordinal of its address
	ready   bool
}

// fleet is the state of the simulation. It does no I/O.
type fleet struct {
	cfg     Config
	pods    []pod // ordered by name
	created int   // Pods created so far; names and addresses are used once
}

type verb int

const (
	unready verb = iota
	becomeReady
	replace
)

// change is one change of a Pod.
type change struct {
	verb   verb
	before pod // for replace: the deleted Pod
	after  pod
}

func newFleet(cfg Config) *fleet {
	f := &fleet{cfg: cfg}
	if cfg.Services == 0 || cfg.Nodes == 0 {
		return f
	}
	for i := range cfg.Pods {
		f.pods = append(f.pods, f.newPod(i%cfg.Services, true))
	}
	return f
}

// newPod returns a new Pod of a Service on the next Node in turn.
func (f *fleet) newPod(service int, ready bool) pod {
	p := pod{
		name:    fmt.Sprintf("%s-%05d", serviceName(service), f.created),
		service: service,
		node:    f.created % f.cfg.Nodes,
		ip:      f.created,
		ready:   ready,
	}
	f.created++
	return p
}

// next returns the next change: most changes toggle the readiness of a Pod, one in four replaces a
// Pod. The next change of an unready Pod makes it ready, so the fleet stays mostly ready. The
// result is false for an empty fleet.
func (f *fleet) next(random *rand.Rand) (change, bool) {
	if len(f.pods) == 0 {
		return change{}, false
	}
	if i := slices.IndexFunc(f.pods, func(p pod) bool { return !p.ready }); i >= 0 && random.IntN(2) == 0 {
		after := f.pods[i]
		after.ready = true
		return change{verb: becomeReady, before: f.pods[i], after: after}, true
	}
	before := f.pods[random.IntN(len(f.pods))]
	switch {
	case !before.ready:
		after := before
		after.ready = true
		return change{verb: becomeReady, before: before, after: after}, true
	case random.IntN(4) == 0:
		return change{verb: replace, before: before, after: f.newPod(before.service, true)}, true
	default:
		after := before
		after.ready = false
		return change{verb: unready, before: before, after: after}, true
	}
}

// rollOut returns change number i of a roll-out of all Services: the Pods of one are replaced after
// those of another. The result is false for an empty fleet.
func (f *fleet) rollOut(i int) (change, bool) {
	if len(f.pods) == 0 {
		return change{}, false
	}
	each := max(1, len(f.pods)/f.cfg.Services) // The Services have the Pods in turn.
	at := i%each*f.cfg.Services + i/each%f.cfg.Services
	before := f.pods[at%len(f.pods)]
	return change{verb: replace, before: before, after: f.newPod(before.service, true)}, true
}

// applied records that a change was written.
func (f *fleet) applied(c change) {
	i := slices.IndexFunc(f.pods, func(p pod) bool { return p.name == c.before.name })
	if i >= 0 {
		f.pods[i] = c.after
	}
}

func nodeName(i int) string    { return fmt.Sprintf("sim-node-%04d", i) }
func serviceName(i int) string { return fmt.Sprintf("app-%03d", i) }

func zoneName(i int) string { return fmt.Sprintf("sim-%c", 'a'+rune(i%3)) }
