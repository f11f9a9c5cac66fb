package sessioncontroller_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

func TestController_WatchShowsStatesInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		sub := watch(t, ctl, nil)
		ref := register(t, ctl, node("a", "1"))[0].Ref
		var seen []change
		for _, silence := range []time.Duration{0, 26 * time.Second, 15 * time.Second} {
			time.Sleep(silence)
			seen = append(seen, drain(t, sub)...)
		}
		want := []change{
			{Type: sessioncontroller.Added, Name: "a", State: session.Alive, Write: writeback.Pending},
			{Type: sessioncontroller.Modified, Name: "a", State: session.Suspect, Write: writeback.Pending},
			{Type: sessioncontroller.Modified, Name: "a", State: session.Expired, Write: writeback.Pending},
		}
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Errorf("while silent (-want +got):\n%s", diff)
		}
		if got, want := ctl.Counts(), (session.Counts{Expired: 1}); got != want {
			t.Errorf("counts %+v, want %+v", got, want)
		}
		beat(t, ctl, ref)
		beat(t, ctl, ref) // a renewal is no event
		want = []change{{Type: sessioncontroller.Modified, Name: "a", State: session.Alive, Write: writeback.Pending}}
		if diff := cmp.Diff(want, drain(t, sub)); diff != "" {
			t.Errorf("after a beat (-want +got):\n%s", diff)
		}
		time.Sleep(2 * time.Hour)
		changes := drain(t, sub)
		if diff := cmp.Diff(change{Type: sessioncontroller.Deleted, Name: "a"}, changes[len(changes)-1], cmp.Transformer("", func(c change) change { c.Write = 0; return c })); diff != "" {
			t.Errorf("after the Retention (-want +got):\n%s", diff)
		}
	})
}

func TestStartWrites_ExpiredHolderIsNotWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := decisions.NewLog()
		ctl := newRecordingController(log)
		defer run(t, ctl)()
		register(t, ctl, node("a", "1"))
		time.Sleep(41 * time.Second)
		jobs, err := ctl.StartWrites(t.Context(), 10)
		if err != nil || jobs != nil {
			t.Errorf("jobs %v, error %v; want none", jobs, err)
		}
		kept, _, _ := log.After(decisions.Cursor{})
		if len(kept) != 1 || kept[0].Action != decisions.LeaseExpired || kept[0].Node != "a" || kept[0].Epoch != 7 || kept[0].InputAge < 40*time.Second {
			t.Errorf("decisions %+v, want that the lease of node a expired", kept)
		}
	})
}

func TestProcess_GrantIsTheShortestOfAllClasses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		result := register(t, ctl, node("a", "1"), agent("x"))
		for i, m := range result {
			if m.Outcome != session.Opened || m.Grant.Interval > classes[i].Session.Interval || m.Grant.TTL != classes[i].Session.TTL {
				t.Errorf("result %+v", m)
			}
		}
		batch := beat(t, ctl, result[0].Ref, session.Ref{}, result[1].Ref)
		want := sessioncontroller.Batch{
			Renewed: 2, Grant: sessioncontroller.Grant{Interval: time.Second, TTL: 5 * time.Second, Epoch: 7},
			Rejected: []sessioncontroller.RejectedBeat{{Index: 1, Outcome: session.Unknown}},
		}
		got := sessioncontroller.Batch{Renewed: batch.Renewed, Grant: batch.Grant, Rejected: batch.Rejected}
		if diff := cmp.Diff(want.Rejected, got.Rejected); diff != "" || want.Grant != got.Grant || want.Renewed != got.Renewed {
			t.Errorf("got %d renewed, grant %+v, rejected %v", got.Renewed, got.Grant, got.Rejected)
		}
	})
}

func TestProcess_RepeatedBeatGetsTheRemainingTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		register(t, ctl, node("a", "1"))
		time.Sleep(15 * time.Second)
		batch := sessioncontroller.NewBatch()
		batch.Unordered, batch.Registrations = true, []sessioncontroller.Registration{{Holder: node("a", "1"), Sequence: 1}}
		if err := ctl.Process(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		want := sessioncontroller.Grant{Interval: 10 * time.Second, TTL: 25 * time.Second, Epoch: 7}
		if got := batch.Results[0]; got.Outcome != session.Repeated || got.Grant != want {
			t.Errorf("result %+v, want Repeated with %+v", got, want)
		}
	})
}

func TestController_FailsWithErrStoppedAfterRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		run(t, ctl)()
		_, err := ctl.StartWrites(t.Context(), 1)
		_, listErr := ctl.List(t.Context(), sessioncontroller.ListOptions{Limit: 1})
		_, _, getErr := ctl.Get(t.Context(), session.Key{}, 0)
		_, watchErr := ctl.Watch(t.Context(), sessioncontroller.Selection{}, sessioncontroller.Version{})
		_, releaseErr := ctl.BeginRelease(t.Context(), node("a", "1"), 0, "")
		for name, err := range map[string]error{
			"process": ctl.Process(t.Context(), sessioncontroller.NewBatch()), "start writes": err, "finish write": ctl.FinishWrite(sessioncontroller.WriteJob{}, sessioncontroller.WriteResult{}),
			"list": listErr, "get": getErr, "watch": watchErr, "begin release": releaseErr, "run shard": ctl.RunShard(sessioncontroller.NewHeldShard(t.Context(), 0, 8)),
		} {
			if !errors.Is(err, sessioncontroller.ErrStopped) {
				t.Errorf("%s: error %v, want ErrStopped", name, err)
			}
		}
	})
}

func TestController_CallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctl := newController() // Run is not called
	cause := errors.New("caller cancelled")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := ctl.StartWrites(ctx, 1); !errors.Is(err, cause) {
		t.Errorf("error %v, want the context's cause", err)
	}
}

func BenchmarkProcess_OneBeat(b *testing.B)  { benchmarkProcess(b, 1) }
func BenchmarkProcess_256Beats(b *testing.B) { benchmarkProcess(b, 256) }

func benchmarkProcess(b *testing.B, holders int) {
	ctl := newController()
	defer run(b, ctl)()
	batch := sessioncontroller.NewBatch()
	for i := range holders {
		batch.Registrations = append(batch.Registrations, sessioncontroller.Registration{Holder: node("node-"+time.Duration(i).String(), "1"), Sequence: 1})
	}
	if err := ctl.Process(b.Context(), batch); err != nil {
		b.Fatal(err)
	}
	for _, result := range batch.Results {
		batch.Refs = append(batch.Refs, result.Ref)
	}
	batch.Registrations = nil
	b.ReportAllocs()
	for b.Loop() {
		if err := ctl.Process(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*float64(holders)/b.Elapsed().Seconds(), "beats/s")
}
