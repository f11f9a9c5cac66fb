package main

import (
	"strings"
	"testing"
	"time"
)

func TestQuantile_IsOneOfTheTimes(t *testing.T) {
	var times []time.Duration
	for i := range 100 {
		times = append(times, time.Duration(i+1))
	}
	for _, c := range []struct {
		q    float64
		want time.Duration
	}{{q: 0, want: 1}, {q: 0.5, want: 50}, {q: 0.99, want: 99}, {q: 1, want: 100}} {
		if got := quantile(times, c.q); got != c.want {
			t.Errorf("quantile %v of 1 to 100 = %d, want %d", c.q, got, c.want)
		}
	}
	if got := quantile(times[:10], 0.99); got != 10 {
		t.Errorf("99th percentile of ten = %d, want the largest", got)
	}
}

func TestThousands_GroupsDigits(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", 1234567.8: "1,234,568"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%v) = %s, want %s", n, got, want)
		}
	}
}

// costing returns a contender whose heartbeats cost the given number of microseconds each.
func costing(microseconds int) cost {
	return cost{cpu: 1000 * time.Duration(microseconds) * time.Microsecond, beats: 1000, in: time.Second}
}

func TestCompare_OnlyOursCanMiss(t *testing.T) {
	for _, c := range []struct {
		ours, echo, etcd int
		missed           bool
	}{
		{ours: 160, echo: 100, etcd: 100},
		{ours: 161, echo: 100, etcd: 200, missed: true},
		{ours: 50, echo: 100, etcd: 900},
	} {
		r := compare([]*contender{{cost: costing(c.ours)}, {cost: costing(c.echo)}, {cost: costing(c.etcd)}}, "what", 1.6)
		if r.missed != c.missed {
			t.Errorf("%+v: missed is %v", c, r.missed)
		}
	}
}

func TestPrintTable_ShowsWhatIsMissed(t *testing.T) {
	rows := []row{
		{what: "a", target: "≤ 1", ours: "1"},
		{what: "b", ours: "2", beside: "3"},
		{what: "c", target: "≤ 1", ours: "2", missed: true},
	}
	var out strings.Builder
	printTable(&out, rows)
	const want = `| what | must reach | leasesvc | beside it | |
|---|---|---|---|---|
| a | ≤ 1 | 1 | – | met |
| b | – | 2 | 3 |  |
| c | ≤ 1 | 2 | – | **missed** |
`
	if out.String() != want {
		t.Errorf("the table is\n%s", out.String())
	}
	if targetsMet(rows) || !targetsMet(rows[:2]) {
		t.Error("only the third row misses its target")
	}
}
