package session_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

func TestRegisterIfNewer_TwiceReplacedBootIsRejected(t *testing.T) {
	table := newTable()
	registerIfNewer(table, at(0), holder("a", "A"), 1)
	registerIfNewer(table, at(time.Second), holder("a", "B"), 1)
	registerIfNewer(table, at(2*time.Second), holder("a", "C"), 1)
	for _, boot := range []string{"A", "B"} {
		if _, outcome := registerIfNewer(table, at(3*time.Second), holder("a", boot), 9); outcome != session.Superseded {
			t.Errorf("a delayed beat of boot %s: outcome %v, want Superseded", boot, outcome)
		}
	}
	if s, _ := table.Get(session.Key{Name: "a"}); s.Holder.Boot != "C" || s.LastBeat != at(2*time.Second) {
		t.Errorf("the session is %+v, want that of C, unchanged", s)
	}
}

func TestRegisterIfNewer_ReplacedBootTakesOverAnExpiredSession(t *testing.T) {
	table := newTable()
	registerIfNewer(table, at(0), holder("a", "A"), 1)
	first, _ := registerIfNewer(table, at(0), holder("a", "B"), 1)
	if other, returned := table.Returned(first); returned {
		t.Errorf("a new boot returned after %q", other)
	}
	advance(table, at(node.TTL))
	ref, outcome := registerIfNewer(table, at(node.TTL), holder("a", "A"), 2)
	if outcome != session.TookOver {
		t.Errorf("outcome %v, want TookOver", outcome)
	}
	if other, returned := table.Returned(ref); !returned || other != "B" {
		t.Errorf("returned %v after boot %q, want true after B", returned, other)
	}
	if _, outcome := registerIfNewer(table, at(node.TTL), holder("a", "B"), 2); outcome != session.Superseded {
		t.Errorf("boot B then: outcome %v, want Superseded", outcome)
	}
}

func TestDuplicate_RejectionsOfAnEpisodeAreCounted(t *testing.T) {
	table := newTable()
	old, _ := register(table, at(0), holder("a", "A"), 1)
	ref, _ := register(table, at(0), holder("a", "B"), 1)
	if d, some := table.Duplicate(at(0), ref); some {
		t.Errorf("%+v before any rejection", d)
	}
	register(table, at(time.Second), holder("a", "A"), 1)
	table.Beat(at(2*time.Second), at(2*time.Second), old, 2)
	want := session.Duplicate{Boot: "A", Since: at(time.Second), Last: at(2 * time.Second), Rejections: 2}
	if d, _ := table.Duplicate(at(2*time.Second), ref); d != want {
		t.Errorf("(-want +got):\n%s", cmp.Diff(want, d))
	}
	late := at(2*time.Second + node.TTL + 2*time.Minute + 1)
	if d, some := table.Duplicate(late, ref); some {
		t.Errorf("%+v after the episode has ended", d)
	}
	register(table, late, holder("a", "A"), 1)
	want = session.Duplicate{Boot: "A", Since: late, Last: late, Rejections: 1}
	if d, _ := table.Duplicate(late, ref); d != want {
		t.Errorf("second episode (-want +got):\n%s", cmp.Diff(want, d))
	}
	table.Forget(ref)
	if d, some := table.Duplicate(late, ref); some {
		t.Errorf("%+v for a session that is gone", d)
	}
}

func TestRestore_StateFollowsFromTheSilence(t *testing.T) {
	now := at(time.Minute)
	for silence, want := range map[time.Duration]session.State{
		-time.Hour: session.Alive, 0: session.Alive, node.Suspect: session.Suspect, node.TTL: session.Expired,
		node.TTL + node.Retention - 1: session.Expired,
	} {
		table := newTable()
		ref, outcome := table.Restore(now, session.Silence{Holder: holder("a", "1"), For: silence})
		s, _ := table.Lookup(ref)
		if outcome != session.Opened || s.State != want || s.LastBeat.Sub(now.Add(-max(silence, 0))) >= time.Millisecond {
			t.Errorf("silence %v: outcome %v, %+v, want state %v", silence, outcome, s, want)
		}
		if table.Counts().Total() != 1 || len(advance(table, now)) != 0 {
			t.Errorf("silence %v: counts %+v, or a transition is still due", silence, table.Counts())
		}
		if outcome := table.Beat(now, now, ref, 1); outcome != session.Renewed && outcome != session.Recovered {
			t.Errorf("silence %v: outcome of its beat %v", silence, outcome)
		}
	}
	table := newTable()
	if _, outcome := table.Restore(now, session.Silence{Holder: holder("a", "1"), For: node.TTL + node.Retention}); outcome != session.Unknown {
		t.Errorf("silence beyond the Retention: outcome %v, want Unknown", outcome)
	}
	register(table, now, holder("a", "2"), 1)
	if _, outcome := table.Restore(now, session.Silence{Holder: holder("a", "1"), For: time.Second}); outcome != session.Repeated {
		t.Errorf("known: outcome %v, want Repeated", outcome)
	}
}
