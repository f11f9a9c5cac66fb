package sessioncontroller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// introduceIn makes one holder of a shard known.
func introduceIn(t testing.TB, k *sessioncontroller.Controller, shard int, h session.Holder) sessioncontroller.RegisterResult {
	t.Helper()
	x := sessioncontroller.NewBatch()
	x.Registrations = []sessioncontroller.Registration{{Holder: h, Shard: shard, Sequence: 1}}
	if err := k.Process(t.Context(), x); err != nil {
		t.Fatal(err)
	}
	return x.Results[0]
}

func TestExchange_HolderOfAShardThatIsNotKeptIsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		defer run(t, k)()
		elsewhere := sessioncontroller.RegisterResult{NotHeld: true}
		if got := introduceIn(t, k, 1, node("b", "1")); got != elsewhere {
			t.Errorf("before the term: %+v", got)
		}
		lose := keep(t, k, 1, 9)
		met := introduceIn(t, k, 1, node("b", "1"))
		if met.Outcome != session.Opened || met.Grant.Epoch != 9 {
			t.Errorf("during the term: %+v, want opened at epoch 9", met)
		}
		kept := introduceIn(t, k, 0, node("a", "1"))
		if got := beat(t, k, kept.Ref, met.Ref).Grant.Epoch; got != 9 {
			t.Errorf("beats of both shards got epoch %d, want the newer, 9", got)
		}
		lose()
		x := beat(t, k, kept.Ref, met.Ref)
		want := []sessioncontroller.RejectedBeat{{Index: 1, Outcome: session.Unknown}}
		if diff := cmp.Diff(want, x.Rejected); diff != "" || x.Renewed != 1 || x.Grant.Epoch != 7 {
			t.Errorf("after the term: %d renewed at epoch %d, missed (-want +got):\n%s", x.Renewed, x.Grant.Epoch, diff)
		}
		if got := introduceIn(t, k, 1, node("b", "1")); got != elsewhere {
			t.Errorf("after the term: %+v", got)
		}
		_, _, err := k.Get(t.Context(), node("b", "1").Key, 1)
		_, held := k.BeginRelease(t.Context(), node("b", "1"), 1)
		for what, err := range map[string]error{"get": err, "hold": held} {
			if want := (sessioncontroller.NotHeldError{Shard: 1}); !errors.Is(err, want) {
				t.Errorf("%s: error %v, want %v", what, err, want)
			}
		}
	})
}

func TestKeep_DropsTheSessionsOfItsShardAndNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		defer run(t, k)()
		lose := keep(t, k, 1, 9)
		for i := range 10 {
			introduceIn(t, k, i%2, node(fmt.Sprint("n", i), "1"))
		}
		introduceIn(t, k, 1, agent("x"))
		sub := watch(t, k, nil)
		lose()
		var dismissed []string
		for _, c := range drain(t, sub) {
			if c.Type != sessioncontroller.Deleted || c.State != session.Gone {
				t.Errorf("%+v, want it deleted", c)
			}
			dismissed = append(dismissed, c.Name)
		}
		slices.Sort(dismissed)
		if diff := cmp.Diff([]string{"n1", "n3", "n5", "n7", "n9", "x"}, dismissed); diff != "" {
			t.Errorf("deleted (-want +got):\n%s", diff)
		}
		if got, want := k.Counts(), (session.Counts{Alive: 5}); got != want {
			t.Errorf("counts %+v, want %+v", got, want)
		}
		defer keep(t, k, 1, 11)()
		if _, found, err := k.Get(t.Context(), node("n1", "1").Key, 1); found || err != nil {
			t.Errorf("the next term knows a session of the one before: error %v", err)
		}
		if got := introduceIn(t, k, 1, node("n1", "1")).Outcome; got != session.Opened {
			t.Errorf("outcome %v in the next term, want opened", got)
		}
	})
}

