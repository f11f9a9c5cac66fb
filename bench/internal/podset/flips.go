package podset

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// Flips is a number of changes of readiness at a rate per second.
type Flips struct{ Count, Rate int }

// Latencies are the sorted latencies of flips, from the acknowledged status to the slice event on a
// watch.
type Latencies []time.Duration

// At returns the smallest latency that at least a share q of all latencies does not exceed, or zero
// without latencies.
func (l Latencies) At(q float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	return l[min(max(int(q*float64(len(l))+0.999999)-1, 0), len(l)-1)]
}

// Flip changes the readiness of Pods and waits until the view has all changes. The order depends
// only on the size of the Set. All Pods must exist. Late flips are made up for. rate is the
// achieved number of flips per second.
func (s *Set) Flip(ctx context.Context, flips Flips, view *View) (latencies Latencies, rate float64, err error) {
	order := rand.New(rand.NewPCG(1, 0)).Perm(len(s.pods))
	latencies = make(Latencies, flips.Count)
	group, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for n := range flips.Count {
		due := began.Add(time.Duration(n) * time.Second / time.Duration(flips.Rate))
		select {
		case <-ctx.Done():
			return nil, 0, errors.Join(ctx.Err(), group.Wait())
		case <-time.After(time.Until(due)):
		}
		group.Go(func() (err error) {
			latencies[n], err = s.flipOne(ctx, order[n%len(order)], view)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, 0, err
	}
	slices.Sort(latencies)
	return latencies, float64(flips.Count) / time.Since(began).Seconds(), nil
}

// flipOne flips one Pod. No concurrent flip has the same Pod if there are many more Pods than
// concurrent flips.
func (s *Set) flipOne(ctx context.Context, i int, view *View) (time.Duration, error) {
	wanted := !isReady(s.pods[i])
	updated, err := s.setReady(ctx, s.pods[i].DeepCopy(), wanted)
	if err != nil {
		return 0, err
	}
	acknowledged := time.Now()
	s.pods[i] = updated
	at, err := view.When(ctx, updated.Name, wanted)
	return max(0, at.Sub(acknowledged)), err
}
