package history_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/test/faults/terms/internal/history"
)

// ms converts milliseconds, the unit of time in these histories.
func ms(n int64) int64 { return n * int64(time.Millisecond) }

func register(epoch int64, id string) history.Register {
	return history.Register{Epoch: epoch, ID: id}
}

func passed(epoch, from, to int64) history.Event {
	return history.Event{Kind: history.Passed, Value: register(epoch, ""), From: ms(from), To: ms(to)}
}

func wrote(value history.Register, from, to int64, outcome history.Outcome) history.Event {
	return history.Event{Kind: history.Wrote, Value: value, From: ms(from), To: ms(to), Outcome: outcome}
}

func read(id string, seen history.Register, from, to int64) history.Event {
	return history.Event{Kind: history.Read, ID: id, From: ms(from), To: ms(to), Outcome: history.Answered, Seen: seen}
}

func refused(value, seen history.Register, from, to int64) history.Event {
	e := wrote(value, from, to, history.Refused)
	e.Seen = seen
	return e
}

func version(revision int64, value history.Register) history.Version {
	return history.Version{Revision: revision, Register: value}
}

// good returns a history of one shard without a violation. Replica a writes under epoch 10 and is
// killed at 1000 ms with a pending write. Replica b follows under epoch 20, 2500 ms later.
func good() history.History {
	a, b, late := register(10, "a1"), register(20, "b1"), register(10, "a2")
	return history.History{
		Shards: 1, TTL: 2 * time.Second, End: ms(4000),
		Logs: []history.Log{
			{Replica: "a", Events: []history.Event{
				passed(10, 100, 101), wrote(a, 102, 0, history.Unknown), wrote(a, 102, 104, history.Applied),
				passed(10, 990, 991), wrote(late, 992, 0, history.Unknown),
			}},
			{Replica: "b", Events: []history.Event{
				read("r1", history.Register{}, 50, 60), read("r2", a, 500, 510),
				passed(20, 3490, 3500), wrote(b, 3501, 3505, history.Applied), refused(register(20, "b2"), b, 3600, 3610),
				passed(20, 3999, 4001),
			}},
		},
		Versions: []history.Version{version(11, a), version(21, b)},
		Claims:   []history.Claim{{Holder: "a", Epoch: 10, Gone: 15}, {Holder: "b", Epoch: 20}},
		Faults:   []history.Fault{{Kind: history.Other, Replica: "a", From: ms(1000), To: ms(1000)}},
	}
}

func TestAnalyze_HistoryWithoutViolations(t *testing.T) {
	want := history.Report{
		Applied: 2, Refused: 1, Unanswered: 1, Reads: 2, Checks: 4, Terms: 2, FewestApplied: 2,
		Bound: 3 * time.Second, LongestGap: 2510 * time.Millisecond, LongestWithoutFault: 2500 * time.Millisecond,
	}
	got := history.Analyze(good())
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	if err := got.Err(history.Minimum{Applied: 2, Reads: 2, Terms: 2}); err != nil {
		t.Errorf("Err = %v", err)
	}
}

// Each case changes the good history in one way.
func TestAnalyze_EveryViolationIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*history.History)
		want   string
	}{
		"a read after the answer to a write does not see it": {
			func(h *history.History) { h.Logs[1].Events[1].Seen = history.Register{} }, "not linearizable",
		},
		"a read goes back": {
			func(h *history.History) { add(h, 1, read("r3", register(10, "a1"), 3700, 3710)) }, "not linearizable",
		},
		"a refused write saw what was overwritten": {
			func(h *history.History) { h.Logs[1].Events[4].Seen = register(10, "a1") }, "not linearizable",
		},
		"a write of an old epoch is applied": {
			func(h *history.History) { add(h, 0, wrote(register(10, "a3"), 3700, 3705, history.Applied)) }, "not linearizable",
		},
		"a write without an answer takes effect too late": {
			func(h *history.History) { add(h, 1, read("r3", register(10, "a2"), 3800, 3810)) }, "not linearizable",
		},
		"a value is read before it is written": {
			func(h *history.History) { h.Logs[1].Events[0].Seen = register(10, "a1") }, "not linearizable",
		},
		"an old epoch is written after a new one": {
			func(h *history.History) { h.Versions = append(h.Versions, version(22, register(10, "a2"))) },
			"revision 22 wrote epoch 10 after 20",
		},
		"a write takes effect after its key was deleted": {
			func(h *history.History) { h.Versions = slices.Insert(h.Versions, 1, version(16, register(10, "a2"))) },
			"revision 16 wrote epoch 10, whose key was deleted at 15",
		},
		"an epoch that no replica claimed": {
			func(h *history.History) { h.Versions = append(h.Versions, version(30, register(25, "x"))) }, "which no replica claimed",
		},
		"an applied write that etcd does not know": {
			func(h *history.History) { h.Versions = h.Versions[:1] }, `was answered "applied", took effect: false`,
		},
		"a refused write that took effect": {
			func(h *history.History) { h.Versions = append(h.Versions, version(22, register(20, "b2"))) },
			`was answered "refused", took effect: true`,
		},
		"a replica that claimed nothing": {
			func(h *history.History) { h.Claims[1].Holder = "c" }, "b acted under epoch 20, which it had not claimed",
		},
		"two replicas act at once": {
			func(h *history.History) { add(h, 0, passed(10, 3510, 3511)) },
			"a at epoch 10 and b at epoch 20 both acted for 10ms",
		},
		"no replica acts for too long": {
			func(h *history.History) { h.End = ms(7000) }, "no replica acted for 3.001s, 3.001s of that without a fault",
		},
		"no replica acts for too long after an outage": {
			func(h *history.History) {
				h.End = ms(9600)
				h.Faults = append(h.Faults, history.Fault{Kind: history.Outage, From: ms(4100), To: ms(5500)})
			}, "no replica acted for 5.601s, 3.1s of that without a fault",
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := good()
			c.change(&h)
			if err := history.Analyze(h).Err(history.Minimum{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Err = %v, want it to say %q", err, c.want)
			}
		})
	}
}

