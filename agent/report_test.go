package agent_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"buf.build/go/protovalidate"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"

	"github.com/trivet-dev/trivet/agent"
)

// takeRequests returns the requests since the last call.
func (s *server) takeRequests() []*leasev1.StreamHeartbeatsRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	requests := s.requests
	s.requests = nil
	return requests
}

func report(t *testing.T, a *agent.Agent, h agent.Holder, r agent.Report) {
	t.Helper()
	if err := a.Report(h, r); err != nil {
		t.Fatal(err)
	}
}

func expectRequests(t *testing.T, what string, s *server, want ...*leasev1.StreamHeartbeatsRequest) {
	t.Helper()
	if diff := diffRequests(want, s.takeRequests()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func diffRequests(want, got []*leasev1.StreamHeartbeatsRequest, options ...cmp.Option) string {
	options = append(options, protocmp.Transform(), protocmp.IgnoreFields(&leasev1.StreamHeartbeatsRequest{}, "sequence", "client_info"))
	return cmp.Diff(want, got, options...)
}

func TestReport_IsSentWithRegistrationsAndBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		a, err := agent.New(agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1"), node("n2")}})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		conditions := []agent.Condition{
			{Type: "DiskPressure", Status: agent.ConditionTrue, Reason: "DISK_FULL", Message: "9 of 10 GB", TransitionTime: begin.Add(-time.Minute)},
			{Type: "Cordoned", Status: agent.ConditionFalse},
		}
		report(t, a, node("n1"), agent.Report{ObservedTime: begin.Add(-time.Second), Conditions: conditions})
		conditions[0].Type = "changed by the caller"
		start(t, a)
		message := func(silence time.Duration) *leasev1.Report {
			return &leasev1.Report{ObservedAge: durationpb.New(silence), Conditions: []*leasev1.ReportedCondition{
				{Type: "DiskPressure", Status: metav1.Condition_STATUS_TRUE, Reason: "DISK_FULL", Message: "9 of 10 GB",
					TransitionAge: durationpb.New(time.Minute + silence - time.Second)},
				{Type: "Cordoned", Status: metav1.Condition_STATUS_FALSE},
			}}
		}
		advance(0)
		registered := s.takeRequests()
		if len(registered) != 1 || len(registered[0].Registrations) != 2 {
			t.Fatalf("registered by %v", registered)
		}
		handles := map[string]uint32{}
		for i, r := range registered[0].Registrations {
			want := map[string]*leasev1.Report{"n1": message(time.Second)}[r.Holder.Name]
			if diff := cmp.Diff(want, r.Report, protocmp.Transform()); diff != "" {
				t.Errorf("report of %s (-want +got):\n%s", r.Holder.Name, diff)
			}
			handles[r.Holder.Name] = uint32(i + 1)
		}
		advance(interval)
		expectRequests(t, "one with conditions", s, &leasev1.StreamHeartbeatsRequest{
			Handles: []uint32{handles["n2"]}, Reports: []*leasev1.HandleReport{{Handle: handles["n1"], Report: message(11 * time.Second)}},
		})
		report(t, a, node("n1"), agent.Report{ObservedTime: time.Now()})
		advance(interval - 1)
		expectRequests(t, "before the next beat", s)
		advance(1)
		age := func(silence time.Duration) *leasev1.StreamHeartbeatsRequest {
			return &leasev1.StreamHeartbeatsRequest{
				Handles: []uint32{handles["n2"]}, Reports: []*leasev1.HandleReport{{Handle: handles["n1"], Report: &leasev1.Report{ObservedAge: durationpb.New(silence)}}},
			}
		}
		expectRequests(t, "observed an interval ago", s, age(interval))
		report(t, a, node("n1"), agent.Report{ObservedTime: time.Now().Add(time.Second)})
		advance(interval)
		expectRequests(t, "observed within an interval", s, &leasev1.StreamHeartbeatsRequest{Handles: []uint32{1, 2}})
		advance(2 * interval)
		expectRequests(t, "not observed any more", s, age(2*interval-time.Second), age(3*interval-time.Second))
		report(t, a, node("n1"), agent.Report{})
		advance(interval)
		expectRequests(t, "always alive", s, &leasev1.StreamHeartbeatsRequest{Handles: []uint32{1, 2}})
	})
}

