package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/bench/internal/child"
	"github.com/trivet-dev/trivet/bench/internal/podset"
	"github.com/trivet-dev/trivet/internal/devcluster"
)

const (
	// warmUp is a few flips before those that count: by the last of them the contender's caches are
	// full.
	warmUp = 20
	// quietFor is how long slices may take to become few after an upheaval.
	quietFor = 30 * time.Second
	// lookEvery is the time between two looks at how many slices there are.
	lookEvery = 100 * time.Millisecond
)

// results are what the contenders reached in one world; nil where there is nothing.
type results struct {
	cold     [contenders]*cold
	flips    [contenders]*flipping
	upheaval [contenders]*outcome
}

// cold is a start with full caches to come and no slice there, from the start of the process until
// slices are exact.
type cold struct {
	wall, cpu time.Duration
	writes    int
	resident  int64
}

// flipping is what readiness flips cost.
type flipping struct {
	cpu       time.Duration
	writes    int
	latencies podset.Latencies
	rate      float64 // how many a second came about
	resident  int64
}

// outcome is what an upheaval cost, until there was nothing more to gain.
type outcome struct {
	cpu           time.Duration
	writes        int
	slices, ideal int
	resident      int64
}

// arena is a world that exists.
type arena struct {
	*bench
	cluster *devcluster.Cluster
	kube    kubernetes.Interface
	set     *podset.Set
	view    *podset.View
	results results
}

// run builds the world and lets the contenders take turns. What was measured before an error is
// returned beside it.
func (b *bench) run(ctx context.Context) (measured results, err error) {
	b.say("%d services with %d pods each…", b.world.services, b.world.podsEach)
	cluster, err := devcluster.Start(ctx, devcluster.Config{})
	if err != nil {
		return results{}, err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	kube, err := administrator(cluster.RESTConfig())
	if err != nil {
		return results{}, err
	}
	set, err := podset.Create(ctx, kube, b.world.services, b.world.podsEach)
	if err != nil {
		return results{}, err
	}
	view, err := podset.Watch(ctx, kube)
	if err != nil {
		return results{}, err
	}
	defer view.Close()
	a := &arena{bench: b, cluster: cluster, kube: kube, set: set, view: view}
	err = a.takeTurns(ctx)
	return a.results, err
}

// administrator makes a client without limits of its own.
func administrator(cfg *rest.Config) (kubernetes.Interface, error) {
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.WarningHandler = rest.NoWarnings{}
	return kubernetes.NewForConfig(cfg)
}

// takeTurns measures flips by upstream, by the floor on the slices that upstream has left, and by
// slicesvc on slices of its own. Then the upheaval, again from a cold start each: what flips leave
// in memory is not in its figures.
func (a *arena) takeTurns(ctx context.Context) error {
	for _, turn := range []struct {
		contender contender
		fresh     bool // it makes its own slices
		measure   func(context.Context, contender, *child.Child) error
	}{
		{contender: upstream, fresh: true, measure: a.measureFlips},
		{contender: floor, measure: a.measureFlips},
		{contender: ours, fresh: true, measure: a.measureFlips},
		{contender: upstream, fresh: true, measure: a.measureUpheaval},
		{contender: ours, fresh: true, measure: a.measureUpheaval},
	} {
		if err := a.turn(ctx, turn.contender, turn.fresh, turn.measure); err != nil {
			return fmt.Errorf("%v: %w", turn.contender, err)
		}
	}
	return nil
}

// turn runs a contender from its start to its end.
func (a *arena) turn(ctx context.Context, c contender, fresh bool, measure func(context.Context, contender, *child.Child) error) error {
	if err := a.set.Restore(ctx); err != nil {
		return err
	}
	if fresh {
		if err := a.clear(ctx); err != nil {
			return err
		}
	}
	written, err := a.written(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	process, err := a.start(ctx, c, a.cluster)
	if err != nil {
		return err
	}
	defer process.Stop()
	ctx, stop := whileRunning(ctx, process)
	defer stop()
	if err := a.view.Exact(ctx, a.set); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	wall := time.Since(began)
	if fresh && a.results.cold[c] == nil {
		if a.results.cold[c], err = a.coldStart(ctx, process, wall, written); err != nil {
			return err
		}
	}
	return errors.Join(measure(ctx, c, process), context.Cause(ctx))
}

// whileRunning is ctx until stop is called or the process has ended, which it should not.
func whileRunning(ctx context.Context, process *child.Child) (running context.Context, stop func()) {
	running, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-running.Done():
		case <-process.Ended():
			cancel(process.Err())
		}
	}()
	return running, func() { cancel(nil) }
}

func (a *arena) coldStart(ctx context.Context, process *child.Child, wall time.Duration, before int) (*cold, error) {
	cpu, err := process.CPU()
	if err != nil {
		return nil, err
	}
	writes, err := a.written(ctx)
	if err != nil {
		return nil, err
	}
	resident, err := process.Resident()
	return &cold{wall: wall, cpu: cpu, writes: writes - before, resident: resident}, err
}

func (a *arena) measureFlips(ctx context.Context, c contender, process *child.Child) (err error) {
	a.say("%v: %d flips at %d/s…", c, a.world.flips.Count, a.world.flips.Rate)
	if _, _, err := a.set.Flip(ctx, podset.Flips{Count: warmUp, Rate: warmUp}, a.view); err != nil {
		return err
	}
	f := &flipping{}
	f.cpu, f.writes, err = a.spent(ctx, process, func() (err error) {
		f.latencies, f.rate, err = a.set.Flip(ctx, a.world.flips, a.view)
		return err
	})
	if err != nil {
		return err
	}
	f.resident, err = process.Resident()
	a.results.flips[c] = f
	return errors.Join(err, a.view.Exact(ctx, a.set))
}

func (a *arena) measureUpheaval(ctx context.Context, c contender, process *child.Child) (err error) {
	if a.world.upheaval == nil {
		return nil
	}
	a.say("%v: %s…", c, a.world.upheaval.what)
	o := &outcome{}
	o.cpu, o.writes, err = a.spent(ctx, process, func() error {
		if err := a.world.upheaval.do(ctx, a.set); err != nil {
			return err
		}
		o.ideal = a.set.Ideal(sliceLimit)
		return a.settle(ctx, o.ideal)
	})
	if err != nil {
		return err
	}
	o.slices = a.view.Slices()
	o.resident, err = process.Resident()
	a.results.upheaval[c] = o
	return err
}

// settle waits until slices are exact and as few as can be, or exact and quietFor has passed.
func (a *arena) settle(ctx context.Context, ideal int) error {
	deadline := time.Now().Add(quietFor)
	if err := a.view.Exact(ctx, a.set); err != nil {
		return err
	}
	for a.view.Slices() > ideal && time.Now().Before(deadline) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookEvery):
		}
	}
	return a.view.Exact(ctx, a.set)
}

// spent runs work and returns the CPU time of the process and the writes of slices meanwhile.
func (a *arena) spent(ctx context.Context, process *child.Child, work func() error) (cpu time.Duration, writes int, err error) {
	before, err := a.written(ctx)
	if err != nil {
		return 0, 0, err
	}
	if cpu, err = process.Spent(work); err != nil {
		return 0, 0, err
	}
	after, err := a.written(ctx)
	return cpu, after - before, err
}

func (a *arena) clear(ctx context.Context) error {
	err := a.kube.DiscoveryV1().EndpointSlices(podset.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	return errors.Join(err, a.view.Gone(ctx))
}
