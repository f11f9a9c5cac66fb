package review_test

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/internal/review"
)

// server is a kube-apiserver that answers after delay with allowed, or fails.
type server struct {
	mu      sync.Mutex // guards the fields below
	allowed bool
	err     error
	delay   time.Duration

	asked atomic.Int64
}

func (s *server) set(allowed bool, err error, delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.allowed, s.err, s.delay = allowed, err, delay
}

func (s *server) ask(ctx context.Context, _ bool) (allowed, positive bool, err error) {
	s.asked.Add(1)
	s.mu.Lock()
	allowed, err = s.allowed, s.err
	delay := s.delay
	s.mu.Unlock()
	select {
	case <-time.After(delay):
		return allowed, allowed, err
	case <-ctx.Done():
		return false, false, ctx.Err()
	}
}

var errAway = errors.New("connection refused")

// in runs a test with a cache in a bubble.
func in(t *testing.T, test func(t *testing.T, cache *review.Cache[bool], kube *server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		metrics, err := review.NewMetrics(prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		cache := review.NewCache[bool](metrics, "access")
		defer cache.Close()
		test(t, cache, &server{allowed: true, delay: time.Millisecond})
	})
}

// result is what a call got.
type result struct {
	allowed, stale, failed bool
	took                   time.Duration
}

func get(cache *review.Cache[bool], kube *server, mayBeStale bool) result {
	begun := time.Now()
	answer, err := cache.Get(context.Background(), review.Key{1}, mayBeStale, kube.ask)
	return result{allowed: answer.Value, stale: answer.Stale, failed: err != nil, took: time.Since(begun)}
}

func TestGet_AnswersAreFreshForTenSeconds(t *testing.T) {
	for name, allowed := range map[string]bool{"allowed": true, "denied": false} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, cache *review.Cache[bool], kube *server) {
				kube.set(allowed, nil, 0)
				get(cache, kube, true)
				kube.set(!allowed, nil, 0)
				time.Sleep(6 * time.Second)
				if got := get(cache, kube, true); got.allowed != allowed || kube.asked.Load() != 1 {
					t.Errorf("after 6 s: %+v and %d reviews, want the first answer", got, kube.asked.Load())
				}
				time.Sleep(4 * time.Second)
				if got := get(cache, kube, true); got.allowed == allowed || got.stale {
					t.Errorf("after 10 s: %+v, want the new answer", got)
				}
			})
		})
	}
}

func TestGet_AnswerInUseIsRenewedBeforeItAges(t *testing.T) {
	in(t, func(t *testing.T, cache *review.Cache[bool], kube *server) {
		get(cache, kube, false)
		kube.set(true, nil, 2*time.Second) // slow, but in time
		for range 20 {
			time.Sleep(time.Second)
			if got := get(cache, kube, false); got.took > 0 || !got.allowed {
				t.Fatalf("a call waits for a slow kube-apiserver: %+v", got)
			}
		}
		if asked := kube.asked.Load(); asked < 3 || asked > 4 {
			t.Errorf("%d reviews in 20 s, want one each 7 to 9 s", asked)
		}
	})
}

func TestGet_WhileTheServerIsAway(t *testing.T) {
	for name, delay := range map[string]time.Duration{"refuses": 0, "hangs": time.Hour} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, cache *review.Cache[bool], kube *server) {
				get(cache, kube, true)
				kube.set(true, errAway, delay)
				time.Sleep(10 * time.Second)
				if got := get(cache, kube, false); !got.failed || got.took > 6*time.Second {
					t.Errorf("a mutation: %+v, want an error within 5 s", got)
				}
				waited := time.Duration(0)
				for range 200 {
					got := get(cache, kube, true)
					if !got.allowed || !got.stale {
						t.Fatalf("a read: %+v, want the stale answer", got)
					}
					waited += got.took
					time.Sleep(100 * time.Millisecond)
				}
				if waited > time.Second {
					t.Errorf("200 reads waited %v together, want less than a second", waited)
				}
				time.Sleep(review.Stale)
				if got := get(cache, kube, true); !got.failed {
					t.Errorf("a read after 5 minutes: %+v, want an error", got)
				}
			})
		})
	}
}

func TestGet_ErrorsAreNotKept(t *testing.T) {
	in(t, func(t *testing.T, cache *review.Cache[bool], kube *server) {
		kube.set(true, errAway, 0)
		if got := get(cache, kube, true); !got.failed {
			t.Fatalf("without any answer: %+v, want an error", got)
		}
		kube.set(true, nil, 0)
		if got := get(cache, kube, true); !got.allowed {
			t.Errorf("the next call: %+v, want the answer", got)
		}
	})
}