func TestReport_EndsWithTheBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
		report(t, a, node("n1"), agent.Report{ObservedTime: time.Now().Add(-time.Hour)})
		next := agent.Holder{Class: "node", Name: "n1", BootID: "2"}
		if err := a.Add(next); err != nil {
			t.Fatal(err)
		}
		advance(0)
		for _, request := range s.takeRequests() {
			for _, r := range request.Registrations {
				if r.Holder.BootId == "2" && r.Report != nil {
					t.Errorf("the new boot registers with %v", r.Report)
				}
			}
		}
		for _, h := range []agent.Holder{node("n1"), node("n2")} {
			if err := a.Report(h, agent.Report{}); err == nil {
				t.Errorf("a report of %+v, which the agent does not have", h)
			}
		}
	})
}

// A server accepts a MiB.
func TestReport_LargeReportsAreDividedIntoMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, holders := serve(t), nodes(400)
		a, err := agent.New(agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: holders})
		if err != nil {
			t.Fatal(err)
		}
		large := agent.Report{ObservedTime: time.Now(), CutOff: time.Now()}
		for i := range 16 {
			large.Conditions = append(large.Conditions, agent.Condition{
				Type: fmt.Sprintf("C%062d", i), Reason: strings.Repeat("R", 63), Message: strings.Repeat("ä", 256), TransitionTime: time.Now(),
			})
		}
		for _, h := range holders {
			report(t, a, h, large)
		}
		start(t, a)
		advance(interval)
		registered, beats := 0, 0
		requests := s.takeRequests()
		for _, request := range requests {
			if size := proto.Size(request); size > 1<<20 {
				t.Errorf("a message of %d bytes", size)
			}
			registered, beats = registered+len(request.Registrations), beats+len(request.Reports)
		}
		if registered != 400 || beats != 400 || len(requests) > 20 {
			t.Errorf("%d registrations and %d reports in %d messages, want 400 of each in few", registered, beats, len(requests))
		}
		if got := a.Status(); got.Registered != 400 {
			t.Errorf("%d of 400 holders are registered", got.Registered)
		}
	})
}

// The server would end the stream for an invalid report.
func TestReport_AgreesWithTheAPI(t *testing.T) {
	a, err := agent.New(agent.Config{Targets: []string{"a"}, Dial: network{}.dial, Holders: []agent.Holder{node("n1")}})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"", "A", "a", "1", "A1", "A_", "_", "A B", "ä", "A\n", "A\xff", strings.Repeat("A", 63), strings.Repeat("A", 64), strings.Repeat("ä", 256), strings.Repeat("ä", 257),
	} {
		for _, c := range []agent.Condition{{Type: text}, {Type: "A", Reason: text}, {Type: "A", Message: text}} {
			message := &leasev1.Report{Conditions: []*leasev1.ReportedCondition{{Type: c.Type, Reason: c.Reason, Message: c.Message}}}
			allowed := protovalidate.Validate(message)
			if _, encoding := proto.Marshal(message); encoding != nil {
				allowed = encoding
			}
			if err := a.Report(node("n1"), agent.Report{Conditions: []agent.Condition{c}}); (err == nil) != (allowed == nil) {
				t.Errorf("%+q: Report returns %v, the API %v", c, err, allowed)
			}
		}
	}
	if err := a.Report(node("n1"), agent.Report{Conditions: []agent.Condition{{Type: "A"}, {Type: "A"}}}); err == nil {
		t.Error("two conditions of one type were accepted")
	}
	if err := a.Report(node("n1"), agent.Report{Conditions: make([]agent.Condition, 17)}); err == nil || !strings.Contains(err.Error(), "17") {
		t.Errorf("17 conditions: %v", err)
	}
}

