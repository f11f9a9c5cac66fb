package sessioncontroller_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

var classes = []sessioncontroller.Class{
	{
		Namespace: "kube-node-lease",
		Session: session.Class{
			Name: "node", Interval: 10 * time.Second, Suspect: 25 * time.Second, TTL: 40 * time.Second, Retention: time.Hour,
		},
		Writes: writeback.Policy{Renew: 10 * time.Second, Duration: 40 * time.Second},
	},
	{
		Namespace: "agents",
		Session: session.Class{
			Name: "agent", Interval: time.Second, Suspect: 3 * time.Second, TTL: 5 * time.Second, Retention: time.Minute,
		},
		Writes: writeback.Policy{Renew: time.Second, Duration: 5 * time.Second},
	},
}

func newController() *sessioncontroller.Controller {
	return sessioncontroller.New(sessioncontroller.Config{Classes: classes, Shards: 4, Limit: 10_000, Logger: slog.New(slog.DiscardHandler)})
}

// run runs a keeper of shard 0 for the length of the test body.
func run(t testing.TB, ctl *sessioncontroller.Controller) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if err := ctl.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	}()
	endTerm := holdShard(t, ctl, 0, 7)
	return func() {
		endTerm()
		cancel()
		<-ctl.Done()
	}
}

// keep has a shard kept until the function that it returns is called, which waits for the end of it.
func holdShard(t testing.TB, ctl *sessioncontroller.Controller, shard int, epoch int64) (endTerm func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- ctl.RunShard(heldshards.New(ctx, shard, epoch)) }()
	for !isHeld(t, ctl, shard) {
		runtime.Gosched()
	}
	return func() {
		cancel()
		if err := <-kept; err != nil {
			t.Errorf("keep shard %d: %v", shard, err)
		}
	}
}

func isHeld(t testing.TB, ctl *sessioncontroller.Controller, shard int) bool {
	t.Helper()
	_, _, err := ctl.Get(t.Context(), session.Key{}, shard)
	var elsewhere sessioncontroller.NotHeldError
	if err != nil && !errors.As(err, &elsewhere) {
		t.Fatal(err)
	}
	return err == nil
}

func node(name, boot string) session.Holder {
	return session.Holder{Key: session.Key{Name: name}, Boot: boot}
}

func agent(name string) session.Holder {
	return session.Holder{Key: session.Key{Class: 1, Name: name}, Boot: "1"}
}

// introduce makes the holders known in one message and returns what they met.
func register(t testing.TB, ctl *sessioncontroller.Controller, holders ...session.Holder) []sessioncontroller.RegisterResult {
	t.Helper()
	batch := sessioncontroller.NewBatch()
	for _, h := range holders {
		batch.Registrations = append(batch.Registrations, sessioncontroller.Registration{Holder: h, Sequence: 1})
	}
	if err := ctl.Process(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	return batch.Results
}

func beat(t testing.TB, ctl *sessioncontroller.Controller, refs ...session.Ref) *sessioncontroller.Batch {
	t.Helper()
	batch := sessioncontroller.NewBatch()
	batch.Refs, batch.Sequence = refs, 2
	if err := ctl.Process(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	return batch
}

// change is an event without its times.
type change struct {
	Type  sessioncontroller.EventType
	Name  string
	State session.State
	Write writeback.State
}

// drain returns the events that there are for a reader who has had the ones before.
func drain(t testing.TB, sub *sessioncontroller.Subscription) []change {
	t.Helper()
	var changes []change
	for {
		events, err := sub.NextWithin(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 {
			return changes
		}
		for _, e := range events {
			changes = append(changes, change{Type: e.Type, Name: e.Lease.Holder.Key.Name, State: e.Lease.State, Write: e.Lease.Write.State})
		}
	}
}

// watch subscribes, and reads what there is at the beginning.
func watch(t testing.TB, ctl *sessioncontroller.Controller, classes []bool) *sessioncontroller.Subscription {
	t.Helper()
	sub, err := ctl.Watch(t.Context(), classes, sessioncontroller.Version{})
	if err != nil {
		t.Fatal(err)
	}
	drain(t, sub)
	return sub
}

func TestKeeper_SilenceIsSeenByWatchersInOrder(t *testing.T) {
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
			t.Errorf("silent (-want +got):\n%s", diff)
		}
		if got, want := ctl.Counts(), (session.Counts{Expired: 1}); got != want {
			t.Errorf("counts %+v, want %+v", got, want)
		}
		beat(t, ctl, ref)
		beat(t, ctl, ref) // a renewal alone is no change
		want = []change{{Type: sessioncontroller.Modified, Name: "a", State: session.Alive, Write: writeback.Pending}}
		if diff := cmp.Diff(want, drain(t, sub)); diff != "" {
			t.Errorf("back (-want +got):\n%s", diff)
		}
		time.Sleep(2 * time.Hour)
		changes := drain(t, sub)
		if diff := cmp.Diff(change{Type: sessioncontroller.Deleted, Name: "a"}, changes[len(changes)-1], cmp.Transformer("", func(c change) change { c.Write = 0; return c })); diff != "" {
			t.Errorf("forgotten (-want +got):\n%s", diff)
		}
	})
}

