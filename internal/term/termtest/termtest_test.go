package termtest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNewTerm_IsARealTermUntilItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held, ctx, end := termtest.NewTerm(3, 42)
		if carried, ok := term.FromContext(ctx); !ok || carried != held {
			t.Errorf("the context carries %v, %t", carried, ok)
		}
		if err := held.Check(); err != nil || held.Shard() != 3 || held.Epoch() != 42 || held.Remaining() <= 0 {
			t.Errorf("shard %d, epoch %d, remaining %v, Check %v", held.Shard(), held.Epoch(), held.Remaining(), err)
		}
		end()
		end()
		if err := held.Check(); !errors.Is(err, term.ErrEnded) || !errors.Is(err, termtest.ErrEnded) || ctx.Err() == nil {
			t.Errorf("Check after the end = %v, context %v", err, ctx.Err())
		}
	})
}

func TestCandidate_HoldsEveryShardUntilItLosesThemAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, ended := make(chan int64, 8), make(chan int64, 8)
		c := termtest.NewCandidate(term.Member{ID: "me", GRPCAddress: "me:1"}, 2)
		if err := c.Check(); err == nil {
			t.Error("Check succeeds before Run")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- c.Run(ctx, func(ctx context.Context, held *term.Term) error {
				began <- held.Epoch()
				<-ctx.Done()
				time.Sleep(time.Second) // a body takes its time to return
				ended <- held.Epoch()
				return nil
			})
		}()
		want := func(what string, c <-chan int64, epochs ...int64) {
			t.Helper()
			synctest.Wait()
			var got []int64
			for len(c) > 0 {
				got = append(got, <-c)
			}
			if diff := cmp.Diff(epochs, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		want("begun at first", began, 1, 1)
		wantStatus(t, c, true)
		c.Lose()
		c.Lose()
		synctest.Wait()
		wantStatus(t, c, false)
		c.Regain()
		want("begun before the old bodies returned", began)
		time.Sleep(time.Second)
		want("ended by the loss", ended, 1, 1)
		want("begun after the return", began, 2, 2)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		want("ended by the stop", ended, 2, 2)
		wantStatus(t, c, false)
	})
}

func wantStatus(t *testing.T, c *termtest.Candidate, alive bool) {
	t.Helper()
	status := c.Status()
	_, session, ok := c.Session()
	if status.Session.Alive != alive || (c.Check() == nil) != alive || len(status.Shards) != 2 {
		t.Errorf("status = %+v, Check = %v; want alive = %t", status, c.Check(), alive)
	}
	if ok != alive || alive && session.Err() != nil {
		t.Errorf("Session = %v, %t; want alive = %t", session, ok, alive)
	}
	for shard, h := range status.Shards {
		want := term.ShardStatus{Shard: shard}
		if alive {
			want = term.ShardStatus{
				Shard: shard, ReplicaID: "me", Epoch: h.Epoch, AcquireTime: h.AcquireTime, Here: true,
				Remaining: status.Session.Remaining, GRPCAddress: "me:1",
			}
		}
		if diff := cmp.Diff(want, h); diff != "" || alive != (h.Epoch > 0) {
			t.Errorf("shard %d (-want +got):\n%s", shard, diff)
		}
	}
}

func TestCandidate_LostBeforeRunWaitsForRegain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := termtest.NewCandidate(term.Member{ID: "me"}, 1)
		c.Lose()
		ctx, cancel := context.WithCancel(t.Context())
		began := make(chan struct{}, 1)
		done := make(chan error, 1)
		go func() {
			done <- c.Run(ctx, func(ctx context.Context, _ *term.Term) error {
				began <- struct{}{}
				<-ctx.Done()
				return nil
			})
		}()
		synctest.Wait()
		if len(began) != 0 || !errors.Is(c.Check(), termtest.ErrLost) {
			t.Errorf("%d bodies began; Check = %v", len(began), c.Check())
		}
		c.Regain()
		<-began
		cancel()
		<-done
	})
}

func TestCandidate_RunTwiceIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := termtest.NewCandidate(term.Member{ID: "me"}, 0)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx, nil) }()
		synctest.Wait()
		if err := c.Run(ctx, nil); err == nil {
			t.Error("a second Run at the same time began")
		}
		cancel()
		<-done
	})
}
