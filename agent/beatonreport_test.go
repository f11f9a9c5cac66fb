package agent_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
)

// sent is a registration or a beat of n1, with the age that it reports; -1 for none.
type sent struct {
	At         time.Duration
	Registered bool
	Age        time.Duration
}

// takeSent returns what the server got since the last call. Each message must be of n1 alone.
func (s *server) takeSent(t *testing.T) []sent {
	t.Helper()
	s.mu.Lock()
	messages, requests := s.messages, s.requests
	s.messages, s.requests = nil, nil
	s.mu.Unlock()
	var got []sent
	for i, request := range requests {
		one := sent{At: messages[i].At, Age: -1}
		var report *leasev1.Report
		switch {
		case len(request.Registrations) == 1 && messages[i].Beats == 0:
			one.Registered, report = true, request.Registrations[0].Report
		case len(request.Reports) == 1 && messages[i].Beats == 1:
			report = request.Reports[0].Report
		case len(request.Handles) != 1:
			t.Fatalf("message %d is neither one registration nor one beat: %v", i, request)
		}
		if report.GetObservedAge() != nil {
			one.Age = report.ObservedAge.AsDuration()
		}
		got = append(got, one)
	}
	return got
}

func onReport(servers network) agent.Config {
	return agent.Config{
		Targets: slices.Sorted(func(yield func(string) bool) {
			for name := range servers {
				if !yield(name) {
					return
				}
			}
		}),
		Dial: servers.dial, Holders: []agent.Holder{node("n1")}, BeatOnReport: true, AgeTolerance: time.Millisecond,
		MinBackoff: 100 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
	}
}

func reportNow(t *testing.T, a *agent.Agent) {
	t.Helper()
	report(t, a, node("n1"), agent.Report{ObservedTime: time.Now()})
}

func TestBeatOnReport_BeatsBecauseOfAReportAndNeverOtherwise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		a := run(t, onReport(network{"a": s}))
		advance(time.Minute)
		expect(t, "before the first report", []sent(nil), s.takeSent(t))

		reportNow(t, a)
		advance(0)
		expect(t, "the first report registers", []sent{{At: time.Minute, Registered: true}}, s.takeSent(t))
		advance(10 * time.Second)
		reportNow(t, a)
		advance(0)
		expect(t, "a report is sent at once", []sent{{At: 70 * time.Second, Age: -1}}, s.takeSent(t))
		advance(time.Hour)
		expect(t, "a holder that is not reported", []sent(nil), s.takeSent(t))
		report(t, a, node("n1"), agent.Report{ObservedTime: time.Now().Add(-3 * time.Second)})
		advance(0)
		expect(t, "a report has its age", []sent{{At: 70*time.Second + time.Hour, Age: 3 * time.Second}}, s.takeSent(t))
		report(t, a, node("n1"), agent.Report{})
		advance(interval)
		expect(t, "a report without a time is one of its moment", []sent{{At: 75*time.Second + time.Hour, Age: 5 * time.Second}}, s.takeSent(t))
	})
}

func TestBeatOnReport_KeepsHalfOfTheIntervalAndSendsTheNewestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		a := run(t, onReport(network{"a": s}))
		for range 120 { // a caller that reports ten times in a second
			reportNow(t, a)
			advance(100 * time.Millisecond)
		}
		want := []sent{{Registered: true}, {At: interval / 2, Age: -1}, {At: interval, Age: -1}}
		got := s.takeSent(t)
		for i := range got {
			if got[i].Age > 100*time.Millisecond {
				t.Errorf("beat %d has the age %v, although the last report is younger", i, got[i].Age)
			}
			got[i].Age = want[min(i, 2)].Age
		}
		expect(t, "beats", want, got)
	})
}

func TestBeatOnReport_KeepsTheWholeIntervalWhenToldToSlowDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if response.Sequence == 2 {
				response.Directive = leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN
			}
			return response
		}
		a := run(t, onReport(network{"a": s}))
		for range 4 {
			reportNow(t, a)
			advance(interval / 2)
		}
		got := s.takeSent(t)
		if len(got) < 3 || got[2].At != interval/2+interval {
			t.Errorf("beats %v; want the third a whole interval after the second, whose answer asks to slow down", got)
		}
	})
}

