package expect_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/expect"
)

const life = 10 * time.Second

func web() expect.Key { return expect.Key{Namespace: "shop", Name: "web"} }

func at(seconds int) time.Time {
	return time.Date(2026, time.March, 1, 12, 0, seconds, 0, time.UTC)
}

func slice(name, version string) expect.Version {
	return expect.Version{Name: name, UID: types.UID("uid-of-" + name), ResourceVersion: version}
}

// afterWriting is what is expected after a pass that wrote slice a at version 5.
func afterWriting(t *testing.T) *expect.Expectations {
	t.Helper()
	x := expect.New(life)
	if wait := x.Begin(web(), "first", at(0)); wait != 0 {
		t.Fatalf("first pass waits %v", wait)
	}
	x.Wrote(web(), slice("a", "5"), at(0))
	if x.End(web()) {
		t.Fatal("pass wants another though nobody interfered")
	}
	return x
}

func TestBegin_WaitsUntilOwnWriteIsShown(t *testing.T) {
	x := afterWriting(t)
	if wait := x.Begin(web(), "first", at(1)); wait != 9*time.Second {
		t.Errorf("waits %v, want the rest of ten seconds", wait)
	}
	if !x.Pending(web(), at(1)) {
		t.Error("nothing is pending")
	}
	if !x.Shown(web(), slice("a", "5"), at(2)) {
		t.Error("the event that was waited for wakes nobody")
	}
	if wait := x.Begin(web(), "first", at(2)); wait != 0 {
		t.Errorf("waits %v after the write was shown", wait)
	}
}

func TestShown_TellsOwnWritesFromOthers(t *testing.T) {
	for name, c := range map[string]struct {
		shown expect.Version
		want  bool
	}{
		"own":                     {shown: slice("a", "5")},
		"an older one before it":  {shown: slice("a", "4")},
		"a newer one":             {shown: slice("a", "6"), want: true},
		"a longer number, newer":  {shown: slice("a", "10"), want: true},
		"another slice":           {shown: slice("b", "5"), want: true},
		"a version of no meaning": {shown: slice("a", "x"), want: true},
	} {
		if got := afterWriting(t).Shown(web(), c.shown, at(1)); got != c.want {
			t.Errorf("%s: must be looked at: %t, want %t", name, got, c.want)
		}
	}
	x := afterWriting(t)
	x.Shown(web(), slice("a", "5"), at(1))
	if !x.Shown(web(), slice("a", "7"), at(2)) {
		t.Error("a change after our own is not looked at")
	}
	if !expect.New(life).Shown(web(), slice("a", "5"), at(0)) {
		t.Error("a slice of a Service nobody looked at yet is not looked at")
	}
}

func TestGone_TellsOwnDeletionsFromOthers(t *testing.T) {
	x := afterWriting(t)
	x.Shown(web(), slice("a", "5"), at(0))
	x.Begin(web(), "first", at(1))
	x.Deleted(web(), slice("a", "5"), at(1))
	x.End(web())
	if wait := x.Begin(web(), "first", at(1)); wait != life {
		t.Errorf("waits %v for the deletion, want %v", wait, life)
	}
	if !x.Gone(web(), slice("a", "8"), at(2)) {
		t.Error("the deletion that was waited for wakes nobody")
	}
	x.Begin(web(), "first", at(2))
	x.End(web())
	if !x.Gone(web(), slice("b", "9"), at(3)) {
		t.Error("a deletion by somebody else is not looked at")
	}
}

func TestEnd_EventsMayComeBeforeTheAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		shown []expect.Version
		want  bool
		wait  time.Duration
	}{
		"own write":           {shown: []expect.Version{slice("a", "5")}},
		"foreign write":       {shown: []expect.Version{slice("b", "4")}, want: true, wait: life},
		"own, then a foreign": {shown: []expect.Version{slice("a", "5"), slice("a", "6")}, want: true},
	} {
		x := expect.New(life)
		x.Begin(web(), "first", at(0))
		for _, version := range c.shown {
			if x.Shown(web(), version, at(0)) {
				t.Errorf("%s: decided before the write was answered", name)
			}
		}
		x.Wrote(web(), slice("a", "5"), at(0))
		if got := x.End(web()); got != c.want {
			t.Errorf("%s: another pass: %t, want %t", name, got, c.want)
		}
		if wait := x.Begin(web(), "first", at(0)); wait != c.wait {
			t.Errorf("%s: waits %v, want %v", name, wait, c.wait)
		}
	}
}

func TestBegin_NothingWedgesAService(t *testing.T) {
	t.Run("what is never shown expires", func(t *testing.T) {
		if wait := afterWriting(t).Begin(web(), "first", at(10)); wait != 0 {
			t.Errorf("waits %v after ten seconds", wait)
		}
	})
	t.Run("a Service made again expects nothing", func(t *testing.T) {
		if wait := afterWriting(t).Begin(web(), "second", at(1)); wait != 0 {
			t.Errorf("waits %v for what was written for its predecessor", wait)
		}
	})
	t.Run("a slice somebody else deleted is not waited for", func(t *testing.T) {
		x := afterWriting(t)
		if !x.Gone(web(), slice("a", "9"), at(1)) {
			t.Error("the deletion is not looked at")
		}
		if wait := x.Begin(web(), "first", at(1)); wait != 0 {
			t.Errorf("waits %v for a slice that is gone", wait)
		}
	})
	t.Run("what was forgotten is not waited for", func(t *testing.T) {
		x := afterWriting(t)
		x.Forget(web())
		if x.Pending(web(), at(1)) || x.End(web()) {
			t.Error("something is left")
		}
	})
}
