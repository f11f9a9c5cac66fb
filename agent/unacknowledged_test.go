package agent_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
)

// renewals are the calls of Config.Unacknowledged.
type renewals struct {
	begin time.Time

	mu            sync.Mutex // guards the fields below
	calls         map[string][]time.Duration
	running, most int           // calls at once
	takes         time.Duration // each call
	err           error         // of each call
}

func newRenewals() *renewals {
	return &renewals{begin: time.Now(), calls: map[string][]time.Duration{}}
}

func (r *renewals) renew(ctx context.Context, h agent.Holder) error {
	takes, err := r.enter(h.Name)
	defer r.leave()
	select {
	case <-time.After(takes):
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *renewals) enter(name string) (takes time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[name] = append(r.calls[name], time.Since(r.begin))
	r.running++
	r.most = max(r.most, r.running)
	return r.takes, r.err
}

func (r *renewals) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running--
}

// take returns the times of the calls since the last take, by holder.
func (r *renewals) take() map[string][]time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = map[string][]time.Duration{}
	return calls
}

func (r *renewals) set(takes time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.takes, r.err = takes, err
}

// at returns the seconds as durations.
func at(seconds ...float64) (times []time.Duration) {
	for _, s := range seconds {
		times = append(times, time.Duration(s*float64(time.Second)))
	}
	return times
}

type calls = map[string][]time.Duration

// serveNodes serves with the intervals of leasesvc's defaults, and a slower class.
func serveNodes(t *testing.T) *server {
	s := serve(t)
	s.intervals = map[string]time.Duration{"node": 5 * time.Second, "slow": time.Minute}
	return s
}

// A holder whose beats are acknowledged is never renewed in another way. One whose beats are not is
// renewed 6 s after one was due by the interval of its own class, and then every two intervals.
func TestUnacknowledged_HoldersAreRenewedInAnotherWayInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := serveNodes(t), newRenewals()
		var log bytes.Buffer
		slow := agent.Holder{Class: "slow", Name: "slow", BootID: "1"}
		a := run(t, agent.Config{
			Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1"), node("n2"), slow},
			Unacknowledged: r.renew, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		advance(122 * time.Second)
		expect(t, "calls while beats are acknowledged", calls{}, r.take())
		s.silence() // the last acknowledgements were at 120 s
		advance(30 * time.Second)
		expect(t, "calls for unacknowledged beats", calls{"n1": at(131, 141, 151), "n2": at(131, 141, 151)}, r.take())
		advance(102 * time.Second)
		expect(t, "calls for the slow class", at(120+60+72), r.take()["slow"])
		if got := strings.Count(log.String(), "beats are not acknowledged in time"); got != 3 {
			t.Errorf("%d lines in two minutes, want 3:\n%s", got, log.String())
		}
		s.mu.Lock()
		s.change = nil
		s.mu.Unlock()
		advance(20 * time.Second)
		before := a.Status().Unacknowledged
		advance(time.Minute)
		expect(t, "calls after the server is back", before, a.Status().Unacknowledged)
		expect(t, "mode", "endpoint", s.takeRequests()[0].ClientInfo.GetMode())
	})
}

// The first interval after a registration is shorter than the class's. It makes no beat late.
func TestUnacknowledged_TheFirstIntervalIsNoIntervalOfTheClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := serveNodes(t), newRenewals()
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if response.Sequence > 1 {
				return nil
			}
			response.RegistrationResults[0].GetGrant().NextInterval = durationpb.New(2500 * time.Millisecond)
			return response
		}
		run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}, Unacknowledged: r.renew})
		advance(12 * time.Second)
		expect(t, "calls", calls{"n1": at(11)}, r.take())
	})
}

// A late acknowledgement does not delay the renewal beyond 16.4 s after the observation that it
// acknowledges: the session lives for 20 s after it.
func TestUnacknowledged_ALateAcknowledgementDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := serveNodes(t), newRenewals()
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			switch response.Sequence {
			case 1:
				return response
			case 2: // sent after 5 s
				time.Sleep(5900 * time.Millisecond)
				return response
			}
			return nil
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1")}, Unacknowledged: r.renew})
		advance(22 * time.Second)
		expect(t, "calls", calls{"n1": at(21.4)}, r.take())
		renewal := a.Renewed(node("n1"))
		expect(t, "acknowledged", at(5, 10.9), []time.Duration{renewal.Observed.Sub(r.begin), renewal.Accepted.Sub(r.begin)})
	})
}

