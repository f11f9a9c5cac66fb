package sessioncontroller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

func TestProcess_HolderOfAShardThatIsNotHeldIsNotHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		notHeld := sessioncontroller.RegisterResult{NotHeld: true}
		if got := registerIn(t, ctl, 1, node("b", "1")); got != notHeld {
			t.Errorf("before the term: %+v", got)
		}
		endTerm := holdShard(t, ctl, 1, 9)
		result := registerIn(t, ctl, 1, node("b", "1"))
		if result.Outcome != session.Opened || result.Grant.Epoch != 9 {
			t.Errorf("during the term: %+v, want opened at epoch 9", result)
		}
		kept := registerIn(t, ctl, 0, node("a", "1"))
		if got := beat(t, ctl, kept.Ref, result.Ref).Grant.Epoch; got != 9 {
			t.Errorf("beats of both shards got epoch %d, want the newer, 9", got)
		}
		endTerm()
		batch := beat(t, ctl, kept.Ref, result.Ref)
		want := []sessioncontroller.RejectedBeat{{Index: 1, Outcome: session.Unknown}}
		if diff := cmp.Diff(want, batch.Rejected); diff != "" || batch.Renewed != 1 || batch.Grant.Epoch != 7 {
			t.Errorf("after the term: %d renewed at epoch %d, rejected (-want +got):\n%s", batch.Renewed, batch.Grant.Epoch, diff)
		}
		if got := registerIn(t, ctl, 1, node("b", "1")); got != notHeld {
			t.Errorf("after the term: %+v", got)
		}
		_, _, err := ctl.Get(t.Context(), node("b", "1").Key, 1)
		_, releaseErr := ctl.BeginRelease(t.Context(), node("b", "1"), 1, "")
		for what, err := range map[string]error{"get": err, "begin release": releaseErr} {
			if want := (sessioncontroller.NotHeldError{Shard: 1}); !errors.Is(err, want) {
				t.Errorf("%s: error %v, want %v", what, err, want)
			}
		}
	})
}

func TestRunShard_DropsTheSessionsOfItsShardOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		endTerm := holdShard(t, ctl, 1, 9)
		for i := range 10 {
			registerIn(t, ctl, i%2, node(fmt.Sprint("n", i), "1"))
		}
		registerIn(t, ctl, 1, agent("x"))
		sub := watch(t, ctl, nil)
		endTerm()
		var deleted []string
		for _, c := range drain(t, sub) {
			if c.Type == sessioncontroller.Bookmark && c.Shards == "[0]" {
				continue
			}
			if c.Type != sessioncontroller.Deleted || !c.ShardLost || c.State != session.Gone {
				t.Errorf("%+v, want it deleted with its shard", c)
			}
			deleted = append(deleted, c.Name)
		}
		slices.Sort(deleted)
		if diff := cmp.Diff([]string{"n1", "n3", "n5", "n7", "n9", "x"}, deleted); diff != "" {
			t.Errorf("deleted (-want +got):\n%s", diff)
		}
		if got, want := ctl.Counts(), (session.Counts{Alive: 5}); got != want {
			t.Errorf("counts %+v, want %+v", got, want)
		}
		defer holdShard(t, ctl, 1, 11)()
		if _, found, err := ctl.Get(t.Context(), node("n1", "1").Key, 1); found || err != nil {
			t.Errorf("the next term has a session of the previous term: error %v", err)
		}
		if got := registerIn(t, ctl, 1, node("n1", "1")).Outcome; got != session.Opened {
			t.Errorf("outcome %v in the next term, want opened", got)
		}
	})
}

func TestRunShard_WaitsForWritesAndPreventsNewOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- ctl.RunShard(sessioncontroller.NewHeldShard(ctx, 1, 9)) }()
		synctest.Wait()
		registerIn(t, ctl, 1, node("b", "1"))
		registerIn(t, ctl, 1, node("c", "1"))
		jobs := startWrites(t, ctl)
		write, end, ok := jobs[0].Shard.BeginWrite()
		if !ok || len(jobs) != 2 {
			t.Fatalf("%d jobs, begun %t", len(jobs), ok)
		}
		cancel()
		synctest.Wait()
		if len(done) != 0 || write.Err() == nil {
			t.Errorf("%d returned while a write was in flight, whose context ended with %v", len(done), write.Err())
		}
		if _, _, ok := jobs[1].Shard.BeginWrite(); ok {
			t.Error("a write began after the end of its term")
		}
		end()
		if err := <-done; err != nil {
			t.Errorf("run shard: %v", err)
		}
		for _, job := range jobs {
			finishWrite(t, ctl, job, sessioncontroller.WriteResult{Lease: leaseRecord("5", time.Now())})
		}
		if jobs := startWrites(t, ctl); jobs != nil {
			t.Errorf("jobs of a lost shard: %+v", jobs)
		}
	})
}