func TestBeatOnReport_SendsAReportThatCameWhileTheStreamWasOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		cfg := onReport(network{"a": s})
		open := make(chan struct{})
		cfg.Dial = func(target string) (*grpc.ClientConn, error) {
			<-open // a replica that accepts the connection late
			return network{"a": s}.dial(target)
		}
		a := run(t, cfg)
		reportNow(t, a)
		advance(2 * time.Second)
		reportNow(t, a) // while the stream is opened
		advance(time.Second)
		close(open)
		advance(0)
		expect(t, "the newest report, with its age", []sent{{At: 3 * time.Second, Registered: true, Age: time.Second}}, s.takeSent(t))
		advance(time.Hour)
		expect(t, "is sent once", []sent(nil), s.takeSent(t))
	})
}

func TestBeatOnReport_RepeatsTheLastReportToANewStreamWhileItCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		var lose atomic.Bool
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if lose.CompareAndSwap(true, false) {
				return nil // the response is lost, and the stream with it
			}
			return response
		}
		a := run(t, onReport(network{"a": s}))
		reportNow(t, a)
		advance(interval)
		s.takeSent(t)
		lose.Store(true)
		reportNow(t, a)
		advance(interval + 200*time.Millisecond)
		got := s.takeSent(t)
		if len(got) != 2 || !got[1].Registered || got[1].Age < interval || got[1].Age != got[1].At-interval {
			t.Fatalf("sent %v; want the beat and a registration with the same report and its age", got)
		}
		advance(time.Hour)
		lose.Store(true)
		report(t, a, node("n1"), agent.Report{ObservedTime: time.Now().Add(-4*interval + time.Second)})
		advance(time.Hour) // the stream breaks when the report is older than the TTL
		if got := s.takeSent(t); len(got) != 1 || got[0].Registered {
			t.Errorf("sent %v; want one beat: the report opens no lease any more", got)
		}
		reportNow(t, a)
		advance(time.Second)
		if got := s.takeSent(t); len(got) != 1 || !got[0].Registered {
			t.Errorf("sent %v; want a registration because of the next report", got)
		}
	})
}

func TestBeatOnReport_ReturnsAfterSupersededBecauseOfAReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		var other atomic.Bool
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if other.Load() && len(response.RegistrationResults) == 0 {
				response.Grant = nil
				response.RejectedHandles = []*leasev1.RejectedHandle{{Handle: 1, Rejection: &leasev1.Rejection{
					Reason: "SUPERSEDED", Code: code.Code_ABORTED, RetryAfter: durationpb.New(20 * time.Second),
				}}}
			}
			return response
		}
		a := run(t, onReport(network{"a": s}))
		reportNow(t, a)
		advance(interval)
		other.Store(true)
		reportNow(t, a)
		advance(0)
		if renewal := a.Renewed(node("n1")); renewal.Live || renewal.Reason != "SUPERSEDED" {
			t.Errorf("renewal %+v; want SUPERSEDED", renewal)
		}
		s.takeSent(t)
		advance(time.Hour)
		expect(t, "without a report", []sent(nil), s.takeSent(t))
		other.Store(false)
		reportNow(t, a)
		advance(0)
		if got := s.takeSent(t); len(got) != 1 || !got[0].Registered || !a.Renewed(node("n1")).Live {
			t.Errorf("sent %v, renewal %+v; want a registration that is accepted", got, a.Renewed(node("n1")))
		}
	})
}

func TestRenewed_SaysWhatTheServerAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		var silent atomic.Bool
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if silent.Load() {
				return nil
			}
			return response
		}
		a := run(t, onReport(network{"a": s}))
		expect(t, "before the first report", agent.Renewal{}, a.Renewed(node("n1")))
		begin := time.Now()
		reportNow(t, a)
		if err := a.AwaitRenewal(t.Context(), node("n1"), begin); err != nil {
			t.Fatal(err)
		}
		expect(t, "registered", agent.Renewal{Accepted: begin, Observed: begin, Reported: begin, Live: true}, a.Renewed(node("n1")))

		advance(interval)
		silent.Store(true)
		next := time.Now()
		reportNow(t, a)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := a.AwaitRenewal(ctx, node("n1"), next); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a beat without a response is accepted: %v", err)
		}
		expect(t, "not accepted", agent.Renewal{Accepted: begin, Observed: begin, Reported: next, Live: true}, a.Renewed(node("n1")))
		advance(interval)
		if a.Renewed(node("n1")).Live {
			t.Error("a holder whose stream has broken is live")
		}
		expect(t, "of another holder", agent.Renewal{}, a.Renewed(node("n2")))
	})
}