func add(h *history.History, log int, e history.Event) {
	h.Logs[log].Events = append(h.Logs[log].Events, e)
}

// A write without an answer may take effect at any later time, or never.
func TestAnalyze_WriteWithoutAnswerMayHaveTakenEffect(t *testing.T) {
	h := good()
	add(&h, 1, read("r3", register(10, "a2"), 1500, 1600))
	h.Versions = slices.Insert(h.Versions, 1, version(12, register(10, "a2")))
	got := history.Analyze(h)
	if err := got.Err(history.Minimum{}); err != nil || got.LateApplied != 1 {
		t.Errorf("Err = %v, %d late, want none and 1", err, got.LateApplied)
	}
}

// After a forced revocation, a disconnected holder may trust its lease for at most the TTL.
func TestAnalyze_ForcedRevocationExcusesOverlapsWithinTheTTL(t *testing.T) {
	for until, excused := range map[int64]int{4900: 1, 5100: 0} {
		h := good()
		h.End = ms(4000)
		add(&h, 0, passed(10, until, until+1))
		h.Faults = []history.Fault{{Kind: history.Revocation, Replica: "a", From: ms(2990), To: ms(3000)}}
		got := history.Analyze(h)
		if got.ExcusedOverlaps != excused || len(got.Overlaps) != 1-excused {
			t.Errorf("acting until %d: %d excused, overlaps %v", until, got.ExcusedOverlaps, got.Overlaps)
		}
	}
}

// A fault restarts the bound of a gap, but a part before the fault that is too long remains a
// violation.
func TestAnalyze_GapBeforeAFaultCounts(t *testing.T) {
	h := good()
	h.Faults = []history.Fault{{Kind: history.Other, From: ms(3400), To: ms(3450)}}
	h.TTL = time.Second
	if got := history.Analyze(h); got.LongestWithoutFault != 2410*time.Millisecond || len(got.Gaps) != 1 {
		t.Errorf("undisturbed for %v, gaps %v", got.LongestWithoutFault, got.Gaps)
	}
}

func TestReport_BelowMinimumIsAnError(t *testing.T) {
	err := history.Analyze(good()).Err(history.Minimum{Applied: 3, Reads: 3, Terms: 3})
	for _, want := range []string{"2 writes applied", "2 reads, want 3", "2 terms, want 3"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Err = %v, want it to say %q", err, want)
		}
	}
}

func TestReport_PlusAddsCountsAndKeepsExtremes(t *testing.T) {
	one := history.Analyze(good())
	two := one
	two.LongestGap, two.FewestApplied = time.Minute, 1
	got := history.Report{}.Plus(one).Plus(two)
	if got.Applied != 4 || got.Reads != 4 || got.Terms != 4 || got.LongestGap != time.Minute || got.FewestApplied != 1 {
		t.Errorf("sum = %+v", got)
	}
}

func TestReadLog_IncompleteLastLineIsIgnored(t *testing.T) {
	whole := `{"kind":"wrote","shard":3,"value":{"epoch":7,"id":"x"},"from":5,"to":6,"outcome":"applied"}` + "\n"
	got, err := history.ReadLog("a", strings.NewReader(whole+`{"kind":"pa`))
	want := history.Log{Replica: "a", Events: []history.Event{
		{Kind: history.Wrote, Shard: 3, Value: register(7, "x"), From: 5, To: 6, Outcome: history.Applied},
	}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("err %v, log (-want +got):\n%s", err, diff)
	}
	if _, err := history.ReadLog("a", strings.NewReader("{\n"+whole)); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("a broken line in the middle: %v", err)
	}
}

func ExampleReport_String() {
	lines := strings.NewReplacer(", ", "\n", "; ", "\n")
	fmt.Println(lines.Replace(history.Analyze(good()).String()))
	// Output:
	// 2 writes applied (2 at least to each shard)
	// 1 refused
	// 1 unanswered (0 of them took effect)
	// 2 reads
	// 4 checks
	// 2 terms
	// not linearizable 0
	// stale writes 0
	// contradictions 0
	// two holders 0 (and 0 after a forced revocation)
	// no holder beyond 3s: 0 (longest 2.51s
	// of that without a fault 2.5s
	// 0 stalls)
}
