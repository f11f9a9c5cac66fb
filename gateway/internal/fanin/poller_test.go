package fanin_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
)

// question is answered with its number, after a time.
type question struct {
	asked atomic.Int64
	takes time.Duration
}

func (q *question) ask(ctx context.Context) int64 {
	n := q.asked.Add(1)
	select {
	case <-time.After(q.takes):
	case <-ctx.Done():
	}
	return n
}

// poll runs a Poller in a bubble until the test ends or stop is called.
func poll(t *testing.T, q *question) (poller *fanin.Poller[int64], stop context.CancelFunc) {
	t.Helper()
	poller = fanin.NewPoller(q.ask)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- poller.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	return poller, cancel
}

// arrivals returns when answers come, measured from a start, until a time.
func arrivals(t *testing.T, reader *fanin.PollReader[int64], start time.Time, until time.Duration) []time.Duration {
	t.Helper()
	ctx, cancel := context.WithDeadline(t.Context(), start.Add(until))
	defer cancel()
	var at []time.Duration
	for {
		if _, err := reader.Next(ctx); err != nil {
			return at
		}
		at = append(at, time.Since(start))
	}
}

func TestPoller_AnswersAtOnceAndThenInEachInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		poller, _ := poll(t, &question{takes: 10 * time.Millisecond})
		reader := poller.Join(time.Second)
		defer reader.Close()
		want := []time.Duration{10 * time.Millisecond, 1010 * time.Millisecond, 2010 * time.Millisecond, 3010 * time.Millisecond}
		if diff := cmp.Diff(want, arrivals(t, reader, start, 3500*time.Millisecond)); diff != "" {
			t.Errorf("arrivals (-want +got):\n%s", diff)
		}
	})
}

func TestPoller_AsksOnlyWhileThereAreReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &question{}
		poller, _ := poll(t, q)
		time.Sleep(10 * time.Second)
		if asked := q.asked.Load(); asked != 0 {
			t.Fatalf("asked %d times before the first reader", asked)
		}
		reader := poller.Join(time.Second)
		time.Sleep(2500 * time.Millisecond)
		reader.Close()
		synctest.Wait()
		before := q.asked.Load()
		time.Sleep(10 * time.Second)
		if before != 3 {
			t.Errorf("asked %d times in 2.5 s, want 3", before)
		}
		if after := q.asked.Load(); after != before {
			t.Errorf("asked %d more times after the last reader left", after-before)
		}
	})
}

func TestPoller_ReadersShareEachQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &question{takes: 5 * time.Millisecond}
		poller, _ := poll(t, q)
		for range 100 { // joins at all phases of a second
			defer poller.Join(time.Second).Close()
			time.Sleep(17 * time.Millisecond)
		}
		before := q.asked.Load()
		time.Sleep(10 * time.Second)
		if asked := q.asked.Load() - before; asked != 10 {
			t.Errorf("%d questions for 100 readers in 10 s, want 10", asked)
		}
	})
}

func TestPoller_IntervalsAreMultiplesFromOneOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &question{}
		start := time.Now()
		poller, _ := poll(t, q)
		fast, slow := poller.Join(500*time.Millisecond), poller.Join(2*time.Second)
		defer fast.Close()
		defer slow.Close()
		want := []time.Duration{0, 2 * time.Second, 4 * time.Second, 6 * time.Second}
		if diff := cmp.Diff(want, arrivals(t, slow, start, 6900*time.Millisecond)); diff != "" {
			t.Errorf("arrivals at the slow reader (-want +got):\n%s", diff)
		}
		if asked := q.asked.Load(); asked != 14 {
			t.Errorf("asked %d times in 6.9 s, want 14: the questions of the fast reader serve both", asked)
		}
	})
}

func TestPoller_QuestionsAreMinIntervalApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &question{}
		poller, _ := poll(t, q)
		for _, interval := range []time.Duration{1, 251 * time.Millisecond, 333 * time.Millisecond, 777 * time.Millisecond} {
			defer poller.Join(interval).Close()
		}
		before := q.asked.Load()
		time.Sleep(10 * time.Second)
		if asked := q.asked.Load() - before; asked > 41 {
			t.Errorf("asked %d times in 10 s, want at most one question per %s", asked, fanin.MinInterval)
		}
	})
}

func TestPoller_SlowReaderGetsTheNewestAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &question{}
		poller, _ := poll(t, q)
		slow, fast := poller.Join(time.Second), poller.Join(time.Second)
		defer slow.Close()
		defer fast.Close()
		if received := len(arrivals(t, fast, time.Now(), 5500*time.Millisecond)); received != 6 {
			t.Errorf("the fast reader got %d answers, want 6", received)
		}
		if newest, err := slow.Next(t.Context()); err != nil || newest != q.asked.Load() {
			t.Errorf("Next() = %d, %v; want the newest answer, %d", newest, err, q.asked.Load())
		}
	})
}

func TestPoller_LateReaderGetsTheLastAnswerAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &question{takes: 100 * time.Millisecond}
		poller, _ := poll(t, q)
		first := poller.Join(time.Second)
		defer first.Close()
		time.Sleep(600 * time.Millisecond)

		late := poller.Join(time.Second)
		defer late.Close()
		joined := time.Now()
		if _, err := late.Next(t.Context()); err != nil || time.Since(joined) != 0 {
			t.Errorf("Next() = %v after %s, want the answer of half a second ago at once", err, time.Since(joined))
		}
		if asked := q.asked.Load(); asked != 1 {
			t.Errorf("asked %d times, want 1", asked)
		}
	})
}

func TestPoller_SlowQuestionBlocksNoReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		poller, _ := poll(t, &question{takes: time.Minute})
		first := poller.Join(time.Second)
		synctest.Wait() // the question is asked
		start := time.Now()
		poller.Join(time.Second).Close()
		first.Close()
		if waited := time.Since(start); waited != 0 {
			t.Errorf("Join and Close took %s during a question", waited)
		}
	})
}

func TestPoller_StopEndsReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		poller, stop := poll(t, &question{takes: time.Minute})
		reader := poller.Join(time.Second)
		defer reader.Close()
		stop()
		if _, err := reader.Next(t.Context()); !errors.Is(err, fanin.ErrStopped) {
			t.Errorf("Next() = %v, want %v", err, fanin.ErrStopped)
		}
		late := poller.Join(time.Second)
		defer late.Close()
		if _, err := late.Next(t.Context()); !errors.Is(err, fanin.ErrStopped) {
			t.Errorf("Next() of a reader that joins later = %v, want %v", err, fanin.ErrStopped)
		}
	})
}

func TestPoller_NextEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := fanin.NewPoller((&question{}).ask).Join(time.Second) // without Run
		defer reader.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := reader.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Next() = %v, want %v", err, context.DeadlineExceeded)
		}
	})
}
