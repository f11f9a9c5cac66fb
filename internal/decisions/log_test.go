package decisions

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var small = [ringCount]bounds{{3, 1 << 20}, {5, 3 * fixedSize}, {4, 1 << 20}, {1, 1 << 20}}

// Whatever is recorded and however late a reader reads: a ring has the newest decisions that fit,
// and a reader gets each decision once, in order, or is told that it is lost.
func TestLog_ReaderGetsOrIsToldOfEveryDecision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := time.Unix(1000, 0)
		log := newLog(small, func() time.Time { return clock })
		var at Cursor
		var recorded [ringCount]uint64
		var got, lost uint64
		seen := Cursor{}
		last := time.Time{}
		read := func() {
			kept, missed, end := log.After(at)
			for _, d := range kept {
				if d.Number <= seen[d.Ring] {
					t.Fatalf("decision %d of ring %d came again", d.Number, d.Ring)
				}
				if !d.Time.After(last) {
					t.Fatalf("decision at %v came after one at %v", d.Time, last)
				}
				seen[d.Ring], last = d.Number, d.Time
			}
			got, lost, at = got+uint64(len(kept)), lost+missed, end
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				read()
			case 1:
				clock = clock.Add(time.Duration(rapid.IntRange(-5, 5).Draw(t, "clock")))
			default:
				action := rapid.SampledFrom(Actions()).Draw(t, "action")
				name := strings.Repeat("x", rapid.IntRange(0, 300).Draw(t, "name"))
				log.Record(Decision{Action: action, Object: Object{Name: name}})
				recorded[action.ring()]++
			}
			for i := range log.rings {
				r := &log.rings[i]
				size := 0
				for number := r.first; number < r.next; number++ {
					size += r.slot(number).size()
				}
				if kept := int(r.next - r.first); kept > r.count || size != r.size || size > r.bytes && kept > 1 || recorded[i] > 0 && kept == 0 {
					t.Fatalf("ring %d keeps %d decisions of %d bytes, counted %d, bounds %v", i, kept, size, r.size, r.bounds)
				}
			}
		}
		read()
		total := uint64(0)
		for _, count := range recorded {
			total += count
		}
		if got+lost != total {
			t.Fatalf("a reader got %d and was told of %d lost, want %d in all", got, lost, total)
		}
	})
}

func TestLog_FrequentDecisionsPushOutNoRareOnes(t *testing.T) {
	log := NewLog()
	log.Record(Decision{Action: TermTaken})
	log.Record(Decision{Action: NodeMarkedUnknown, Object: Object{Kind: "Node", Name: "a"}})
	for range 100_000 {
		log.Record(Decision{Action: SlicesWritten, Object: Object{Kind: "Service", Name: "web"}})
	}
	kept, lost, _ := log.After(Cursor{})
	if !slices.ContainsFunc(kept, func(d Decision) bool { return d.Action == NodeMarkedUnknown }) || kept[0].Action != TermTaken {
		t.Error("a roll-out pushed out the decision about a Node or a term")
	}
	if want := limits[Slices].count + 2; len(kept) > want || lost != uint64(100_002-len(kept)) {
		t.Errorf("%d decisions are kept and %d lost, want at most %d kept", len(kept), lost, want)
	}
}

func TestLog_LongMessageIsCut(t *testing.T) {
	log := NewLog()
	log.Record(Decision{Action: WriteRefused, Message: strings.Repeat("x", 1<<20)})
	if kept, _, _ := log.After(Cursor{}); len(kept) != 1 || len(kept[0].Message) != MaxMessage {
		t.Errorf("After() = %d decisions, want one with a message of %d bytes", len(kept), MaxMessage)
	}
}

func TestLog_ChangedWakesAReader(t *testing.T) {
	log := NewLog()
	var recording sync.WaitGroup
	recording.Go(func() {
		for i := range 1000 {
			log.Record(Decision{Action: PodEvicted, Object: Object{Name: fmt.Sprint(i)}})
		}
	})
	var at Cursor
	var got []Decision
	for len(got) < 1000 {
		<-log.Changed(at)
		var kept []Decision
		kept, _, at = log.After(at)
		got = append(got, kept...)
	}
	recording.Wait()
	select {
	case <-log.Changed(at):
		t.Error("Changed() is closed, and no decision is new")
	default:
	}
}

func TestLog_NilRecordsNothing(t *testing.T) {
	var log *Log
	log.Record(Decision{Action: TermTaken})
	if kept, lost, _ := log.After(log.Dropped()); len(kept) != 0 || lost != 0 || log.Changed(Cursor{}) != nil {
		t.Error("a nil Log has decisions")
	}
}

// The rings have grown, so that recording allocates nothing.
func TestLog_RecordAllocatesNothing(t *testing.T) {
	log := grown()
	d := Decision{Action: SlicesWritten, Object: Object{Kind: "Service", Namespace: "shop", Name: "web"}, Updated: 3}
	if allocations := testing.AllocsPerRun(1000, func() { log.Record(d) }); allocations != 0 {
		t.Errorf("Record allocates %v times, want 0", allocations)
	}
}

func grown() *Log {
	log := NewLog()
	for range limits[Slices].count + 1 {
		log.Record(Decision{Action: SlicesWritten})
	}
	return log
}

func BenchmarkRecord(b *testing.B) {
	log := grown()
	d := Decision{Action: SlicesWritten, Object: Object{Kind: "Service", Namespace: "shop", Name: "web", UID: "1b4e28ba"}, Updated: 3, Shard: 7, Epoch: 12}
	b.ReportAllocs()
	for b.Loop() {
		log.Record(d)
	}
}
