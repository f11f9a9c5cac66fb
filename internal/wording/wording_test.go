package wording_test

import (
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/wording"
)

func TestWording(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for _, c := range []struct{ what, got, want string }{
		{"short text", wording.Clip("abc", 3), "abc"},
		{"long text", wording.Clip("abcd", 3), "abc…"},
		{"a cut character", wording.Clip("aéé", 2), "a…"},
		{"no bytes", wording.Clip("é", 0), "…"},
		{"bytes", wording.Clip("a\xffb", 9), "a\uFFFDb"},
		{"cut bytes", wording.Clip("\xff\xff\xff\xff", 2), "\uFFFD…"},
		{"lines", wording.Line(" a\n\tb  c ", 9), "a b c"},
		{"cut lines", wording.Line("a\nbcd", 3), "a b…"},
		{"controls", wording.Printable("a\x1b[1m\n\u202e", 99), "a\uFFFD[1m\uFFFD\uFFFD"},
		{"today", wording.Clock(now, now.Add(-time.Hour)), "04:06:07 UTC"},
		{"yesterday", wording.Clock(now, now.Add(-24*time.Hour)), "2026-03-03 05:06:07 UTC"},
		{"another zone", wording.Time(now.In(time.FixedZone("", 3600))), "2026-03-04 05:06:07 UTC"},
		{"one", wording.Count(1, "pod"), "1 pod"},
		{"none", wording.Count(0, "pod"), "0 pods"},
		{"a few", wording.List([]string{"a", "b"}, 2), "a, b"},
		{"many", wording.List([]string{"a", "b", "c", "d", "e", "f"}, 6), "a, b, c, d, e, …"},
		{"the first of many", wording.List([]string{"a", "b", "c", "d", "e"}, 70), "a, b, c, d, e, …"},
		{"quoted", wording.Quoted([]string{"a\x1b", "bcd"}, 2, 2), `"a\x1b", "bc"`},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q, want %q", c.what, c.got, c.want)
		}
	}
}
