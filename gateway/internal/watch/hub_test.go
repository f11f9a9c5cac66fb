package watch_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/gateway/internal/watch"
)

// question answers with its own number, taking the given time, and counts how often it was asked.
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

// running starts a hub within a bubble and ends it with the test.
func running(t *testing.T, q *question) *watch.Hub[int64] {
	t.Helper()
	hub := watch.New(q.ask)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- hub.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	return hub
}

func subscribe(t *testing.T, hub *watch.Hub[int64], interval time.Duration) *watch.Subscription[int64] {
	t.Helper()
	subscription, err := hub.Subscribe(t.Context(), interval)
	if err != nil {
		t.Fatalf("Subscribe() = %v", err)
	}
	return subscription
}

// arrivals reads answers for a while and returns when each came, counted from the start.
func arrivals(subscription *watch.Subscription[int64], from time.Time, until time.Duration) []time.Duration {
	var at []time.Duration
	end := time.After(time.Until(from.Add(until)))
	for {
		select {
		case <-subscription.Newest():
			at = append(at, time.Since(from))
		case <-end:
			return at
		}
	}
}

func TestHub_AnswersAtOnceAndThenPerInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		hub := running(t, &question{takes: 10 * time.Millisecond})
		subscription := subscribe(t, hub, time.Second)
		defer subscription.Close()

		got := arrivals(subscription, start, 3500*time.Millisecond)

		want := []time.Duration{10 * time.Millisecond, 1010 * time.Millisecond, 2010 * time.Millisecond, 3010 * time.Millisecond}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("arrivals (-want +got):\n%s", diff)
		}
	})
}

func TestHub_AsksOnlyWhileSomebodyWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &question{}
		hub := running(t, q)
		time.Sleep(10 * time.Second)
		if asked := q.asked.Load(); asked != 0 {
			t.Fatalf("asked %d times before anybody watched", asked)
		}

		subscription := subscribe(t, hub, time.Second)
		time.Sleep(2500 * time.Millisecond)
		subscription.Close()
		synctest.Wait()
		before := q.asked.Load()
		time.Sleep(10 * time.Second)

		if before != 3 {
			t.Errorf("asked %d times within 2.5 s, want 3", before)
		}
		if after := q.asked.Load(); after != before {
			t.Errorf("asked %d more times after the last reader left", after-before)
		}
	})
}

func TestHub_ManyReadersShareEveryQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &question{takes: 5 * time.Millisecond}
		hub := running(t, q)
		for range 100 { // joining at all phases of a second
			subscription := subscribe(t, hub, time.Second)
			defer subscription.Close()
			time.Sleep(17 * time.Millisecond)
		}
		before := q.asked.Load()
		time.Sleep(10 * time.Second)

		if asked := q.asked.Load() - before; asked != 10 {
			t.Errorf("100 readers had %d questions asked within 10 s, want 10", asked)
		}
	})
}

func TestHub_IntervalsShareTheGrid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &question{}
		start := time.Now()
		hub := running(t, q)
		quick, calm := subscribe(t, hub, 500*time.Millisecond), subscribe(t, hub, 2*time.Second)
		defer quick.Close()
		defer calm.Close()

		got := arrivals(calm, start, 6900*time.Millisecond)

		want := []time.Duration{0, 2 * time.Second, 4 * time.Second, 6 * time.Second}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("arrivals at the calm reader (-want +got):\n%s", diff)
		}
		if asked := q.asked.Load(); asked != 14 {
			t.Errorf("asked %d times within 6.9 s, want 14: the quick reader's questions serve both", asked)
		}
	})
}

func TestHub_ImpatienceIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &question{}
		hub := running(t, q)
		for _, interval := range []time.Duration{1, 251 * time.Millisecond, 333 * time.Millisecond, 777 * time.Millisecond} {
			subscription := subscribe(t, hub, interval)
			defer subscription.Close()
		}
		before := q.asked.Load()
		time.Sleep(10 * time.Second)

		if asked := q.asked.Load() - before; asked > 41 {
			t.Errorf("asked %d times within 10 s, want at most one question per %s", asked, watch.MinInterval)
		}
	})
}

func TestHub_SlowReaderFindsTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &question{}
		hub := running(t, q)
		slow, quick := subscribe(t, hub, time.Second), subscribe(t, hub, time.Second)
		defer slow.Close()
		defer quick.Close()

		received := len(arrivals(quick, time.Now(), 5500*time.Millisecond))

		if received != 6 {
			t.Errorf("the quick reader got %d answers beside a slow one, want 6", received)
		}
		if newest, want := <-slow.Newest(), q.asked.Load(); newest != want {
			t.Errorf("the slow reader got answer %d, want the newest, %d", newest, want)
		}
	})
}

func TestHub_LateReaderGetsTheLastAnswerAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &question{takes: 100 * time.Millisecond}
		hub := running(t, q)
		first := subscribe(t, hub, time.Second)
		defer first.Close()
		time.Sleep(600 * time.Millisecond)

		late := subscribe(t, hub, time.Second)
		defer late.Close()
		synctest.Wait()

		select {
		case <-late.Newest():
		default:
			t.Error("nothing there yet, although an answer half a second old is known")
		}
		if asked := q.asked.Load(); asked != 1 {
			t.Errorf("asked %d times, want 1", asked)
		}
	})
}

func TestHub_SlowQuestionHoldsUpNoReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := running(t, &question{takes: time.Minute})
		first := subscribe(t, hub, time.Second)
		start := time.Now()

		subscribe(t, hub, time.Second).Close()
		first.Close()

		if waited := time.Since(start); waited != 0 {
			t.Errorf("joining and leaving took %s while a question was under way, want nothing", waited)
		}
	})
}

func TestHub_StopEndsSubscriptionsAndRefusesNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := running(t, &question{takes: time.Minute})
		subscription := subscribe(t, hub, time.Second)

		hub.Stop()
		hub.Stop()

		if _, open := <-subscription.Newest(); open {
			t.Error("the subscription outlives the hub")
		}
		subscription.Close()
		if _, err := hub.Subscribe(t.Context(), time.Second); !errors.Is(err, watch.ErrStopped) {
			t.Errorf("Subscribe() after Stop = %v, want %v", err, watch.ErrStopped)
		}
	})
}

func TestHub_SubscribeGivesUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := watch.New((&question{}).ask) // nobody runs it
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		if _, err := hub.Subscribe(ctx, time.Second); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Subscribe() = %v, want %v", err, context.DeadlineExceeded)
		}
	})
}
