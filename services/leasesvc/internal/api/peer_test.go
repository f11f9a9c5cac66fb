package api

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// fakePeer is a replica whose answers the test decides.
type fakePeer struct {
	leasev1.UnimplementedPeerServiceServer

	mu       sync.Mutex // guards the fields below
	requests []*leasev1.ForwardHeartbeatsRequest
	answer   func(*leasev1.ForwardHeartbeatsRequest) (*leasev1.ForwardHeartbeatsResponse, error)
}

func (r *fakePeer) ForwardHeartbeats(_ context.Context, request *leasev1.ForwardHeartbeatsRequest) (*leasev1.ForwardHeartbeatsResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, request)
	return r.answer(request)
}

func newPeerConnection(t *testing.T, r *fakePeer) *PeerConnection {
	connection := testkit.Serve(t, func(registrar grpc.ServiceRegistrar) { leasev1.RegisterPeerServiceServer(registrar, r) })
	return NewPeerConnection(connection, "replica-1")
}

func agedBeat(name string, age time.Duration) AgedBeat {
	return AgedBeat{Beat: Beat{Class: "node", Name: name, Boot: "b", Sequence: 7}, Age: age}
}

func TestPeerConnection_SendsBeatsAndCountsRejections(t *testing.T) {
	r := &fakePeer{answer: func(request *leasev1.ForwardHeartbeatsRequest) (*leasev1.ForwardHeartbeatsResponse, error) {
		response := &leasev1.ForwardHeartbeatsResponse{}
		for i := range request.Beats {
			result := &leasev1.HeartbeatResult{Result: &leasev1.HeartbeatResult_Grant{Grant: &leasev1.Grant{Epoch: 1}}}
			if i == 1 {
				result.Result = &leasev1.HeartbeatResult_Rejection{Rejection: &leasev1.Rejection{Reason: "NOT_LEADER"}}
			}
			response.Results = append(response.Results, result)
		}
		return response, nil
	}}
	reported := agedBeat("n2", 1500*time.Millisecond)
	reported.Mode = "probe"
	reported.Report = &sessioncontroller.Report{Observed: true, ObservedAge: 3 * time.Second, CutOff: true, CutOffAge: 40 * time.Second, Conditions: []sessioncontroller.ReportedCondition{
		{Type: "Ready", Status: 2, Reason: "DOWN", Message: "m", TransitionAge: time.Minute}, {Type: "Other", TransitionAge: -1},
	}}
	rejected, err := newPeerConnection(t, r).Send(t.Context(), []AgedBeat{agedBeat("n1", 0), reported})
	if err != nil || rejected != 1 {
		t.Errorf("%d rejected, error %v; want 1", rejected, err)
	}
	beat := func(name string, age time.Duration, report *leasev1.Report) *leasev1.ForwardedBeat {
		return &leasev1.ForwardedBeat{
			Beat: &leasev1.Beat{Holder: &leasev1.Holder{Class: "node", Name: name, BootId: "b"}, Sequence: 7, Report: report},
			Age:  durationpb.New(age),
		}
	}
	probed := func(b *leasev1.ForwardedBeat) *leasev1.ForwardedBeat {
		b.Mode = "probe"
		return b
	}
	want := []*leasev1.ForwardHeartbeatsRequest{{
		ReplicaId: "replica-1", Beats: []*leasev1.ForwardedBeat{
			beat("n1", 0, nil),
			probed(beat("n2", 1500*time.Millisecond, &leasev1.Report{
				ObservedAge: durationpb.New(3 * time.Second), CutOffAge: durationpb.New(40 * time.Second),
				Conditions: []*leasev1.ReportedCondition{
					{Type: "Ready", Status: metav1.Condition_STATUS_FALSE, Reason: "DOWN", Message: "m", TransitionAge: durationpb.New(time.Minute)},
					{Type: "Other"},
				},
			})),
		},
	}}
	if diff := cmp.Diff(want, r.requests, protocmp.Transform()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// A thousand beats with the longest texts fit into the largest message that a server accepts.
func TestPeerConnection_SendsTheLargestBatch(t *testing.T) {
	r := &fakePeer{answer: func(request *leasev1.ForwardHeartbeatsRequest) (*leasev1.ForwardHeartbeatsResponse, error) {
		return &leasev1.ForwardHeartbeatsResponse{Results: make([]*leasev1.HeartbeatResult, len(request.Beats))}, nil
	}}
	text := strings.Repeat("n", maxNameBytes)
	report := &sessioncontroller.Report{Observed: true, ObservedAge: time.Minute, CutOff: true, CutOffAge: sessioncontroller.MaxAge}
	for i := range 16 {
		report.Conditions = append(report.Conditions, sessioncontroller.ReportedCondition{Type: fmt.Sprintf("C%d", i), TransitionAge: 1 << 62})
	}
	if report = (Beat{Report: report}).withoutLargeConditions().Report; len(report.Conditions) > 0 {
		t.Fatal("no conditions are too large")
	}
	if !report.Observed || report.ObservedAge != time.Minute || !report.CutOff || report.CutOffAge != sessioncontroller.MaxAge {
		t.Errorf("without its conditions the report is %+v", report)
	}
	for len(report.Conditions) == 0 || len((Beat{Report: report}).withoutLargeConditions().Report.Conditions) > 0 {
		report.Conditions = append(report.Conditions, sessioncontroller.ReportedCondition{Type: "C", TransitionAge: 1 << 62})
	}
	report.Conditions = report.Conditions[1:]
	var beats []AgedBeat
	for range 1000 {
		beats = append(beats, AgedBeat{
			Beat: Beat{Class: text[:maxClassBytes], Name: text, Boot: text[:maxBootBytes], Sequence: 1 << 63, Report: report, Mode: text[:maxModeBytes]},
			Age:  time.Minute - 1,
		})
	}
	if rejected, err := newPeerConnection(t, r).Send(t.Context(), beats); err != nil || rejected != 1000 {
		t.Errorf("%d rejected, error %v; results without a grant are rejections", rejected, err)
	}
}

func TestPeerConnection_ReturnsErrors(t *testing.T) {
	r := &fakePeer{answer: func(*leasev1.ForwardHeartbeatsRequest) (*leasev1.ForwardHeartbeatsResponse, error) {
		return &leasev1.ForwardHeartbeatsResponse{}, nil
	}}
	c := newPeerConnection(t, r)
	if _, err := c.Send(t.Context(), []AgedBeat{agedBeat("n1", 0)}); err == nil {
		t.Error("an answer without results was accepted")
	}
	r.mu.Lock()
	r.answer = func(*leasev1.ForwardHeartbeatsRequest) (*leasev1.ForwardHeartbeatsResponse, error) {
		return nil, rpcerror.NotLeader("leasesvc", "")
	}
	r.mu.Unlock()
	if _, err := c.Send(t.Context(), []AgedBeat{agedBeat("n1", 0)}); status.Code(err) != codes.Unavailable {
		t.Errorf("error %v, want the peer's", err)
	}
	if _, err := c.Send(t.Context(), []AgedBeat{agedBeat("UPPER", 0)}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("error %v, want the interceptor to reject the beat", err)
	}
}

// A forwarded beat whose conditions are too large leaves those that the leader has.
func TestForwardHeartbeats_OmittedConditionsStay(t *testing.T) {
	f := newFixture(t, setup{})
	c := NewPeerConnection(testkit.Serve(t, f.server.Register, Unvalidated()...), "replica-2")
	report := &leasev1.Report{}
	for i := range 16 {
		report.Conditions = append(report.Conditions, &leasev1.ReportedCondition{Type: fmt.Sprintf("C%d", i), Message: strings.Repeat("m", 200)})
	}
	node := holders(1, 1)[0]
	f.open(t).send(&leasev1.StreamHeartbeatsRequest{Sequence: 1, Registrations: []*leasev1.Registration{{Holder: node, Report: report}}})
	reported := reportFrom(report)
	reported.ObservedAge = 3 * time.Second
	beat := Beat{Class: node.Class, Name: node.Name, Boot: node.BootId, Sequence: 2, Report: &reported}
	if rejected, err := c.Send(t.Context(), []AgedBeat{{Beat: beat.withoutLargeConditions()}}); rejected != 0 || err != nil {
		t.Fatalf("%d rejected, error %v", rejected, err)
	}
	if lease, found := f.lease(node.Name); !found || len(lease.Conditions) != 16 {
		t.Errorf("the leader has %d conditions after the forwarded beat, want 16", len(lease.Conditions))
	}
	// A report without conditions still clears them.
	beat.Report, beat.Sequence = &sessioncontroller.Report{}, 3
	if rejected, err := c.Send(t.Context(), []AgedBeat{{Beat: beat.withoutLargeConditions()}}); rejected != 0 || err != nil {
		t.Fatalf("%d rejected, error %v", rejected, err)
	}
	if lease, _ := f.lease(node.Name); len(lease.Conditions) != 0 {
		t.Errorf("the leader has %d conditions after a report without any", len(lease.Conditions))
	}
}