func TestRun_FirstMessageDescribesTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		run(t, agent.Config{
			Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: nodes(1500), Cluster: "prod", Name: "kubelet-agent", Version: "v1.2.3",
		})
		advance(interval)
		for i, request := range s.takeRequests() {
			want := (*metav1.ClientInfo)(nil)
			if i == 0 {
				want = &metav1.ClientInfo{Cluster: "prod", Agent: "kubelet-agent", Version: "v1.2.3"}
			}
			if diff := cmp.Diff(want, request.ClientInfo, protocmp.Transform()); diff != "" {
				t.Errorf("message %d (-want +got):\n%s", i, diff)
			}
		}
	})
}

func TestRun_LimitsOfTheServerAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			response.Limits = &leasev1.StreamLimits{RegistrationsPerMessage: 300, HandlesPerMessage: 900}
			return response
		}
		run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: nodes(1500)})
		advance(interval)
		expect(t, "messages", []message{
			{Registered: 1000}, {Registered: 300}, {Registered: 200}, {At: interval, Beats: 900}, {At: interval, Beats: 600},
		}, s.received())
	})
}

// Servers of a newer version have reasons and directives that the agent does not know.
func TestRun_UnknownReasonIsClassifiedByItsCode(t *testing.T) {
	for what, c := range map[string]struct {
		rejection *leasev1.Rejection
		at        string // the server that is asked next
		from, to  time.Duration
	}{
		"unavailable":              {&leasev1.Rejection{Code: code.Code_UNAVAILABLE, RetryAfter: durationpb.New(8 * time.Second)}, "a", 8 * time.Second, 12 * time.Second},
		"unavailable, no pause":    {&leasev1.Rejection{Code: code.Code_UNAVAILABLE}, "a", 0, 5 * time.Second},
		"elsewhere":                {&leasev1.Rejection{Code: code.Code_FAILED_PRECONDITION, RedirectAddress: "b"}, "b", 0, 0},
		"precondition":             {&leasev1.Rejection{Code: code.Code_FAILED_PRECONDITION}, "a", time.Minute, time.Minute},
		"needs a change":           {&leasev1.Rejection{Code: code.Code_INVALID_ARGUMENT}, "a", time.Minute, time.Minute},
		"needs a change, later":    {&leasev1.Rejection{Code: code.Code_RESOURCE_EXHAUSTED, RetryAfter: durationpb.New(20 * time.Second)}, "a", 20 * time.Second, 20 * time.Second},
		"needs a change, tomorrow": {&leasev1.Rejection{Code: code.Code_RESOURCE_EXHAUSTED, RetryAfter: durationpb.New(24 * time.Hour)}, "a", time.Minute, time.Minute},
		"unavailable, for ever":    {&leasev1.Rejection{Code: code.Code_UNAVAILABLE, RetryAfter: durationpb.New(math.MaxInt64)}, "a", time.Minute, 90 * time.Second},
		"not found":                {&leasev1.Rejection{Code: code.Code_NOT_FOUND}, "a", 200 * time.Millisecond, 200 * time.Millisecond},
		"at once, again and again": {&leasev1.Rejection{Code: code.Code_INTERNAL, RetryAfter: durationpb.New(0)}, "a", 200 * time.Millisecond, 200 * time.Millisecond},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, other := serve(t), serve(t)
				c.rejection.Reason = "A_REASON_OF_THE_FUTURE"
				first.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
					if response.Sequence == 1 {
						response.RegistrationResults[0] = &leasev1.RegistrationResult{Result: &leasev1.RegistrationResult_Rejection{Rejection: c.rejection}}
					}
					return response
				}
				a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": first, "b": other}.dial, Holders: nodes(1)})
				advance(c.to)
				if got := a.Status(); got.Registered != 1 || got.Targets[0].Target != c.at {
					t.Fatalf("after %v: status %+v", c.to, got)
				}
				asked := map[string]*server{"a": first, "b": other}[c.at].received()
				if last := asked[len(asked)-1].At; last < c.from {
					t.Errorf("registered again after %v, want %v to %v", last, c.from, c.to)
				}
			})
		})
	}
}

func TestRun_UnknownReasonToStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			response.RegistrationResults[0] = &leasev1.RegistrationResult{Result: &leasev1.RegistrationResult_Rejection{
				Rejection: &leasev1.Rejection{Reason: "A_REASON_OF_THE_FUTURE", Code: code.Code_ABORTED},
			}}
			return response
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: nodes(1)})
		advance(time.Hour)
		expect(t, "messages", []message{{Registered: 1}}, s.received())
		expect(t, "stopped", nodes(1), a.Status().Superseded)
	})
}