func TestRunShard_WaitsForAReleaseInProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- ctl.RunShard(sessioncontroller.NewHeldShard(ctx, 1, 9)) }()
		synctest.Wait()
		registerIn(t, ctl, 1, node("b", "1"))
		held, err := ctl.BeginRelease(t.Context(), node("b", "1"), 1, "")
		if err != nil {
			t.Fatal(err)
		}
		_, end, ok := held.Shard.BeginWrite()
		waiting := make(chan error, 1)
		go func() {
			_, err := ctl.BeginRelease(t.Context(), node("b", "1"), 1, "")
			waiting <- err
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		if !ok || len(done) != 0 {
			t.Errorf("begun %t, and %d returned before its end", ok, len(done))
		}
		if err := <-waiting; !errors.Is(err, sessioncontroller.NotHeldError{Shard: 1}) {
			t.Errorf("a waiting release ended with %v", err)
		}
		end()
		ctl.CompleteRelease(held)
		if err := <-done; err != nil {
			t.Errorf("run shard: %v", err)
		}
	})
}

func TestRunShard_ReturnsWithTheControllerAfterItsWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		ctx, stop := context.WithCancel(t.Context())
		go func() { _ = ctl.Run(ctx) }()
		done := make(chan error, 1)
		go func() { done <- ctl.RunShard(sessioncontroller.NewHeldShard(t.Context(), 1, 9)) }()
		synctest.Wait()
		registerIn(t, ctl, 1, node("b", "1"))
		_, end, _ := startWrites(t, ctl)[0].Shard.BeginWrite()
		stop()
		synctest.Wait()
		if len(done) != 0 {
			t.Error("returned while a write was in flight")
		}
		end()
		if err := <-done; !errors.Is(err, sessioncontroller.ErrStopped) {
			t.Errorf("error %v, want ErrStopped", err)
		}
	})
}

func TestLeadership_LastsFromTheFirstShardToTheLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		ctx, stop := context.WithCancel(t.Context())
		defer func() { <-ctl.Done() }()
		defer stop()
		go func() { _ = ctl.Run(ctx) }()
		if _, some := ctl.Leadership(); some || ctl.Epoch() != 0 {
			t.Errorf("leadership %t at epoch %d without a shard", some, ctl.Epoch())
		}
		endTwo, endThree := holdShard(t, ctl, 2, 5), holdShard(t, ctl, 3, 4)
		over, some := ctl.Leadership()
		if !some || ctl.Epoch() != 5 {
			t.Errorf("leadership %t at epoch %d, want 5", some, ctl.Epoch())
		}
		ended := func() bool {
			select {
			case <-over:
				return true
			default:
				return false
			}
		}
		endTwo()
		if ended() || ctl.Epoch() != 4 {
			t.Errorf("ended %t at epoch %d with one shard left, want 4", ended(), ctl.Epoch())
		}
		endThree()
		if _, some := ctl.Leadership(); some || !ended() || ctl.Epoch() != 0 {
			t.Errorf("leadership %t, ended %t, epoch %d after the last shard", some, ended(), ctl.Epoch())
		}
	})
}

// Shards are acquired and lost at random while holders beat and Leases are written. The sessions
// agree with a model, and each write is made under the term of its holder's shard.
func TestController_AgreesWithModelWhenShardsMove(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			sim := &simulation{t: t, r: r, ctl: newController(), endTerm: map[int]func(){}, alive: map[string]int{}}
			ctx, stop := context.WithCancel(t.Context())
			go func() { _ = sim.ctl.Run(ctx) }()
			for range rapid.IntRange(1, 30).Draw(r, "steps") {
				sim.step()
				sim.check()
			}
			for _, endTerm := range sim.endTerm {
				endTerm()
			}
			stop()
			<-sim.ctl.Done()
		})
	})
}

type simulation struct {
	t       *testing.T
	r       *rapid.T
	ctl     *sessioncontroller.Controller
	epoch   int64
	endTerm map[int]func()
	alive   map[string]int // shard by holder
}

