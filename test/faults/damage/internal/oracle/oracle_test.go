package oracle

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func allocate(revision int64, subject string) Event {
	return Event{Revision: revision, Kind: Allocate, Subject: subject}
}

func free(revision int64, subject string) Event {
	return Event{Revision: revision, Kind: Free, Subject: subject}
}

func use(revision int64, service string, subjects ...string) Event {
	return Event{Revision: revision, Kind: Use, Service: service, Subjects: subjects}
}

func useTwice(revision int64, service, subject string) Event {
	e := use(revision, service, subject)
	e.Twice = e.Subjects
	return e
}

func gone(revision int64, service string) Event {
	return Event{Revision: revision, Kind: Use, Service: service, Gone: true}
}

func injected(e Event) Event {
	e.Injected = true
	return e
}

func TestOracle_FindsViolations(t *testing.T) {
	for name, c := range map[string]struct {
		events []Event
		want   []Violation
	}{
		"a Service from creation to deletion": {
			events: []Event{allocate(1, "10.0.0.7"), allocate(2, "30080"), use(3, "web", "10.0.0.7", "30080"), use(4, "web", "10.0.0.7"),
				free(5, "30080"), gone(6, "web"), free(7, "10.0.0.7")},
		},
		"a creation that fails": {
			events: []Event{allocate(1, "10.0.0.7"), free(2, "10.0.0.7"), allocate(3, "10.0.0.7"), use(4, "web", "10.0.0.7")},
		},
		"freed while in use": {
			events: []Event{allocate(1, "10.0.0.7"), use(2, "web", "10.0.0.7"), free(3, "10.0.0.7")},
			want:   []Violation{{Rule: FreedInUse, Revision: 3, Subject: "10.0.0.7", Services: []string{"web"}}},
		},
		"freed while in use and allocated again": {
			events: []Event{allocate(1, "10.0.0.7"), use(2, "web", "10.0.0.7"), free(3, "10.0.0.7"), allocate(4, "10.0.0.7")},
			want:   []Violation{{Rule: FreedInUse, Revision: 3, Subject: "10.0.0.7", Services: []string{"web"}, ReallocatedAt: 4}},
		},
		"freed just before an update releases it": {
			events: []Event{allocate(1, "30080"), use(2, "web", "30080"), free(3, "30080"), use(4, "web")},
			want:   []Violation{{Rule: FreedInUse, Revision: 3, Subject: "30080", Services: []string{"web"}, ReleasedAt: 4}},
		},
		"a port of two protocols, freed twice before an update releases it": {
			events: []Event{allocate(1, "30080"), use(2, "web", "30080"), free(3, "30080"), allocate(4, "30080"), free(5, "30080"), use(6, "web")},
			want: []Violation{
				{Rule: FreedInUse, Revision: 3, Subject: "30080", Services: []string{"web"}, ReallocatedAt: 4, ReleasedAt: 6},
				{Rule: FreedInUse, Revision: 5, Subject: "30080", Services: []string{"web"}, ReleasedAt: 6},
			},
		},
		"a port of two protocols, freed twice after a deletion, in between given to another Service": {
			events: []Event{allocate(1, "30080"), useTwice(2, "web", "30080"), gone(3, "web"), free(4, "30080"), allocate(5, "30080"), free(6, "30080"),
				use(7, "db", "30080"), gone(8, "db"), allocate(9, "30080"), free(10, "30080"), use(11, "cache", "30080")},
		},
		"a port of two protocols, freed a third time": {
			events: []Event{allocate(1, "30080"), useTwice(2, "web", "30080"), gone(3, "web"), free(4, "30080"), allocate(5, "30080"),
				use(6, "db", "30080"), free(7, "30080"), allocate(8, "30080"), free(30, "30080")},
			want: []Violation{{Rule: FreedInUse, Revision: 30, Subject: "30080", Services: []string{"db"}}},
		},
		"a port of one protocol, freed twice after a deletion": {
			events: []Event{allocate(1, "30080"), use(2, "web", "30080"), gone(3, "web"), free(4, "30080"), allocate(5, "30080"), free(6, "30080"),
				use(7, "db", "30080")},
			want: []Violation{{Rule: UsedUnallocated, Revision: 7, Subject: "30080", Services: []string{"db"}}},
		},
		"freed while in use by one Service, and released by an update of another": {
			events: []Event{allocate(1, "30080"), use(2, "web", "30080"), free(3, "30080"), gone(4, "web"), allocate(5, "30080"),
				use(6, "db", "30080"), use(7, "db")},
			want: []Violation{{Rule: FreedInUse, Revision: 3, Subject: "30080", Services: []string{"web"}, ReallocatedAt: 5}},
		},
		"freed while in use by a Service that is deleted later": {
			events: []Event{allocate(1, "30080"), use(2, "web", "30080"), free(3, "30080"), gone(4, "web")},
			want:   []Violation{{Rule: FreedInUse, Revision: 3, Subject: "30080", Services: []string{"web"}}},
		},
		"freed between allocation and use": {
			events: []Event{allocate(1, "30080"), free(2, "30080"), use(3, "web", "30080")},
			want:   []Violation{{Rule: UsedUnallocated, Revision: 3, Subject: "30080", Services: []string{"web"}}},
		},
		"freed while in use and given to another Service": {
			events: []Event{allocate(1, "30080"), use(2, "web", "30080"), free(3, "30080"), allocate(4, "30080"), use(5, "db", "30080")},
			want: []Violation{
				{Rule: FreedInUse, Revision: 3, Subject: "30080", Services: []string{"web"}, ReallocatedAt: 4},
				{Rule: Shared, Revision: 5, Subject: "30080", Services: []string{"db", "web"}},
			},
		},
		"injected damage": {
			events: []Event{allocate(1, "30080"), use(2, "web", "30080"), injected(free(3, "30080")), injected(use(4, "twin", "30080")),
				use(5, "web", "30080")},
		},
		"allocation of an injected free": {
			events: []Event{allocate(1, "30080"), use(2, "web", "30080"), injected(free(3, "30080")), allocate(4, "30080"), use(5, "db", "30080"),
				gone(6, "db"), free(7, "30080")},
		},
		"injected damage, repaired, then freed by another writer": {
			events: []Event{allocate(1, "30080"), use(2, "web", "30080"), injected(free(3, "30080")), allocate(4, "30080"), free(5, "30080")},
			want:   []Violation{{Rule: FreedInUse, Revision: 5, Subject: "30080", Services: []string{"web"}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			oracle := New()
			for _, event := range c.events {
				event.Time = at(event.Revision)
				oracle.Observe(event)
			}
			if diff := cmp.Diff(c.want, oracle.Violations(), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOracle_KnowsAllocatedAndUnusedSubjects(t *testing.T) {
	oracle := New()
	for _, event := range []Event{allocate(1, "10.0.0.7"), allocate(2, "30081"), allocate(3, "30080"), use(4, "web", "10.0.0.7")} {
		oracle.Observe(event)
	}
	if diff := cmp.Diff([]string{"30080", "30081"}, oracle.Unused()); diff != "" {
		t.Errorf("unused (-want +got):\n%s", diff)
	}
	if oracle.WasShared("10.0.0.7") {
		t.Error("10.0.0.7 was shared with one user")
	}
	oracle.Observe(injected(use(5, "twin", "10.0.0.7")))
	oracle.Observe(gone(6, "twin"))
	if !oracle.WasShared("10.0.0.7") {
		t.Error("10.0.0.7 was not shared with two users")
	}
	if diff := cmp.Diff([]string{"web"}, oracle.Users("10.0.0.7")); diff != "" || !oracle.IsAllocated("10.0.0.7") || oracle.IsAllocated("10.0.0.8") {
		t.Errorf("users of 10.0.0.7 (-want +got):\n%s; allocated: %v, %v", diff, oracle.IsAllocated("10.0.0.7"), oracle.IsAllocated("10.0.0.8"))
	}
}

// A leak that an update and a repair cause together differs from a leak without a cause.
func TestOracle_KnowsTheCauseOfAnUnuse(t *testing.T) {
	for name, c := range map[string]struct {
		events []Event
		want   []Unuse
	}{
		"a creation and a deletion": {
			events: []Event{allocate(1, "30080"), use(2, "web", "30080"), gone(3, "web"), free(4, "30080")},
			want:   []Unuse{unuse(1, 2, NoCause), unuse(3, 4, NoCause)},
		},
		"a creation that never ends": {
			events: []Event{allocate(1, "30080")},
			want:   []Unuse{unuse(1, 0, NoCause)},
		},
		"an injected allocation": {
			events: []Event{injected(allocate(1, "30080"))},
			want:   []Unuse{unuse(1, 0, InjectedLeak)},
		},
		"freed by an update and allocated again before its write": {
			events: []Event{allocate(1, "30080"), use(2, "web", "30080"), free(3, "30080"), allocate(4, "30080"), use(5, "web"), free(6, "30080")},
			want:   []Unuse{unuse(1, 2, NoCause), unuse(5, 6, UpdateAndRepair)},
		},
		"freed by an update and allocated again just after its write": {
			events: []Event{allocate(1, "30080"), use(2, "web", "30080"), free(3, "30080"), use(4, "web"), allocate(5, "30080")},
			want:   []Unuse{unuse(1, 2, NoCause), unuse(5, 0, UpdateAndRepair)},
		},
		"freed by an update and allocated a second time after its write": {
			events: []Event{allocate(1, "30080"), use(2, "web", "30080"), free(3, "30080"), use(4, "web"), allocate(5, "30080"), free(6, "30080"),
				allocate(7, "30080")},
			want: []Unuse{unuse(1, 2, NoCause), unuse(5, 6, UpdateAndRepair), unuse(7, 0, NoCause)},
		},
		"an update that frees nothing": {
			events: []Event{allocate(1, "30080"), use(2, "web", "30080"), use(3, "web")},
			want:   []Unuse{unuse(1, 2, NoCause), unuse(3, 0, NoCause)},
		},
		"freed by another writer, allocated again, and left over by a deletion": {
			events: []Event{allocate(1, "30080"), use(2, "web", "30080"), free(3, "30080"), allocate(4, "30080"), gone(5, "web")},
			want:   []Unuse{unuse(1, 2, NoCause), unuse(5, 0, NoCause)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			oracle := New()
			for _, event := range c.events {
				event.Time = at(event.Revision)
				oracle.Observe(event)
			}
			if diff := cmp.Diff(c.want, oracle.Unuses("30080")); diff != "" {
				t.Errorf("unuses (-want +got):\n%s", diff)
			}
		})
	}
}

func at(revision int64) time.Time { return time.Unix(revision, 0) }

// unuse returns the unuse between two revisions; to is 0 while it lasts.
func unuse(from, to int64, cause Cause) Unuse {
	u := Unuse{Subject: "30080", Revision: from, From: at(from), Cause: cause}
	if to > 0 {
		u.To = at(to)
	}
	return u
}