func TestGet_RefusalNeverBecomesPermission(t *testing.T) {
	in(t, func(t *testing.T, cache *review.Cache[bool], kube *server) {
		get(cache, kube, true)
		kube.set(false, nil, 0)
		time.Sleep(10 * time.Second)
		if got := get(cache, kube, true); got.allowed {
			t.Fatalf("after the right was taken away: %+v", got)
		}
		kube.set(true, errAway, 0)
		time.Sleep(10 * time.Second)
		if got := get(cache, kube, true); got.allowed || !got.failed {
			t.Errorf("denied once, then no kube-apiserver: %+v, want an error and no former permission", got)
		}
	})
}

func TestGet_SlowAnswerServesTheNextCall(t *testing.T) {
	in(t, func(t *testing.T, cache *review.Cache[bool], kube *server) {
		kube.set(true, nil, 20*time.Second)
		if got := get(cache, kube, false); !got.failed || got.took != 5*time.Second {
			t.Errorf("the first call: %+v, want an error after 5 s", got)
		}
		time.Sleep(16 * time.Second)
		if got := get(cache, kube, false); !got.allowed || got.took != 0 || kube.asked.Load() != 1 {
			t.Errorf("the next call: %+v after %d reviews, want the answer of the only one", got, kube.asked.Load())
		}
	})
}

func TestGet_ConcurrentCallsShareOneReview(t *testing.T) {
	in(t, func(t *testing.T, cache *review.Cache[bool], kube *server) {
		var calls sync.WaitGroup
		var allowed atomic.Int64
		for range 100 {
			calls.Go(func() {
				if get(cache, kube, false).allowed {
					allowed.Add(1)
				}
			})
		}
		calls.Wait()
		if allowed.Load() != 100 || kube.asked.Load() != 1 {
			t.Errorf("%d of 100 calls allowed by %d reviews, want all by one", allowed.Load(), kube.asked.Load())
		}
	})
}

func TestGet_CallerThatLeavesEndsNoReview(t *testing.T) {
	in(t, func(t *testing.T, cache *review.Cache[bool], kube *server) {
		kube.set(true, nil, time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := cache.Get(ctx, review.Key{1}, false, kube.ask); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Get() = %v, want the end of the context", err)
		}
		time.Sleep(time.Second)
		if got := get(cache, kube, false); got.took != 0 || kube.asked.Load() != 1 {
			t.Errorf("the next call: %+v after %d reviews, want the kept answer", got, kube.asked.Load())
		}
	})
}

func TestGet_ReviewsAreBounded(t *testing.T) {
	in(t, func(t *testing.T, cache *review.Cache[bool], _ *server) {
		var running, most atomic.Int64
		slow := func(ctx context.Context, _ bool) (bool, bool, error) {
			now := running.Add(1)
			defer running.Add(-1)
			for seen := most.Load(); seen < now && !most.CompareAndSwap(seen, now); seen = most.Load() {
				runtime.Gosched()
			}
			<-ctx.Done()
			return false, false, ctx.Err()
		}
		var calls sync.WaitGroup
		var failures sync.Map
		for i := range 5000 {
			calls.Go(func() {
				_, err := cache.Get(context.Background(), review.Key{byte(i), byte(i >> 8)}, false, slow)
				failures.Store(i, err)
			})
		}
		calls.Wait()
		busy := 0
		failures.Range(func(_, err any) bool {
			if failed, ok := err.(error); !ok {
				t.Error("a call got an answer that nothing gave")
			} else if strings.Contains(failed.Error(), "reviews wait already") {
				busy++
			}
			return true
		})
		if most.Load() > 64 || busy != 5000-4096 {
			t.Errorf("%d reviews at once and %d refused, want at most 64, and %d", most.Load(), busy, 5000-4096)
		}
	})
}

func TestGet_ManyRefusalsDisplaceNoPermission(t *testing.T) {
	in(t, func(t *testing.T, cache *review.Cache[bool], kube *server) {
		get(cache, kube, false)
		kube.set(false, nil, 0)
		for i := range 6000 {
			if _, err := cache.Get(t.Context(), review.Key{2, byte(i), byte(i >> 8)}, false, kube.ask); err != nil {
				t.Fatal(err)
			}
		}
		before := kube.asked.Load()
		if got := get(cache, kube, false); !got.allowed || kube.asked.Load() != before {
			t.Errorf("after 6,000 refusals: %+v, want the kept answer", got)
		}
	})
}

