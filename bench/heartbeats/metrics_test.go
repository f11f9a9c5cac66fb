package main

import "testing"

const someMetrics = `# HELP a_total Some.
# TYPE a_total counter
a_total{verb="PUT",code="200"} 3
a_total{verb="PUT",code="409"} 4
a_total{verb="GET",code="200"} 5
a_total_of_another{verb="PUT"} 100
`

func TestSumOf_AddsWhatHasTheLabels(t *testing.T) {
	for _, c := range []struct {
		labelled []string
		want     float64
	}{{want: 12}, {labelled: []string{`verb="PUT"`}, want: 7}, {labelled: []string{`verb="PUT"`, `code="200"`}, want: 3}} {
		if got, err := sumOf(someMetrics, "a_total", c.labelled...); got != c.want || err != nil {
			t.Errorf("%v: %v, %v; want %v", c.labelled, got, err, c.want)
		}
	}
	if got, err := sumOf(someMetrics, "a_total", `verb="POST"`); err == nil {
		t.Errorf("a metric without samples is %v and no error", got)
	}
}

func TestHeapIn_ReadsTheEndOfAProfile(t *testing.T) {
	if got, err := heapIn("heap profile: 1: 2 [3: 4] @ heap/1\n\n# runtime.MemStats\n# Alloc = 1\n# HeapAlloc = 1234\n"); got != 1234 || err != nil {
		t.Errorf("heap of %d, %v", got, err)
	}
	if got, err := heapIn("# Alloc = 1\n"); err == nil {
		t.Errorf("a profile without it has a heap of %d", got)
	}
}
