package agent_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/agent"
)

// renewals are the calls of Config.Unacknowledged: by holder, the times since the begin.
type renewals struct {
	begin time.Time
	err   error

	mu    sync.Mutex // guards the fields below
	takes time.Duration
	calls map[string][]time.Duration
}

func newRenewals() *renewals {
	return &renewals{begin: time.Now(), calls: map[string][]time.Duration{}}
}

func (r *renewals) renew(ctx context.Context, h agent.Holder) error {
	r.mu.Lock()
	r.calls[h.Name] = append(r.calls[h.Name], time.Since(r.begin))
	takes := r.takes
	r.mu.Unlock()
	select {
	case <-time.After(takes):
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *renewals) of(name string) []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls[name])
}

// A holder whose beats are acknowledged is never renewed in another way, and one whose beats are
// not is within 16 s of its last acknowledgement, and then in each interval.
func TestUnacknowledged_HoldersAreRenewedInAnotherWayInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := serve(t), newRenewals()
		a := run(t, agent.Config{
			Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: []agent.Holder{node("n1"), node("n2")}, Unacknowledged: r.renew,
		})
		advance(45 * time.Second)
		expect(t, "calls while the beats are acknowledged", 0, len(r.of("n1"))+len(r.of("n2")))
		s.silence()
		advance(55 * time.Second) // the last acknowledgement was at 40 s
		for _, name := range []string{"n1", "n2"} {
			expect(t, "calls for "+name, []time.Duration{56 * time.Second, 66 * time.Second, 76 * time.Second, 86 * time.Second, 96 * time.Second}, r.of(name))
		}
		expect(t, "calls that have returned", uint64(10), a.Status().Unacknowledged)
	})
}

// Nothing is done for a holder that the caller has not observed for an interval. A slow call holds
// up no other holder, and one that hangs ends after an interval and is not repeated beside itself.
func TestUnacknowledged_ASilentHolderIsNotRenewedAndAHangingCallHoldsUpNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRenewals()
		r.takes, r.err = 9500*time.Millisecond, errors.New("kube-apiserver is away")
		holders := []agent.Holder{node("n1"), node("n2"), node("silent")}
		a := run(t, agent.Config{Lookup: func() []string { return nil }, Dial: network{}.dial, Holders: holders, Unacknowledged: r.renew})
		report(t, a, node("silent"), agent.Report{ObservedTime: time.Now().Add(-time.Hour)})
		advance(45 * time.Second)
		want := []time.Duration{16 * time.Second, 26 * time.Second, 36 * time.Second}
		expect(t, "calls for n1", want, r.of("n1"))
		expect(t, "calls for n2", want, r.of("n2"))
		expect(t, "calls for the silent holder", []time.Duration(nil), r.of("silent"))
		r.mu.Lock()
		r.takes = time.Minute
		r.mu.Unlock()
		advance(15 * time.Second) // those at 46 s hang until 56 s
		expect(t, "calls that hang", 5, len(r.of("n1")))
		status := a.Status()
		if status.UnacknowledgedFailed == 0 || status.UnacknowledgedFailed != status.Unacknowledged {
			t.Errorf("%d of %d calls failed, want all", status.UnacknowledgedFailed, status.Unacknowledged)
		}
	})
}
