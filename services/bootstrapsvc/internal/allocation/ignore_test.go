package allocation

import (
	"testing"
	"time"
)

func TestIgnore_ExpiresAtItsTime(t *testing.T) {
	end := time.Unix(7, 0)
	for now, want := range map[time.Time]bool{end.Add(-1): false, end: true, end.Add(1): true} {
		if got := (Ignore{Expires: end}).Expired(now); got != want {
			t.Errorf("expired at %s: %t, want %t", now, got, want)
		}
	}
	if (Ignore{}).Expired(end) {
		t.Error("a mark without an end has expired")
	}
}

func TestFindingEtag_ChangesWithWhatTheFindingSays(t *testing.T) {
	finding := Finding{
		Name: "findings/leaked.node-ports.30001", Code: Leaked, Message: "it is not used", Repair: "clear it",
		UnsafeReason: "it waits", State: StatePending, Observations: 1,
	}
	etag := finding.Etag()
	for name, change := range map[string]func(*Finding){
		"observations": func(f *Finding) { f.Observations++ },
		"first seen":   func(f *Finding) { f.FirstSeen = time.Unix(7, 0) },
		"last seen":    func(f *Finding) { f.LastSeen = time.Unix(7, 0) },
		"generation":   func(f *Finding) { f.Generation++ },
	} {
		changed := finding
		if change(&changed); changed.Etag() != etag {
			t.Errorf("the etag changes with %s", name)
		}
	}
	for name, change := range map[string]func(*Finding){
		"message": func(f *Finding) { f.Message = "other" },
		"owners":  func(f *Finding) { f.Owners = []Owner{{UID: "u"}} },
		"repair":  func(f *Finding) { f.Repair = "" },
		"mode":    func(f *Finding) { f.Safe, f.UnsafeReason = true, "" },
		"state":   func(f *Finding) { f.State = StateOpen },
		"end":     func(f *Finding) { f.End = EndResolved },
		"mark":    func(f *Finding) { f.Ignore = &Ignore{Comment: "known"} },
	} {
		changed := finding
		if change(&changed); changed.Etag() == etag {
			t.Errorf("the etag does not change with %s", name)
		}
	}
}

func TestFinding_IgnoredOneIsNeitherOpenNorRepairable(t *testing.T) {
	finding := Finding{State: StateOpen, Safe: true}
	if !finding.IsOpen() || !finding.Repairable() {
		t.Error("an open and safe finding is not repairable")
	}
	finding.Ignore = &Ignore{}
	if finding.IsOpen() || finding.Repairable() {
		t.Error("an ignored finding is open or repairable")
	}
}

func TestCode_APINameIsThatOfTheAPI(t *testing.T) {
	if got := NotAllocated.APIName(); got != "NOT_ALLOCATED" {
		t.Errorf("name is %s", got)
	}
}