func TestRenewed_ABeatBesideARejectedOneIsAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if response.Sequence == 2 {
				response.RejectedHandles = []*leasev1.RejectedHandle{{Handle: 1, Rejection: &leasev1.Rejection{Reason: "NOT_AUTHORIZED", Code: code.Code_PERMISSION_DENIED}}}
			}
			return response
		}
		begin := time.Now()
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1"), node("n2")}})
		advance(interval)
		accepted := 0
		for _, h := range []agent.Holder{node("n1"), node("n2")} {
			if renewal := a.Renewed(h); renewal.Live && renewal.Accepted.Equal(begin.Add(interval)) {
				accepted++
			} else if renewal.Live || renewal.Reason != "NOT_AUTHORIZED" || !renewal.Accepted.Equal(begin) {
				t.Errorf("renewal of the rejected holder: %+v", renewal)
			}
		}
		if accepted != 1 {
			t.Errorf("%d holders are accepted, want the one that was not rejected", accepted)
		}
	})
}

func TestLookup_TargetsAppearAndChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := serve(t), serve(t)
		var gone atomic.Bool
		var targets atomic.Pointer[[]string]
		targets.Store(&[]string{})
		a := run(t, agent.Config{
			Lookup: func() []string { return *targets.Load() }, Dial: func(target string) (*grpc.ClientConn, error) {
				if target == "first" && gone.Load() {
					return nil, errors.New("no route to host")
				}
				return network{"first": first, "second": second}.dial(target)
			},
			Holders: []agent.Holder{node("n1")}, MaxBackoff: time.Second,
		})
		defer func() {
			if s := a.Status(); s.Registered != 1 || s.LostStreams == 0 {
				t.Errorf("status %+v; want a holder that is registered after a lost stream", s)
			}
		}()
		advance(time.Minute)
		if registered := a.Status().Registered; registered != 0 {
			t.Fatalf("%d holders are registered without a target", registered)
		}
		targets.Store(&[]string{"first"})
		advance(time.Second)
		expect(t, "first target", "first", a.Status().Target)
		targets.Store(&[]string{"second"})
		gone.Store(true)
		first.mu.Lock()
		first.end = func(int) error { return status.Error(codes.Unavailable, "the replica is gone") }
		first.mu.Unlock()
		advance(2 * interval)
		expect(t, "moved", "second", a.Status().Target)
	})
}

func TestAgeTolerance_BoundsHowMuchYoungerABeatIsThanItsReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}, AgeTolerance: time.Second})
		advance(0)
		s.takeSent(t)
		var ages []time.Duration
		for _, before := range []time.Duration{4 * time.Second, 500 * time.Millisecond, 2 * time.Second} {
			advance(interval - before - time.Millisecond)
			reportNow(t, a)
			advance(before + time.Millisecond)
			for _, one := range s.takeSent(t) {
				ages = append(ages, one.Age.Truncate(100*time.Millisecond))
			}
		}
		// The second report is within the tolerance.
		expect(t, "ages", []time.Duration{4 * time.Second, 0, 2 * time.Second}, ages)
	})
}

func TestConfig_TargetsAndLookupExcludeEachOther(t *testing.T) {
	_, err := agent.New(agent.Config{Targets: []string{"a"}, Lookup: func() []string { return nil }, Dial: network{}.dial, AgeTolerance: -1})
	if err == nil || !strings.Contains(err.Error(), "exclude each other") || !strings.Contains(err.Error(), "age tolerance") {
		t.Errorf("error %v; want both problems", err)
	}
}

func TestCollector_CountsWhatHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if response.Sequence == 3 {
				response.Directive = leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN
			}
			return response
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1"), node("n2")}})
		advance(0)
		report(t, a, node("n1"), agent.Report{ObservedTime: time.Unix(1000, 0)})
		advance(2 * interval)
		registry := prometheus.NewRegistry()
		registry.MustRegister(agent.NewCollector(a))
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, family := range families {
			for _, metric := range family.Metric {
				name := strings.TrimPrefix(family.GetName(), "trivet_agent_")
				for _, label := range metric.Label {
					name += " " + label.GetValue()
				}
				got[name] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
			}
		}
		delete(got, "last_answer_timestamp_seconds")
		expect(t, "metrics", map[string]float64{
			"answers_total move": 0, "answers_total none": 2, "answers_total reauth": 0, "answers_total resync": 0,
			"answers_total slow_down": 1, "answers_total unknown": 0, "beats_total": 4, "registrations_total": 2, "lost_streams_total": 0,
			"holders pending": 0, "holders registered": 2, "holders rejected": 0, "holders superseded": 0, "last_seen_timestamp_seconds": 1000,
		}, got)
	})
}
