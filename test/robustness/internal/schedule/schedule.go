package schedule

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/test/lab/schedule"
)

// Fault is one scheduled fault.
type Fault struct {
	Kind Kind
	// Service has the fault, or is empty for a fault of all.
	Service string
	// Start is the time since the begin of the step. Duration is 0 for a fault that is over at
	// once.
	Start, Duration time.Duration
}

func (f Fault) String() string {
	text := string(f.Kind)
	if f.Service != "" {
		text += " (" + f.Service + ")"
	}
	if f.Start > 0 {
		text += fmt.Sprintf(" after %v", f.Start)
	}
	if f.Duration > 0 {
		text += fmt.Sprintf(" for %v", f.Duration)
	}
	return text
}

// Step is one fault, or several at overlapping times.
type Step []Fault

func (s Step) String() string {
	names := make([]string, len(s))
	for i, f := range s {
		names[i] = f.String()
	}
	return strings.Join(names, " with ")
}

// End returns the time at which the last fault of a step is over.
func (s Step) End() time.Duration {
	var end time.Duration
	for _, f := range s {
		end = max(end, f.Start+f.Duration)
	}
	return end
}

// Setting says what to draw.
type Setting struct {
	// Entries are the rows of the table to draw from.
	Entries []Entry
	// Steps is the number of steps. 0 gives each entry one step.
	Steps int
	// Pairs injects two faults in each step, of different services if one would end the other and
	// they can have different ones.
	Pairs bool
	// Brief gives each fault its least duration.
	Brief bool
}

// Part returns each entry whose index is at modulo parts. The parts of a table are disjoint and
// have all of its entries.
func Part(entries []Entry, at, parts int) []Entry {
	var part []Entry
	for i := at; i < len(entries); i += parts {
		part = append(part, entries[i])
	}
	return part
}

// Draw returns the steps of a seed. A row comes a second time only after each has come once. With
// Steps of 0, a pair is left single if nothing that remains goes with its fault.
func Draw(seed uint64, setting Setting) []Step {
	d := &drawing{Drawing: schedule.New(seed, setting.Entries), setting: setting}
	var steps []Step
	for len(steps) < setting.Steps || setting.Steps == 0 && d.drawn < len(setting.Entries) {
		d.Refill()
		first, _ := d.next(nil)
		step := Step{first}
		if second, found := d.partner(first); found {
			step = append(step, second)
		}
		steps = append(steps, step)
	}
	return steps
}

// drawing is the state of one Draw.
type drawing struct {
	*schedule.Drawing[Entry]
	setting Setting
	drawn   int
}

func (d *drawing) next(allowed func(Entry) bool) (fault Fault, found bool) {
	entry, found := d.Next(allowed)
	if !found {
		return Fault{}, false
	}
	d.drawn++
	return d.draw(entry), true
}

// partner draws the second fault of a step.
func (d *drawing) partner(first Fault) (second Fault, found bool) {
	if !d.setting.Pairs {
		return Fault{}, false
	}
	of := EntryOf(first.Kind)
	if d.setting.Steps > 0 {
		d.Refill()
	}
	allowed := func(e Entry) bool {
		return goTogether(of, e) && (!undo(of, e) || slices.ContainsFunc(e.Services, func(s string) bool { return s != first.Service }))
	}
	if second, found = d.next(allowed); !found {
		return Fault{}, false
	}
	if entry := EntryOf(second.Kind); second.Service == first.Service && undo(of, entry) {
		if others := without(entry.Services, first.Service); len(others) > 0 {
			second.Service = others[d.IntN(len(others))]
		}
	}
	second.Start = d.Between(0, max(first.Duration, 2*time.Second), tenth)
	return second, true
}

// goTogether says whether two faults can be in one step.
func goTogether(a, b Entry) bool {
	sameProcess := a.Signals && b.Signals && (len(a.Services) == 1 && slices.Contains(b.Services, a.Services[0]) || len(b.Services) == 1 && slices.Contains(a.Services, b.Services[0]))
	ofAll := undo(a, b) && (len(a.Services) == 0 || len(b.Services) == 0)
	withoutEtcd := a.NeedsEtcd && b.NoQuorum() || b.NeedsEtcd && a.NoQuorum()
	return (!a.OfEtcd || !b.OfEtcd) && !sameProcess && !ofAll && !withoutEtcd
}

// undo says whether the end of one of two faults of a service would end the other one.
func undo(a, b Entry) bool {
	return a.Signals && b.Signals || linkOf(a.Kind) != "" && linkOf(a.Kind) == linkOf(b.Kind)
}

func without(all []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == one })
}

func (d *drawing) draw(entry Entry) Fault {
	f := Fault{Kind: entry.Kind}
	if len(entry.Services) > 0 {
		f.Service = entry.Services[d.IntN(len(entry.Services))]
	}
	switch {
	case d.setting.Brief:
		f.Duration = entry.Least
	case entry.Most > 0:
		f.Duration = d.Between(entry.Least, entry.Most, tenth)
	}
	return f
}

// tenth of a second is easy to read.
const tenth = 100 * time.Millisecond

// Shrink returns the shortest schedule that it finds for which fails returns true: it leaves out
// steps, then faults of steps. steps itself must fail. Each try is one call of fails, at most tries
// of them.
func Shrink(steps []Step, tries int, fails func([]Step) bool) []Step {
	for size := max(1, len(steps)/2); ; size /= 2 {
		for from := 0; from < len(steps) && len(steps) > 1 && tries > 0; {
			shorter := slices.Concat(steps[:from], steps[min(from+size, len(steps)):])
			tries--
			if len(shorter) > 0 && fails(shorter) {
				steps = shorter
			} else {
				from += size
			}
		}
		if size <= 1 {
			break
		}
	}
	for i := range steps {
		for at := 0; at < len(steps[i]) && len(steps[i]) > 1 && tries > 0; {
			shorter := slices.Clone(steps)
			shorter[i] = slices.Delete(slices.Clone(steps[i]), at, at+1)
			tries--
			if fails(shorter) {
				steps = shorter
			} else {
				at++
			}
		}
	}
	return steps
}