func TestKeeper_ExpiredHolderIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		register(t, ctl, node("a", "1"))
		time.Sleep(41 * time.Second)
		jobs, err := ctl.StartWrites(t.Context(), 10)
		if err != nil || jobs != nil {
			t.Errorf("jobs %v, error %v; want none", jobs, err)
		}
	})
}

func TestExchange_GrantIsTheShortestOfAllClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		result := register(t, ctl, node("a", "1"), agent("x"))
		for i, m := range result {
			if m.Outcome != session.Opened || m.Grant.Interval > classes[i].Session.Interval || m.Grant.TTL != classes[i].Session.TTL {
				t.Errorf("met %+v", m)
			}
		}
		batch := beat(t, ctl, result[0].Ref, session.Ref{}, result[1].Ref)
		want := sessioncontroller.Batch{
			Renewed: 2, Grant: sessioncontroller.Grant{Interval: time.Second, TTL: 5 * time.Second, Epoch: 7},
			Rejected: []sessioncontroller.RejectedBeat{{Index: 1, Outcome: session.Unknown}},
		}
		got := sessioncontroller.Batch{Renewed: batch.Renewed, Grant: batch.Grant, Rejected: batch.Rejected}
		if diff := cmp.Diff(want.Rejected, got.Rejected); diff != "" || want.Grant != got.Grant || want.Renewed != got.Renewed {
			t.Errorf("got %d renewed, grant %+v, missed %v", got.Renewed, got.Grant, got.Rejected)
		}
	})
}

func TestExchange_RepeatedBeatGetsWhatIsLeft(t *testing.T) {
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
			t.Errorf("met %+v, want Repeated with %+v", got, want)
		}
	})
}

func TestKeeper_AnswersErrEndedAfterItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		run(t, ctl)()
		_, err := ctl.StartWrites(t.Context(), 1)
		_, _, pageErr := ctl.List(t.Context(), sessioncontroller.ListOptions{Limit: 1})
		_, _, getErr := ctl.Get(t.Context(), session.Key{}, 0)
		_, watchErr := ctl.Watch(t.Context(), nil, sessioncontroller.Version{})
		_, holdErr := ctl.BeginRelease(t.Context(), node("a", "1"), 0)
		for name, err := range map[string]error{
			"exchange": ctl.Process(t.Context(), sessioncontroller.NewBatch()), "start": err, "finish": ctl.FinishWrite(sessioncontroller.WriteJob{}, sessioncontroller.WriteResult{}),
			"page": pageErr, "get": getErr, "watch": watchErr, "hold": holdErr, "keep": ctl.RunShard(heldshards.New(t.Context(), 0, 8)),
		} {
			if !errors.Is(err, sessioncontroller.ErrStopped) {
				t.Errorf("%s: error %v, want ErrEnded", name, err)
			}
		}
	})
}

func TestKeeper_CallerDoesNotWaitLongerThanItsContext(t *testing.T) {
	ctl := newController() // nobody runs it
	cause := errors.New("the caller went away")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := ctl.StartWrites(ctx, 1); !errors.Is(err, cause) {
		t.Errorf("error %v, want the context's cause", err)
	}
}

func BenchmarkExchange_OneBeat(b *testing.B)  { benchmarkExchange(b, 1) }
func BenchmarkExchange_256Beats(b *testing.B) { benchmarkExchange(b, 256) }

func benchmarkExchange(b *testing.B, holders int) {
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
