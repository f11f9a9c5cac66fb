package list

import (
	"slices"
	"testing"
)

func TestSortable_OrdersByValue(t *testing.T) {
	for name, ordered := range map[string][]string{
		"numbers":   {"-1", "0.5", "2", "10", "-"},
		"shares":    {"5%", "57%", "100%", ""},
		"fractions": {"1/10", "9/10", "114/114"},
		"ages":      {"0s", "2.1s", "59s", "1m5s", "59m59s", "1h0m", "2d3h", "never"},
		"latencies": {"150µs", "18ms", "999ms", "1s"},
		"dues":      {"5m0s ago", "5s ago", "now", "in 8s", "in 1h0m"},
		"times":     {"2026-01-02T03:04:05Z", "2026-01-02T03:04:05.5Z", "2026-01-02T03:04:06Z"},
		"API":       {"3.500s", "10s", "40s"},
		"names":     {"n1", "n9", "n10", "n10-a", "n010b", "node"},
		"mixed":     {"2", "10", "a", "-"},
	} {
		for i, a := range ordered {
			for j, b := range ordered {
				got := parseSortable(a).compare(parseSortable(b))
				if (i < j && got >= 0) || (i == j && got != 0) || (i > j && got <= 0) {
					t.Errorf("%s: compare(%q, %q) = %d", name, a, b, got)
				}
			}
		}
	}
}

func TestCheckSort(t *testing.T) {
	columns := []Column{{Title: "NAME"}, {Title: "TAINTS/S"}}
	for by, isRight := range map[string]bool{
		"": true, "name": true, "TAINTS/S": true, ".owner.shard": true, "{.name}": true, "{.a}{.b}": true,
		"owner": false, "{.name": false, "-name": false,
	} {
		if err := checkSort(by, columns); (err == nil) != isRight {
			t.Errorf("--sort-by=%q: %v", by, err)
		}
	}
	if got := titles(columns); !slices.Equal(got, []string{"NAME", "TAINTS/S"}) {
		t.Errorf("titles %q", got)
	}
}
