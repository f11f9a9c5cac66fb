package api

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/term"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// noTerm is the leadership of a replica that does not lead.
type noTerm struct{}

func (noTerm) Term() *term.Term          { return nil }
func (noTerm) LeaderAddress() string     { return "" }
func (noTerm) Stopping() <-chan struct{} { return nil }

func TestPageToken_IsAcceptedByItsOwnListOnly(t *testing.T) {
	list := listArguments{code: 4}
	at := position{firstSeen: time.Unix(7, 9), name: "findings/a/b"}
	got, ok := parsePageToken(list, pageToken(list, at))
	if !ok || comparePositions(got, at) != 0 {
		t.Errorf("position is %v, %t, want %v", got, ok, at)
	}
	for _, other := range []listArguments{{}, {code: 5}, {code: 4, showEnded: true}} {
		if _, ok := parsePageToken(other, pageToken(list, at)); ok {
			t.Errorf("the token is taken by %v", other)
		}
	}
}

func TestSelectFindings_AreOrderedByFirstObservationAndFiltered(t *testing.T) {
	finding := func(name string, code allocation.Code, second int64) allocation.Finding {
		return allocation.Finding{Name: name, Code: code, FirstSeen: time.Unix(second, 0)}
	}
	snapshot := &allocationcontroller.Snapshot{
		Current: []allocation.Finding{finding("b", allocation.Leaked, 2), finding("d", allocation.Orphan, 4)},
		Ended:   []allocation.Finding{finding("a", allocation.Leaked, 1), finding("c", allocation.Leaked, 3)},
	}
	for want, list := range map[string]listArguments{
		"bd": {}, "abcd": {showEnded: true}, "b": {code: int32(allocation.Leaked)}, "abc": {code: int32(allocation.Leaked), showEnded: true},
	} {
		got := ""
		for _, finding := range selectFindings(snapshot, list) {
			got += finding.Name
		}
		if got != want {
			t.Errorf("%+v lists %s, want %s", list, got, want)
		}
	}
	if len(snapshot.Current) != 2 || snapshot.Current[0].Name != "b" {
		t.Error("the snapshot was changed")
	}
}

// recordingStream keeps the sent events.
type recordingStream struct {
	grpc.ServerStream

	sent []*bootstrapv1.WatchFindingsResponse
}

func (s *recordingStream) Send(event *bootstrapv1.WatchFindingsResponse) error {
	s.sent = append(s.sent, event)
	return nil
}

func TestWatchFindings_DeletedFindingHasItsEnd(t *testing.T) {
	finding := func(name string, state allocation.FindingState, seen int64, generation uint64) allocation.Finding {
		return allocation.Finding{
			Name: name, Code: allocation.Leaked, State: state, Message: "port of " + name,
			FirstSeen: time.Unix(seen, 0), Generation: generation,
		}
	}
	repaired := func(f allocation.Finding) allocation.Finding {
		f.End, f.RepairedBy = allocation.EndRepaired, "r"
		return f
	}
	stream := &recordingStream{}
	w := &findingsWatch{server: New(Config{Leadership: noTerm{}}), stream: stream, sent: map[string]allocation.Finding{}}
	earlier := repaired(finding("findings/unsure", allocation.StateOpen, 1, 0)) // it was there once before
	snapshots := []*allocationcontroller.Snapshot{
		{Ended: []allocation.Finding{earlier}, Current: []allocation.Finding{
			finding("findings/unsure", allocation.StatePending, 7, 1), finding("findings/repaired", allocation.StateOpen, 7, 2), finding("findings/forgotten", allocation.StateOpen, 7, 3),
		}},
		{Ended: []allocation.Finding{earlier, repaired(finding("findings/repaired", allocation.StateOpen, 7, 4))}},
	}
	for _, snapshot := range snapshots {
		if _, err := w.sendChanges(snapshot); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, event := range stream.sent[3:] {
		f := event.GetFinding()
		got = append(got, fmt.Sprintf("%s %s %s %s %q", event.GetType(), f.GetState(), f.GetCode(), f.GetRepairedBy(), f.GetMessage()))
	}
	want := []string{
		`TYPE_DELETED STATE_UNSPECIFIED CODE_LEAKED  "port of findings/forgotten"`,
		`TYPE_DELETED STATE_REPAIRED CODE_LEAKED repairs/r "port of findings/repaired"`,
		`TYPE_DELETED STATE_GONE CODE_LEAKED  "port of findings/unsure"`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what was told of ends (-want +got):\n%s", diff)
	}
}

func TestStepOf_RangeHasTheNameOfKubeAPIServer(t *testing.T) {
	for store, want := range map[allocation.Store]string{
		allocation.NodePorts: "servicenodeports", allocation.ClusterIPs: "serviceips", allocation.SecondaryClusterIPs: "secondaryserviceips",
	} {
		step := stepOf(allocation.Step{Store: store, Verb: allocation.SetBit}, repairstore.StepResult{})
		if got := step.GetChange().GetObject().GetName(); got != want {
			t.Errorf("a step on %s is on range %q, want %q", store, got, want)
		}
	}
}

func TestStepOf_DetailSaysWhatHappensToABit(t *testing.T) {
	for verb, want := range map[allocation.Verb]string{
		allocation.SetBit: "set its bit: why", allocation.ClearBit: "clear its bit: why", allocation.Create: "why",
	} {
		step := stepOf(allocation.Step{Store: allocation.NodePorts, Verb: verb, Detail: "why"}, repairstore.StepResult{})
		if got := step.GetChange().GetDetail(); got != want {
			t.Errorf("detail of %s is %q, want %q", verb, got, want)
		}
	}
}