func TestRenew_TakesOnlyAnswersOfTheLastSeconds(t *testing.T) {
	in(t, func(t *testing.T, cache *review.Cache[bool], kube *server) {
		get(cache, kube, true)
		kube.set(false, nil, 0)
		if got, err := cache.Renew(t.Context(), review.Key{1}, kube.ask); err != nil || !got {
			t.Errorf("Renew() at once = %t, %v; want the first answer", got, err)
		}
		time.Sleep(2 * time.Second)
		if got, err := cache.Renew(t.Context(), review.Key{1}, kube.ask); err != nil || got {
			t.Errorf("Renew() after 2 s = %t, %v; want the new answer", got, err)
		}
		if get(cache, kube, true).allowed {
			t.Error("Get() gives the answer before the renewed one")
		}
		kube.set(true, errAway, 0)
		time.Sleep(2 * time.Second)
		if _, err := cache.Renew(t.Context(), review.Key{1}, kube.ask); !errors.Is(err, errAway) {
			t.Errorf("Renew() = %v, want the error of the review", err)
		}
	})
}

func TestClose_EndsReviews(t *testing.T) {
	in(t, func(t *testing.T, cache *review.Cache[bool], kube *server) {
		kube.set(true, nil, time.Hour)
		ended := make(chan result)
		go func() { ended <- get(cache, kube, false) }()
		synctest.Wait()
		cache.Close()
		if got := <-ended; !got.failed || got.took != 0 {
			t.Errorf("a call at Close(): %+v, want an error at once", got)
		}
		if got := get(cache, kube, false); !got.failed || kube.asked.Load() != 1 {
			t.Errorf("a call after Close(): %+v", got)
		}
	})
}

func BenchmarkGet_FreshAnswer(b *testing.B) {
	metrics, err := review.NewMetrics(nil)
	if err != nil {
		b.Fatal(err)
	}
	cache := review.NewCache[bool](metrics, "access")
	defer cache.Close()
	answer := func(context.Context, bool) (bool, bool, error) { return true, true, nil }
	b.ReportAllocs()
	for b.Loop() {
		if _, err := cache.Get(b.Context(), review.Key{1}, true, answer); err != nil {
			b.Fatal(err)
		}
	}
}

// One user asks about ever other names, and does not wait for the answers.
func TestGet_OneOwnerHoldsUpNoOther(t *testing.T) {
	in(t, func(t *testing.T, cache *review.Cache[bool], kube *server) {
		kube.set(true, nil, time.Second)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for i := range 10_000 {
			_, _ = cache.Get(gone, review.Key{0: 1, 8: byte(i), 9: byte(i >> 8)}, true, kube.ask)
		}
		begun := time.Now()
		answer, err := cache.Get(t.Context(), review.Key{2}, true, kube.ask)
		if err != nil || !answer.Value || time.Since(begun) > 2*time.Second {
			t.Errorf("another user: %+v, %v after %v; want an answer at once", answer, err, time.Since(begun))
		}
	})
}

// One user displaces its own answers only, so that others may read while the server is away.
func TestGet_OneOwnerDisplacesNoOther(t *testing.T) {
	in(t, func(t *testing.T, cache *review.Cache[bool], kube *server) {
		kube.set(true, nil, 0)
		get(cache, kube, true)
		for i := range 25_000 {
			if _, err := cache.Get(t.Context(), review.Key{0: 2, 8: byte(i), 9: byte(i >> 8)}, true, kube.ask); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(11 * time.Second)
		kube.set(false, errAway, 0)
		if got := get(cache, kube, true); !got.allowed || !got.stale {
			t.Errorf("another user: %+v, want the stale answer", got)
		}
	})
}

// Refusals are kept for a short time, which stands still here.
func TestMetrics_CountTheKeptAnswersWhichAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		metrics, err := review.NewMetrics(registry)
		if err != nil {
			t.Fatal(err)
		}
		cache := review.NewCache[bool](metrics, "access")
		defer cache.Close()
		for i := range review.MaxAnswers + 2*review.MaxRefusals {
			positive := i < review.MaxAnswers+100
			ask := func(context.Context, bool) (bool, bool, error) { return positive, positive, nil }
			owner := review.Key{byte(i), byte(i >> 8), byte(i >> 16)}
			if _, err := cache.Get(t.Context(), owner, false, ask); err != nil {
				t.Fatal(err)
			}
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		kept := map[string]float64{}
		for _, family := range families {
			if family.GetName() != "trivet_access_review_answers" {
				continue
			}
			for _, metric := range family.GetMetric() {
				kept[metric.GetLabel()[0].GetValue()+" "+metric.GetLabel()[1].GetValue()] = metric.GetGauge().GetValue()
			}
		}
		if want := map[string]float64{"access allowed": review.MaxAnswers, "access denied": review.MaxRefusals}; !maps.Equal(kept, want) {
			t.Errorf("kept answers: %v, want %v", kept, want)
		}
	})
}