func (sim *simulation) step() {
	shard := rapid.IntRange(0, 3).Draw(sim.r, "shard")
	switch rapid.SampledFrom([]string{"toggle", "beat", "beat", "write"}).Draw(sim.r, "what") {
	case "toggle":
		sim.toggleShard(shard)
	case "beat":
		h := node(fmt.Sprintf("s%d-%d", shard, rapid.IntRange(0, 2).Draw(sim.r, "holder")), "1")
		result := registerIn(sim.t, sim.ctl, shard, h)
		if _, kept := sim.endTerm[shard]; result.NotHeld == kept {
			sim.t.Errorf("shard %d held %t, result %+v", shard, kept, result)
		}
		if !result.NotHeld {
			sim.alive[h.Key.Name] = shard
		}
	case "write":
		for _, job := range startWrites(sim.t, sim.ctl) {
			_, end, ok := job.Shard.BeginWrite()
			if _, known := sim.alive[job.Name]; !ok || !known {
				sim.t.Errorf("write of %s: begun %t, known %t", job.Name, ok, known)
				continue
			}
			end()
			finishWrite(sim.t, sim.ctl, job, sessioncontroller.WriteResult{Lease: leaseRecord("5", time.Now())})
		}
		time.Sleep(time.Second)
	}
}

func (sim *simulation) toggleShard(shard int) {
	if endTerm, kept := sim.endTerm[shard]; kept {
		endTerm()
		delete(sim.endTerm, shard)
		for name, of := range sim.alive {
			if of == shard {
				delete(sim.alive, name)
			}
		}
		return
	}
	sim.epoch++
	sim.endTerm[shard] = holdShard(sim.t, sim.ctl, shard, sim.epoch)
}

func (sim *simulation) check() {
	page, err := sim.ctl.List(sim.t.Context(), sessioncontroller.ListOptions{Limit: 100})
	if err != nil || page.More {
		sim.t.Fatalf("page: more %t, error %v", page.More, err)
	}
	got := map[string]int{}
	for _, lease := range page.Leases {
		got[lease.Holder.Key.Name] = sim.alive[lease.Holder.Key.Name]
		if lease.Write.State != writeback.Pending && lease.Write.ResourceVersion != "5" {
			sim.t.Errorf("write %+v", lease.Write)
		}
	}
	if diff := cmp.Diff(sim.alive, got); diff != "" {
		sim.t.Errorf("sessions (-want +got):\n%s", diff)
	}
}

// One operation is the loss of one of 64 shards by a replica with 130,000 holders. Batches wait
// meanwhile.
func BenchmarkRunShard_LoseAShardOf130kHolders(b *testing.B) {
	const shards, holders = 64, 130_000
	ctl := sessioncontroller.New(sessioncontroller.Config{Classes: classes, Shards: shards, Limit: holders, Logger: slog.New(slog.DiscardHandler)})
	ctx, stop := context.WithCancel(b.Context())
	go func() { _ = ctl.Run(ctx) }()
	endTerm := make([]func(), shards)
	for shard := range shards {
		endTerm[shard] = holdShard(b, ctl, shard, 1)
	}
	fill := func(shard int) {
		batch := sessioncontroller.NewBatch()
		for i := shard; i < holders; i += shards {
			batch.Registrations = append(batch.Registrations, sessioncontroller.Registration{Holder: node(fmt.Sprint("node-", i), "1"), Shard: shard, Sequence: 1})
		}
		if err := ctl.Process(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	for shard := range shards {
		fill(shard)
	}
	for i := 0; b.Loop(); i++ {
		shard := i % shards
		endTerm[shard]()
		b.StopTimer()
		endTerm[shard] = holdShard(b, ctl, shard, 1)
		fill(shard)
		b.StartTimer()
	}
	for _, endTerm := range endTerm {
		endTerm()
	}
	stop()
	<-ctl.Done()
}

// A process that did not run for a while has its shards when it wakes, and another replica may lead
// them. A beat that it takes then must not count as recorded.
func TestCheckTerms_NoBeatIsAcceptedOnceTheLeaseHasLapsed(t *testing.T) {
	ctl := newController()
	stop := sync.OnceFunc(run(t, ctl))
	defer stop()
	_, ctx, lapse := termtest.NewTerm(1, 8)
	ended := make(chan error, 1)
	// Its end is not seen, as in a process that wakes.
	go func() { ended <- ctl.RunShard(sessioncontroller.NewHeldShard(context.WithoutCancel(ctx), 1, 8)) }()
	for !isHeld(t, ctl, 1) {
		runtime.Gosched()
	}
	registered := registerIn(t, ctl, 1, node("a", "1"))
	lapse()
	if err := ctl.CheckTerms(); !errors.Is(err, sessioncontroller.ErrStopped) {
		t.Errorf("after the lease has lapsed: %v", err)
	}
	batch := sessioncontroller.NewBatch()
	batch.Refs, batch.Sequence = []session.Ref{registered.Ref}, 2
	if err := ctl.Process(t.Context(), batch); !errors.Is(err, sessioncontroller.ErrStopped) {
		t.Errorf("a beat after the lease has lapsed: %v", err)
	}
	stop()
	if err := <-ended; !errors.Is(err, sessioncontroller.ErrStopped) {
		t.Error(err)
	}
}
