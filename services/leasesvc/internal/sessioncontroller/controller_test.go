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

func newKeeper() *sessioncontroller.Controller {
	return sessioncontroller.New(sessioncontroller.Config{Classes: classes, Shards: 4, Limit: 10_000, Logger: slog.New(slog.DiscardHandler)})
}

// run runs a keeper of shard 0 for the length of the test body.
func run(t testing.TB, k *sessioncontroller.Controller) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if err := k.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	}()
	lose := keep(t, k, 0, 7)
	return func() {
		lose()
		cancel()
		<-k.Done()
	}
}

// keep has a shard kept until the function that it returns is called, which waits for the end of it.
func keep(t testing.TB, k *sessioncontroller.Controller, shard int, epoch int64) (lose func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- k.RunShard(heldshards.New(ctx, shard, epoch)) }()
	for !holds(t, k, shard) {
		runtime.Gosched()
	}
	return func() {
		cancel()
		if err := <-kept; err != nil {
			t.Errorf("keep shard %d: %v", shard, err)
		}
	}
}

func holds(t testing.TB, k *sessioncontroller.Controller, shard int) bool {
	t.Helper()
	_, _, err := k.Get(t.Context(), session.Key{}, shard)
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
func introduce(t testing.TB, k *sessioncontroller.Controller, holders ...session.Holder) []sessioncontroller.RegisterResult {
	t.Helper()
	x := sessioncontroller.NewBatch()
	for _, h := range holders {
		x.Registrations = append(x.Registrations, sessioncontroller.Registration{Holder: h, Sequence: 1})
	}
	if err := k.Process(t.Context(), x); err != nil {
		t.Fatal(err)
	}
	return x.Results
}

func beat(t testing.TB, k *sessioncontroller.Controller, refs ...session.Ref) *sessioncontroller.Batch {
	t.Helper()
	x := sessioncontroller.NewBatch()
	x.Refs, x.Sequence = refs, 2
	if err := k.Process(t.Context(), x); err != nil {
		t.Fatal(err)
	}
	return x
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
func watch(t testing.TB, k *sessioncontroller.Controller, classes []bool) *sessioncontroller.Subscription {
	t.Helper()
	sub, err := k.Watch(t.Context(), classes, sessioncontroller.Version{})
	if err != nil {
		t.Fatal(err)
	}
	drain(t, sub)
	return sub
}

func TestKeeper_SilenceIsSeenByWatchersInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		defer run(t, k)()
		sub := watch(t, k, nil)
		ref := introduce(t, k, node("a", "1"))[0].Ref
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
		if got, want := k.Counts(), (session.Counts{Expired: 1}); got != want {
			t.Errorf("counts %+v, want %+v", got, want)
		}
		beat(t, k, ref)
		beat(t, k, ref) // a renewal alone is no change
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
		k := newKeeper()
		defer run(t, k)()
		introduce(t, k, node("a", "1"))
		time.Sleep(41 * time.Second)
		jobs, err := k.StartWrites(t.Context(), 10)
		if err != nil || jobs != nil {
			t.Errorf("jobs %v, error %v; want none", jobs, err)
		}
	})
}

func TestExchange_GrantIsTheShortestOfAllClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		defer run(t, k)()
		met := introduce(t, k, node("a", "1"), agent("x"))
		for i, m := range met {
			if m.Outcome != session.Opened || m.Grant.Interval > classes[i].Session.Interval || m.Grant.TTL != classes[i].Session.TTL {
				t.Errorf("met %+v", m)
			}
		}
		x := beat(t, k, met[0].Ref, session.Ref{}, met[1].Ref)
		want := sessioncontroller.Batch{
			Renewed: 2, Grant: sessioncontroller.Grant{Interval: time.Second, TTL: 5 * time.Second, Epoch: 7},
			Rejected: []sessioncontroller.RejectedBeat{{Index: 1, Outcome: session.Unknown}},
		}
		got := sessioncontroller.Batch{Renewed: x.Renewed, Grant: x.Grant, Rejected: x.Rejected}
		if diff := cmp.Diff(want.Rejected, got.Rejected); diff != "" || want.Grant != got.Grant || want.Renewed != got.Renewed {
			t.Errorf("got %d renewed, grant %+v, missed %v", got.Renewed, got.Grant, got.Rejected)
		}
	})
}

func TestExchange_RepeatedBeatGetsWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		defer run(t, k)()
		introduce(t, k, node("a", "1"))
		time.Sleep(15 * time.Second)
		x := sessioncontroller.NewBatch()
		x.Unordered, x.Registrations = true, []sessioncontroller.Registration{{Holder: node("a", "1"), Sequence: 1}}
		if err := k.Process(t.Context(), x); err != nil {
			t.Fatal(err)
		}
		want := sessioncontroller.Grant{Interval: 10 * time.Second, TTL: 25 * time.Second, Epoch: 7}
		if got := x.Results[0]; got.Outcome != session.Repeated || got.Grant != want {
			t.Errorf("met %+v, want Repeated with %+v", got, want)
		}
	})
}

func TestKeeper_AnswersErrEndedAfterItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		run(t, k)()
		_, err := k.StartWrites(t.Context(), 1)
		_, _, pageErr := k.List(t.Context(), sessioncontroller.ListOptions{Limit: 1})
		_, _, getErr := k.Get(t.Context(), session.Key{}, 0)
		_, watchErr := k.Watch(t.Context(), nil, sessioncontroller.Version{})
		_, holdErr := k.BeginRelease(t.Context(), node("a", "1"), 0)
		for name, err := range map[string]error{
			"exchange": k.Process(t.Context(), sessioncontroller.NewBatch()), "start": err, "finish": k.FinishWrite(sessioncontroller.WriteJob{}, sessioncontroller.WriteResult{}),
			"page": pageErr, "get": getErr, "watch": watchErr, "hold": holdErr, "keep": k.RunShard(heldshards.New(t.Context(), 0, 8)),
		} {
			if !errors.Is(err, sessioncontroller.ErrStopped) {
				t.Errorf("%s: error %v, want ErrEnded", name, err)
			}
		}
	})
}

func TestKeeper_CallerDoesNotWaitLongerThanItsContext(t *testing.T) {
	k := newKeeper() // nobody runs it
	cause := errors.New("the caller went away")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := k.StartWrites(ctx, 1); !errors.Is(err, cause) {
		t.Errorf("error %v, want the context's cause", err)
	}
}

func BenchmarkExchange_OneBeat(b *testing.B)  { benchmarkExchange(b, 1) }
func BenchmarkExchange_256Beats(b *testing.B) { benchmarkExchange(b, 256) }

func benchmarkExchange(b *testing.B, holders int) {
	k := newKeeper()
	defer run(b, k)()
	x := sessioncontroller.NewBatch()
	for i := range holders {
		x.Registrations = append(x.Registrations, sessioncontroller.Registration{Holder: node("node-"+time.Duration(i).String(), "1"), Sequence: 1})
	}
	if err := k.Process(b.Context(), x); err != nil {
		b.Fatal(err)
	}
	for _, met := range x.Results {
		x.Refs = append(x.Refs, met.Ref)
	}
	x.Registrations = nil
	b.ReportAllocs()
	for b.Loop() {
		if err := k.Process(b.Context(), x); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*float64(holders)/b.Elapsed().Seconds(), "beats/s")
}