func TestKeep_WaitsForTheWritesOfItsShardAndLetsNoneBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		defer run(t, k)()
		ctx, cancel := context.WithCancel(t.Context())
		kept := make(chan error, 1)
		go func() { kept <- k.RunShard(heldshards.New(ctx, 1, 9)) }()
		synctest.Wait()
		introduceIn(t, k, 1, node("b", "1"))
		introduceIn(t, k, 1, node("c", "1"))
		jobs := start(t, k)
		write, end, ok := jobs[0].BeginWrite()
		if !ok || len(jobs) != 2 {
			t.Fatalf("%d jobs, begun %t", len(jobs), ok)
		}
		cancel()
		synctest.Wait()
		if len(kept) != 0 || write.Err() == nil {
			t.Errorf("%d returned while a write was under way, whose context ended with %v", len(kept), write.Err())
		}
		if _, _, ok := jobs[1].BeginWrite(); ok {
			t.Error("a write began after the end of its term")
		}
		end()
		if err := <-kept; err != nil {
			t.Errorf("keep: %v", err)
		}
		for _, job := range jobs {
			finish(t, k, job, sessioncontroller.WriteResult{Lease: object("5", time.Now())})
		}
		if jobs := start(t, k); jobs != nil {
			t.Errorf("jobs of a shard that is lost: %+v", jobs)
		}
	})
}

func TestKeep_WaitsForTheReleaseUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		defer run(t, k)()
		ctx, cancel := context.WithCancel(t.Context())
		kept := make(chan error, 1)
		go func() { kept <- k.RunShard(heldshards.New(ctx, 1, 9)) }()
		synctest.Wait()
		introduceIn(t, k, 1, node("b", "1"))
		held, err := k.BeginRelease(t.Context(), node("b", "1"), 1)
		if err != nil {
			t.Fatal(err)
		}
		_, end, ok := held.BeginWrite()
		waiting := make(chan error, 1)
		go func() {
			_, err := k.BeginRelease(t.Context(), node("b", "1"), 1)
			waiting <- err
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		if !ok || len(kept) != 0 {
			t.Errorf("begun %t, and %d returned before its end", ok, len(kept))
		}
		if err := <-waiting; !errors.Is(err, sessioncontroller.NotHeldError{Shard: 1}) {
			t.Errorf("a release that waited for it ended with %v", err)
		}
		end()
		k.CompleteRelease(held)
		if err := <-kept; err != nil {
			t.Errorf("keep: %v", err)
		}
	})
}

func TestKeep_ReturnsWithTheKeeperAndItsWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		ctx, stop := context.WithCancel(t.Context())
		go func() { _ = k.Run(ctx) }()
		kept := make(chan error, 1)
		go func() { kept <- k.RunShard(heldshards.New(t.Context(), 1, 9)) }()
		synctest.Wait()
		introduceIn(t, k, 1, node("b", "1"))
		_, end, _ := start(t, k)[0].BeginWrite()
		stop()
		synctest.Wait()
		if len(kept) != 0 {
			t.Error("returned while a write was under way")
		}
		end()
		if err := <-kept; !errors.Is(err, sessioncontroller.ErrStopped) {
			t.Errorf("error %v, want ErrEnded", err)
		}
	})
}

func TestServing_LastsFromTheFirstShardToTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		ctx, stop := context.WithCancel(t.Context())
		defer func() { <-k.Done() }()
		defer stop()
		go func() { _ = k.Run(ctx) }()
		if _, some := k.Leadership(); some || k.Epoch() != 0 {
			t.Errorf("serving %t at epoch %d without a shard", some, k.Epoch())
		}
		loseTwo, loseThree := keep(t, k, 2, 5), keep(t, k, 3, 4)
		over, some := k.Leadership()
		if !some || k.Epoch() != 5 {
			t.Errorf("serving %t at epoch %d, want 5", some, k.Epoch())
		}
		ended := func() bool {
			select {
			case <-over:
				return true
			default:
				return false
			}
		}
		loseTwo()
		if ended() || k.Epoch() != 4 {
			t.Errorf("ended %t at epoch %d with one shard left, want 4", ended(), k.Epoch())
		}
		loseThree()
		if _, some := k.Leadership(); some || !ended() || k.Epoch() != 0 {
			t.Errorf("serving %t, ended %t, epoch %d after the last", some, ended(), k.Epoch())
		}
	})
}

