package schedule

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

func TestDraw_SeedIsReproducibleAndHasEachRowOnce(t *testing.T) {
	for seed := range uint64(50) {
		steps := Draw(seed, Setting{Entries: Table()})
		if again := Draw(seed, Setting{Entries: Table()}); !reflect.DeepEqual(steps, again) {
			t.Fatalf("seed %d gives %v, then %v", seed, steps, again)
		}
		count := map[Kind]int{}
		for _, step := range steps {
			for _, f := range step {
				count[f.Kind]++
				entry := EntryOf(f.Kind)
				if f.Duration < entry.Least || f.Duration > entry.Most {
					t.Errorf("%v is outside of %v to %v", f, entry.Least, entry.Most)
				}
				if len(entry.Services) > 0 && !slices.Contains(entry.Services, f.Service) {
					t.Errorf("%v: %q cannot have it", f, f.Service)
				}
			}
		}
		for _, entry := range Table() {
			if count[entry.Kind] != 1 {
				t.Errorf("seed %d has %q %d times", seed, entry.Kind, count[entry.Kind])
			}
		}
	}
	if reflect.DeepEqual(Draw(1, Setting{Entries: Table()}), Draw(2, Setting{Entries: Table()})) {
		t.Error("two seeds give one schedule")
	}
}

func TestDraw_PairsOverlap(t *testing.T) {
	together := 0
	for seed := range uint64(50) {
		for _, step := range Draw(seed, Setting{Entries: Table(), Steps: 9, Pairs: true}) {
			first := EntryOf(step[0].Kind)
			if len(step) != 2 || step[0].Kind == step[1].Kind {
				t.Fatalf("step %v is no pair", step)
			}
			second := EntryOf(step[1].Kind)
			if first.OfEtcd && second.OfEtcd {
				t.Errorf("%v: two faults that cannot be together", step)
			}
			if first.NeedsEtcd && second.NoQuorum() || second.NeedsEtcd && first.NoQuorum() {
				t.Errorf("%v: one fault needs etcd, which the other one stops", step)
			}
			if same := step[0].Service == step[1].Service; same && undo(first, EntryOf(step[1].Kind)) {
				t.Errorf("%v: the end of one fault ends the other", step)
			} else if same {
				together++
			}
			if step[1].Start > max(step[0].Duration, 2*s) {
				t.Errorf("%v: the second fault begins after the first one", step)
			}
		}
	}
	if together == 0 {
		t.Error("no pair is in one service")
	}
}

// A pair of each row at its least duration is what the short form runs.
func TestDraw_BriefPairsHaveEachRowOnce(t *testing.T) {
	for seed := range uint64(50) {
		steps := Draw(seed, Setting{Entries: Table(), Pairs: true, Brief: true})
		count, single := map[Kind]int{}, 0
		for _, step := range steps {
			if len(step) == 1 {
				single++
			}
			for _, f := range step {
				count[f.Kind]++
				if f.Duration != EntryOf(f.Kind).Least {
					t.Errorf("%v is longer than %v", f, EntryOf(f.Kind).Least)
				}
			}
		}
		for _, entry := range Table() {
			if count[entry.Kind] != 1 {
				t.Errorf("seed %d has %q %d times", seed, entry.Kind, count[entry.Kind])
			}
		}
		if single > 4 {
			t.Errorf("seed %d leaves %d faults alone: %v", seed, single, steps)
		}
	}
}

func TestSelect_ByNameAndByNumber(t *testing.T) {
	for names, want := range map[string]int{"": len(Table()), "F1": 1, "F1,leader frozen": 2, "F4": 10} {
		if got, err := Select(names); err != nil || len(got) != want {
			t.Errorf("Select(%q) = %d rows, %v; want %d", names, len(got), err, want)
		}
	}
	for _, entry := range Table() {
		if got, err := Select(string(entry.Kind)); err != nil || len(got) != 1 {
			t.Errorf("Select(%q) = %d rows, %v; want its own", entry.Kind, len(got), err)
		}
	}
	if _, err := Select("F1,F0"); err == nil {
		t.Error("an unknown fault is accepted")
	}
}

// Whatever faults are needed, the shrunk schedule has these and no others.
func TestShrink_LeavesWhatIsNeeded(t *testing.T) {
	steps := Draw(7, Setting{Entries: Table(), Steps: 16, Pairs: true})
	for _, needed := range [][]Fault{{steps[3][1]}, {steps[0][0], steps[15][1]}, {steps[5][0], steps[5][1]}} {
		t.Run(fmt.Sprint(needed), func(t *testing.T) {
			fails := func(tried []Step) bool {
				return !slices.ContainsFunc(needed, func(f Fault) bool {
					return !slices.ContainsFunc(tried, func(step Step) bool { return slices.Contains(step, f) })
				})
			}
			got := slices.Concat(Shrink(steps, 1000, fails)...)
			if !reflect.DeepEqual([]Fault(got), needed) {
				t.Errorf("shrunk to %v, want %v", got, needed)
			}
		})
	}
	calls := 0
	Shrink(steps, 5, func([]Step) bool { calls++; return false })
	if calls > 5 {
		t.Errorf("%d tries, want 5 at most", calls)
	}
}

func TestJudge_SaysWhatAFaultExcuses(t *testing.T) {
	for kind, want := range map[Kind]history.Window{
		Kill:               {Shows: []string{"told", "silence"}},
		RollingUpdate:      {Shows: []string{"told", "silence"}, Graceful: true},
		EtcdStopped:        {Shows: []string{"told", "silence"}, NoQuorum: true, Excused: 30 * s},
		APIServerKilled:    {Shows: []string{"published", "told", "silence"}, Excused: 20 * s},
		CertificateExpired: {Shows: []string{"told"}, Excused: 30 * s},
	} {
		want.From, want.To = 10*s, 30*s
		got := history.Window{From: 10 * s, To: 30 * s, Excused: s}
		if EntryOf(kind).Judge(&got); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", kind, got, want)
		}
	}
}

func TestPart_PartsHaveEachEntryOnce(t *testing.T) {
	times := map[Kind]int{}
	for at := range 3 {
		part := Part(Table(), at, 3)
		if len(part) == 0 {
			t.Errorf("part %d has no entry", at)
		}
		for _, entry := range part {
			times[entry.Kind]++
		}
	}
	for _, entry := range Table() {
		if times[entry.Kind] != 1 {
			t.Errorf("%s is in the parts %d times", entry.Kind, times[entry.Kind])
		}
	}
}