// A server may send a directive without a request.
func TestRun_DirectiveBetweenResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.between = &leasev1.StreamHeartbeatsResponse{Directive: leasev1.StreamHeartbeatsResponse_DIRECTIVE_RESYNC}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: nodes(1)})
		advance(interval)
		expect(t, "messages", []message{{Registered: 1}, {At: interval, Beats: 1}, {At: interval, Registered: 1}}, s.received())
		if got := a.Status(); got.Streams != 1 || got.LastError != "" {
			t.Errorf("status %+v", got)
		}
	})
}

func TestRun_UnknownDirectiveIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			response.Directive = 99
			return response
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: nodes(1)})
		advance(2 * interval)
		expect(t, "messages", []message{{Registered: 1}, {At: interval, Beats: 1}, {At: 2 * interval, Beats: 1}}, s.received())
		if got := a.Status(); got.Streams != 1 || got.LastError != "" {
			t.Errorf("status %+v", got)
		}
	})
}

// A bare handle would leave what a server keeps, so the beat after the end says so itself.
func TestReport_EndOfWhatLastsIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
		reports := func(report *leasev1.Report) *leasev1.StreamHeartbeatsRequest {
			return &leasev1.StreamHeartbeatsRequest{Reports: []*leasev1.HandleReport{{Handle: 1, Report: report}}}
		}
		bare := &leasev1.StreamHeartbeatsRequest{Handles: []uint32{1}}
		advance(interval / 2)
		s.takeRequests()
		report(t, a, node("n1"), agent.Report{CutOff: time.Now().Add(-time.Second)})
		advance(2 * interval)
		expectRequests(t, "cut off", s, reports(&leasev1.Report{CutOffAge: durationpb.New(time.Second + interval/2)}),
			reports(&leasev1.Report{CutOffAge: durationpb.New(time.Second + interval + interval/2)}))
		report(t, a, node("n1"), agent.Report{})
		advance(2 * interval)
		expectRequests(t, "not any more", s, reports(&leasev1.Report{}), bare)
		report(t, a, node("n1"), agent.Report{Conditions: []agent.Condition{{Type: "A", Status: agent.ConditionTrue}}})
		advance(interval)
		s.takeRequests()
		report(t, a, node("n1"), agent.Report{})
		advance(2 * interval)
		expectRequests(t, "no conditions any more", s, reports(&leasev1.Report{}), bare)
	})
}

// A server learns from the first beat of a registration that the agent observes the holder, also
// when the holder was observed a moment ago.
func TestReport_TheServerLearnsThatTheHolderIsObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}})
		advance(interval / 2)
		report(t, a, node("n1"), agent.Report{ObservedTime: time.Now().Add(interval)})
		s.takeRequests()
		advance(interval)
		explicit := &leasev1.Report{ObservedAge: durationpb.New(0)}
		expectRequests(t, "the first beat", s, &leasev1.StreamHeartbeatsRequest{Reports: []*leasev1.HandleReport{{Handle: 1, Report: explicit}}})
		advance(interval)
		expectRequests(t, "the second beat", s, &leasev1.StreamHeartbeatsRequest{Handles: []uint32{1}})
		rebooted := node("n1")
		rebooted.BootID = "2"
		if err := a.Add(rebooted); err != nil {
			t.Fatal(err)
		}
		advance(0)
		s.takeRequests()
		report(t, a, rebooted, agent.Report{ObservedTime: time.Now().Add(time.Hour)})
		advance(interval)
		// The new boot has the handle of the old one if that was free already.
		want := []*leasev1.StreamHeartbeatsRequest{{Reports: []*leasev1.HandleReport{{Report: explicit}}}}
		if diff := diffRequests(want, s.takeRequests(), protocmp.IgnoreFields(&leasev1.HandleReport{}, "handle")); diff != "" {
			t.Errorf("the first beat of another boot (-want +got):\n%s", diff)
		}
	})
}