// Shards come and go at random while holders beat and objects are written. Whatever happens, what is kept is what a naive
// model says, and every write is made under the term of its holder's shard.
func TestKeeper_ShardsComeAndGoAtRandom(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			w := &world{t: t, r: r, k: newKeeper(), lose: map[int]func(){}, alive: map[string]int{}}
			ctx, stop := context.WithCancel(t.Context())
			go func() { _ = w.k.Run(ctx) }()
			for range rapid.IntRange(1, 30).Draw(r, "steps") {
				w.step()
				w.check()
			}
			for _, lose := range w.lose {
				lose()
			}
			stop()
			<-w.k.Done()
		})
	})
}

type world struct {
	t     *testing.T
	r     *rapid.T
	k     *sessioncontroller.Controller
	epoch int64
	lose  map[int]func()
	alive map[string]int // shard by holder
}

func (w *world) step() {
	shard := rapid.IntRange(0, 3).Draw(w.r, "shard")
	switch rapid.SampledFrom([]string{"turn", "beat", "beat", "write"}).Draw(w.r, "what") {
	case "turn":
		w.turn(shard)
	case "beat":
		h := node(fmt.Sprintf("s%d-%d", shard, rapid.IntRange(0, 2).Draw(w.r, "holder")), "1")
		met := introduceIn(w.t, w.k, shard, h)
		if _, kept := w.lose[shard]; met.NotHeld == kept {
			w.t.Errorf("shard %d kept %t, met %+v", shard, kept, met)
		}
		if !met.NotHeld {
			w.alive[h.Key.Name] = shard
		}
	case "write":
		for _, job := range start(w.t, w.k) {
			_, end, ok := job.BeginWrite()
			if _, known := w.alive[job.Name]; !ok || !known {
				w.t.Errorf("write of %s begun %t, known %t", job.Name, ok, known)
				continue
			}
			end()
			finish(w.t, w.k, job, sessioncontroller.WriteResult{Lease: object("5", time.Now())})
		}
		time.Sleep(time.Second)
	}
}

func (w *world) turn(shard int) {
	if lose, kept := w.lose[shard]; kept {
		lose()
		delete(w.lose, shard)
		for name, of := range w.alive {
			if of == shard {
				delete(w.alive, name)
			}
		}
		return
	}
	w.epoch++
	w.lose[shard] = keep(w.t, w.k, shard, w.epoch)
}

func (w *world) check() {
	page, more, err := w.k.List(w.t.Context(), sessioncontroller.ListOptions{Limit: 100})
	if err != nil || more {
		w.t.Fatalf("page: more %t, error %v", more, err)
	}
	got := map[string]int{}
	for _, lease := range page {
		got[lease.Holder.Key.Name] = w.alive[lease.Holder.Key.Name]
		if lease.Write.State != writeback.Pending && lease.Write.ResourceVersion != "5" {
			w.t.Errorf("write %+v", lease.Write)
		}
	}
	if diff := cmp.Diff(w.alive, got); diff != "" {
		w.t.Errorf("kept (-want +got):\n%s", diff)
	}
}

// One operation is the loss of one shard of 64, of a replica that keeps 130,000 holders: beats wait for it.
func BenchmarkKeep_LoseAShardOf130kHolders(b *testing.B) {
	const shards, holders = 64, 130_000
	k := sessioncontroller.New(sessioncontroller.Config{Classes: classes, Shards: shards, Limit: holders, Logger: slog.New(slog.DiscardHandler)})
	ctx, stop := context.WithCancel(b.Context())
	go func() { _ = k.Run(ctx) }()
	lose := make([]func(), shards)
	for shard := range shards {
		lose[shard] = keep(b, k, shard, 1)
	}
	fill := func(shard int) {
		x := sessioncontroller.NewBatch()
		for i := shard; i < holders; i += shards {
			x.Registrations = append(x.Registrations, sessioncontroller.Registration{Holder: node(fmt.Sprint("node-", i), "1"), Shard: shard, Sequence: 1})
		}
		if err := k.Process(b.Context(), x); err != nil {
			b.Fatal(err)
		}
	}
	for shard := range shards {
		fill(shard)
	}
	for i := 0; b.Loop(); i++ {
		shard := i % shards
		lose[shard]()
		b.StopTimer()
		lose[shard] = keep(b, k, shard, 1)
		fill(shard)
		b.StartTimer()
	}
	for _, lose := range lose {
		lose()
	}
	stop()
	<-k.Done()
}