// A holder that no server has accepted is renewed 6 s after it was added, or Run began. A call that
// failed is repeated after 2 s, and one that hangs ends after an interval.
func TestUnacknowledged_AHolderWithoutAnAcknowledgementIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRenewals()
		a, err := agent.New(agent.Config{
			Lookup: func() []string { return nil }, Dial: network{}.dial, Holders: []agent.Holder{node("n1"), node("n2")}, Unacknowledged: r.renew,
		})
		if err != nil {
			t.Fatal(err)
		}
		advance(time.Hour)
		r.begin = time.Now()
		start(t, a)
		advance(3 * time.Second)
		if err := a.Add(node("n3")); err != nil {
			t.Fatal(err)
		}
		advance(17500 * time.Millisecond)
		expect(t, "calls", calls{"n1": at(6, 16), "n2": at(6, 16), "n3": at(9, 19)}, r.take())
		a.Remove(node("n2"), node("n3"))
		r.set(0, errors.New("kube-apiserver is away"))
		advance(10 * time.Second)
		expect(t, "calls that fail", calls{"n1": at(26, 28, 30)}, r.take())
		r.set(time.Hour, nil)
		advance(10 * time.Second)
		expect(t, "calls that hang", calls{"n1": at(32, 39)}, r.take())
		registry := prometheus.NewRegistry()
		registry.MustRegister(agent.NewCollector(a))
		if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP trivet_agent_unacknowledged_total Renewals of holders in another way, because no leader acknowledged their beats in time, by result: renewed or failed. trivet-agent has none.
# TYPE trivet_agent_unacknowledged_total counter
trivet_agent_unacknowledged_total{result="failed"} 4
trivet_agent_unacknowledged_total{result="renewed"} 6
`), "trivet_agent_unacknowledged_total"); err != nil {
			t.Error(err)
		}
	})
}

// A holder that the caller does not observe any more may be dead, and one that another boot has
// superseded has another agent.
func TestUnacknowledged_OnlyLivingHoldersAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := serveNodes(t), newRenewals()
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			switch response.Sequence {
			case 1:
				response.RegistrationResults[0] = &leasev1.RegistrationResult{Result: &leasev1.RegistrationResult_Rejection{
					Rejection: &leasev1.Rejection{Reason: "SUPERSEDED", RetryAfter: durationpb.New(time.Minute)},
				}}
				return response
			case 2:
				return response
			}
			return nil
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("superseded")}, Unacknowledged: r.renew})
		advance(0)
		if err := a.Add(node("silent"), node("seen")); err != nil {
			t.Fatal(err)
		}
		silent := time.Now()
		for range 24 {
			report(t, a, node("seen"), agent.Report{ObservedTime: time.Now()})
			report(t, a, node("silent"), agent.Report{ObservedTime: silent})
			advance(time.Second)
		}
		got := r.take()
		expect(t, "holders with calls", []string{"seen"}, slices.Sorted(maps.Keys(got)))
		expect(t, "calls", at(11, 21), got["seen"])
		advance(20 * time.Second)
		expect(t, "calls for a holder that is not seen any more", calls{}, r.take())
		report(t, a, node("silent"), agent.Report{ObservedTime: time.Now()})
		advance(time.Second)
		expect(t, "calls for one that is seen again", 1, len(r.take()["silent"]))
	})
}

// A call that waited for others is not made if its holder is acknowledged or removed by then.
func TestUnacknowledged_ANeedlessCallIsNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := serveNodes(t), newRenewals()
		r.takes = time.Second
		var reachable atomic.Bool
		a := run(t, agent.Config{
			Lookup: func() []string {
				if reachable.Load() {
					return []string{"a"}
				}
				return nil
			},
			Dial: network{"a": s}.dial, Holders: nodes(600), MinBackoff: 100 * time.Millisecond, MaxBackoff: 100 * time.Millisecond, Unacknowledged: r.renew,
		})
		advance(6500 * time.Millisecond)
		first := r.take()
		var waiting []agent.Holder
		for _, h := range nodes(600) {
			if first[h.Name] == nil {
				waiting = append(waiting, h)
			}
		}
		expect(t, "calls that wait", 600-256, len(waiting))
		a.Remove(waiting[:100]...)
		reachable.Store(true)
		advance(10 * time.Second)
		expect(t, "registered", 500, a.Status().Registered)
		expect(t, "calls after that", calls{}, r.take())
	})
}

// Many holders are served by a bounded number of calls, in the order in which they are due.
func TestUnacknowledged_ABoundedNumberOfCallsServesTheOldestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 256
		r := newRenewals()
		r.takes = 100 * time.Millisecond
		a := run(t, agent.Config{Lookup: func() []string { return nil }, Dial: network{}.dial, Unacknowledged: r.renew})
		groups := [][]agent.Holder{nodes(agent.MaxHolders)[6000:], nodes(6000)[3000:], nodes(3000)}
		for _, group := range groups {
			if err := a.Add(group...); err != nil {
				t.Fatal(err)
			}
			advance(50 * time.Millisecond)
		}
		advance(10 * time.Second) // the first are due after 6 s, and all calls take 4 s
		got, last := r.take(), time.Duration(0)
		for i, group := range groups {
			var times []time.Duration
			for _, h := range group {
				times = append(times, got[h.Name]...)
			}
			expect(t, "calls of a group", len(group), len(times))
			if slices.Min(times) < last {
				t.Errorf("group %d is served before one that was due earlier", i)
			}
			last = slices.Max(times)
		}
		expect(t, "calls", uint64(agent.MaxHolders), a.Status().Unacknowledged)
		expect(t, "calls at once", most, r.most)
	})
}
