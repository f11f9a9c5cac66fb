package list

import "testing"

// The order of three texts is one: a sort of hostile texts is the same on every machine.
func FuzzSortable(f *testing.F) {
	for _, texts := range [][3]string{
		{"node-9", "node-10", "node-09"}, {"5s ago", "in 5s", "now"}, {"1.2.3s", "9" + "99999999999999999999h", "-"}, {"50%", "3/4", "-0"},
		{"0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", ""}, {"\xff", "\u202e", "0x1"}, {"1e999", "NaN", "+Inf"}, {"00", "0", "000a"},
	} {
		f.Add(texts[0], texts[1], texts[2])
	}
	f.Fuzz(func(t *testing.T, a, b, c string) {
		x, y, z := parseSortable(a), parseSortable(b), parseSortable(c)
		if x.compare(y) != -y.compare(x) || x.compare(x) != 0 {
			t.Errorf("%q and %q: %d, and %d in the other order", a, b, x.compare(y), y.compare(x))
		}
		if x.compare(y) <= 0 && y.compare(z) <= 0 && x.compare(z) > 0 {
			t.Errorf("%q <= %q <= %q, but the first is after the last", a, b, c)
		}
	})
}
