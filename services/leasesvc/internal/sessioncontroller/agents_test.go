package sessioncontroller_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

func beatAs(t *testing.T, ctl *sessioncontroller.Controller, mode string, sequence uint64, age time.Duration) {
	t.Helper()
	batch := sessioncontroller.NewBatch()
	batch.Registrations = []sessioncontroller.Registration{{
		Holder: node("a", "1"), Sequence: sequence, Agent: session.Agent{Name: "trivet-agent", Mode: mode},
		Report: &sessioncontroller.Report{Observed: true, ObservedAge: age},
	}}
	if err := ctl.Process(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
}

func TestWrites_LeaseOfAProbedKubeletIsLeftToIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		for sequence := range uint64(60) { // the session is alive, expires and recovers
			age := time.Duration(0)
			if sequence >= 20 && sequence < 40 {
				age = time.Duration(sequence-19) * 10 * time.Second
			}
			beatAs(t, ctl, "probe", sequence+1, age)
			if jobs := startWrites(t, ctl); jobs != nil {
				t.Fatalf("beat %d: jobs %+v", sequence, jobs)
			}
			time.Sleep(10 * time.Second)
		}
		if got := getLease(t, ctl, node("a", "1")).Write; got.State != writeback.Left || !got.Due.IsZero() {
			t.Errorf("write %+v", got)
		}
		// The kubelet writes its Lease through the agent from now on, so the next beat takes it up.
		beatAs(t, ctl, "endpoint", 100, 0)
		jobs := startWrites(t, ctl)
		if len(jobs) != 1 || jobs[0].Reason != writeback.First || jobs[0].Last.Exists() {
			t.Fatalf("jobs %+v, want a first write after a read", jobs)
		}
		finishWrite(t, ctl, jobs[0], sessioncontroller.WriteResult{Lease: leaseRecord("5", time.Now())})
		beatAs(t, ctl, "probe", 101, 0)
		time.Sleep(time.Minute)
		if jobs := startWrites(t, ctl); jobs != nil {
			t.Errorf("after the return of the probe: jobs %+v", jobs)
		}
	})
}

// A session that a forwarded beat opens knows how its agent observes the kubelet, and nothing else
// of it. What the agent itself has said stays.
func TestWrites_AForwardedBeatLeavesTheLeaseOfAProbedKubelet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		forward := func(sequence uint64) {
			t.Helper()
			batch := sessioncontroller.NewBatch()
			batch.Unordered, batch.Forwarded = true, true
			batch.Registrations = []sessioncontroller.Registration{{Holder: node("a", "1"), Sequence: sequence, Agent: session.Agent{Mode: "probe"}}}
			if err := ctl.Process(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
		}
		forward(1)
		time.Sleep(10 * time.Second)
		if jobs := startWrites(t, ctl); jobs != nil {
			t.Errorf("jobs %+v", jobs)
		}
		beatAs(t, ctl, "endpoint", 2, 0)
		forward(3)
		if got := getLease(t, ctl, node("a", "1")).Agent; got.Name != "trivet-agent" || got.Mode != "endpoint" {
			t.Errorf("agent %+v, want what it said itself", got)
		}
	})
}

func TestWatch_AgentOfAnExpiredSessionLivesWhileItsBeatsCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		beatAs(t, ctl, "probe", 1, 0)
		expect := func(what string, state session.State, lives bool) {
			t.Helper()
			if got := getLease(t, ctl, node("a", "1")); got.State != state || got.AgentLives != lives {
				t.Errorf("%s: state %v, the agent lives: %t; want %v, %t", what, got.State, got.AgentLives, state, lives)
			}
		}
		for i := range uint64(4) {
			time.Sleep(10 * time.Second)
			beatAs(t, ctl, "probe", i+2, time.Duration(i+1)*10*time.Second)
		}
		time.Sleep(time.Second)
		expect("after the expiry", session.Expired, true)
		time.Sleep(26 * time.Second)
		expect("after missed beats", session.Expired, false)
		beatAs(t, ctl, "probe", 20, 2*time.Minute)
		expect("after a beat", session.Expired, true)
		beatAs(t, ctl, "probe", 21, 0)
		expect("after the recovery", session.Alive, false)
	})
}
