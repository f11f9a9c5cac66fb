package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/bench/internal/pace"
	"github.com/trivet-dev/trivet/bench/internal/podset"
	"github.com/trivet-dev/trivet/bench/internal/sliceview"
	"github.com/trivet-dev/trivet/bench/internal/slicewrites"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

const (
	// warmUp is the number of flips before the measured ones. They fill the contender's caches.
	warmUp = 20
	// quietFor is the time in which the number of slices may decrease after a mass change.
	quietFor = 30 * time.Second
	// lookEvery is the interval between two checks of the number of slices.
	lookEvery = 100 * time.Millisecond
)

// results are the measurements in one world, by contender. They are nil if not measured.
type results struct {
	cold       [contenders]*cold
	flips      [contenders]*flipping
	massChange [contenders]*outcome
}

// cold is a start without slices, from the start of the process until the slices are exact.
type cold struct {
	wall, cpu time.Duration
	writes    int
	resident  int64
}

// flipping is the cost of readiness flips.
type flipping struct {
	cpu       time.Duration
	writes    int
	latencies pace.Latencies
	rate      float64 // achieved flips per second
	resident  int64
}

// outcome is the cost of a mass change until the slices are exact and minimal.
type outcome struct {
	cpu           time.Duration
	writes        int
	slices, ideal int
	resident      int64
	bytes         int64 // that one watch of the slices received
}

// worldRun is a running world.
type worldRun struct {
	*bench
	cluster *devcluster.Cluster
	kube    kubernetes.Interface
	set     *podset.Set
	view    *sliceview.View
	results results
}

// run creates the world and runs the contenders in turn. It returns the measurements before an
// error with the error.
func (b *bench) run(ctx context.Context) (measured results, err error) {
	b.progress("%d services with %d pods each…", b.world.services, b.world.podsEach)
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
	view, err := sliceview.Watch(ctx, kube, podset.Namespace, discoveryv1.LabelServiceName)
	if err != nil {
		return results{}, err
	}
	defer view.Close()
	a := &worldRun{bench: b, cluster: cluster, kube: kube, set: set, view: view}
	err = a.takeTurns(ctx)
	return a.results, err
}

// administrator returns a client without rate limits.
func administrator(cfg *rest.Config) (kubernetes.Interface, error) {
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.WarningHandler = rest.NoWarnings{}
	return kubernetes.NewForConfig(cfg)
}

// takeTurns measures flips by upstream, by the floor on upstream's slices, and by slicesvc on its
// own slices. It measures the mass change afterwards, each from a cold start, so that memory used
// by flips is not in its figures.
func (a *worldRun) takeTurns(ctx context.Context) error {
	for _, turn := range []struct {
		contender contender
		fresh     bool // starts without slices
		measure   func(context.Context, contender, *childprocess.Child) error
	}{
		{contender: upstream, fresh: true, measure: a.measureFlips},
		{contender: floor, measure: a.measureFlips},
		{contender: ours, fresh: true, measure: a.measureFlips},
		{contender: upstream, fresh: true, measure: a.measureMassChange},
		{contender: ours, fresh: true, measure: a.measureMassChange},
	} {
		if err := a.turn(ctx, turn.contender, turn.fresh, turn.measure); err != nil {
			return fmt.Errorf("%v: %w", turn.contender, err)
		}
	}
	return nil
}

// turn runs a contender from its start to its end.
func (a *worldRun) turn(ctx context.Context, c contender, fresh bool, measure func(context.Context, contender, *childprocess.Child) error) error {
	if err := a.set.Restore(ctx); err != nil {
		return err
	}
	if fresh {
		if err := a.clear(ctx); err != nil {
			return err
		}
	}
	written, err := slicewrites.Count(ctx, a.kube)
	if err != nil {
		return err
	}
	began := time.Now()
	process, err := a.start(ctx, c, a.cluster)
	if err != nil {
		return err
	}
	defer process.Stop()
	ctx, stop := process.While(ctx)
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

func (a *worldRun) coldStart(ctx context.Context, process *childprocess.Child, wall time.Duration, before int) (*cold, error) {
	cpu, err := process.CPU()
	if err != nil {
		return nil, err
	}
	writes, err := slicewrites.Count(ctx, a.kube)
	if err != nil {
		return nil, err
	}
	resident, err := process.Resident()
	return &cold{wall: wall, cpu: cpu, writes: writes - before, resident: resident}, err
}

func (a *worldRun) measureFlips(ctx context.Context, c contender, process *childprocess.Child) (err error) {
	a.progress("%v: %d flips at %d/s…", c, a.world.flips.Count, a.world.flips.Rate)
	if _, _, err := a.set.Flip(ctx, pace.Steady{Count: warmUp, Rate: warmUp}, a.view); err != nil {
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

func (a *worldRun) measureMassChange(ctx context.Context, c contender, process *childprocess.Child) (err error) {
	if a.world.massChange == nil {
		return nil
	}
	a.progress("%v: %s…", c, a.world.massChange.what)
	o := &outcome{bytes: -a.view.Bytes()}
	o.cpu, o.writes, err = a.spent(ctx, process, func() error {
		if err := a.world.massChange.do(ctx, a.set, c); err != nil {
			return err
		}
		o.ideal = a.set.Ideal(sliceLimit)
		return a.settle(ctx, o.ideal)
	})
	if err != nil {
		return err
	}
	o.slices = a.view.Slices()
	o.bytes += a.view.Bytes()
	o.resident, err = process.Resident()
	a.results.massChange[c] = o
	return err
}

// settle waits until the slices are exact and minimal, or exact after quietFor.
func (a *worldRun) settle(ctx context.Context, ideal int) error {
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

// spent runs work and returns the CPU time of the process and the writes of slices during it.
func (a *worldRun) spent(ctx context.Context, process *childprocess.Child, work func() error) (cpu time.Duration, writes int, err error) {
	before, err := slicewrites.Count(ctx, a.kube)
	if err != nil {
		return 0, 0, err
	}
	if cpu, err = process.Spent(work); err != nil {
		return 0, 0, err
	}
	after, err := slicewrites.Count(ctx, a.kube)
	return cpu, after - before, err
}

func (a *worldRun) clear(ctx context.Context) error {
	err := a.kube.DiscoveryV1().EndpointSlices(podset.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	return errors.Join(err, a.view.Gone(ctx))
}
