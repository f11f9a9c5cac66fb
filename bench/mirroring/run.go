package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/bench/internal/endpointset"
	"github.com/trivet-dev/trivet/bench/internal/pace"
	"github.com/trivet-dev/trivet/bench/internal/sliceview"
	"github.com/trivet-dev/trivet/bench/internal/slicewrites"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

const (
	// warmUp is the number of flips before the measured ones. They fill the contender's caches.
	warmUp = 20
	// countEvery is the interval between two counts of writes.
	countEvery = 200 * time.Millisecond
)

// results are the measurements in one world.
type results struct {
	// empty has the start of each contender without slices.
	empty [contenders]*start
	// rounds have the turns of each contender.
	rounds [][contenders]turn
	// loads are the load averages at the begin of each turn.
	loads []string
}

// turn is what one contender has done in one round. Parts that are not measured are nil.
type turn struct {
	adoption *start // beside the slices that the other contender left
	flips    *flipping
	restart  *start // beside slices of which some are outdated
}

// start is a start of the process, and what it costs until the slices are exact or a fixed time has
// passed.
type start struct {
	wall, cpu time.Duration // from the start of the process
	writes    int
	peak      int64
}

// flipping is the cost of changes of readiness.
type flipping struct {
	cpu       time.Duration
	writes    int
	latencies pace.Latencies
	rate      float64 // achieved flips per second
	resident  int64
}

// worldRun is a running world.
type worldRun struct {
	*bench
	cluster *devcluster.Cluster
	kube    kubernetes.Interface
	set     *endpointset.Set
	view    *sliceview.View
	results results
}

// run creates the world and runs the contenders in turn. It returns the measurements before an
// error with the error.
func (b *bench) run(ctx context.Context) (measured results, err error) {
	b.progress("%d Endpoints with %d addresses each, in %d namespaces…", b.world.services, b.world.addresses, b.world.namespaces)
	cluster, err := devcluster.Start(ctx, devcluster.Config{})
	if err != nil {
		return results{}, err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	kube, err := administrator(cluster.RESTConfig())
	if err != nil {
		return results{}, err
	}
	set, err := endpointset.Create(ctx, kube, b.world.namespaces, b.world.services, b.world.addresses)
	if err != nil {
		return results{}, err
	}
	view, err := sliceview.Watch(ctx, kube, "", endpointset.Selector)
	if err != nil {
		return results{}, err
	}
	defer view.Close()
	a := &worldRun{bench: b, cluster: cluster, kube: kube, set: set, view: view}
	err = a.takeTurns(ctx)
	if n := view.Reopened(); n > 0 {
		b.progress("kube-apiserver ended the watch of this command %d times: the machine is too busy", n)
	}
	return a.results, err
}

// administrator returns a client without rate limits.
func administrator(cfg *rest.Config) (kubernetes.Interface, error) {
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.WarningHandler = rest.NoWarnings{}
	return kubernetes.NewForConfig(cfg)
}

// takeTurns measures a start without slices of each contender, and then the rounds.
func (a *worldRun) takeTurns(ctx context.Context) error {
	for c := range contenders {
		if err := a.startEmpty(ctx, c); err != nil {
			return fmt.Errorf("%v without slices: %w", c, err)
		}
	}
	for round := range a.rounds {
		a.results.rounds = append(a.results.rounds, [contenders]turn{})
		for c := range contenders {
			if err := a.takeTurn(ctx, c, round); err != nil {
				return fmt.Errorf("%v: %w", c, err)
			}
		}
	}
	return nil
}

func (a *worldRun) startEmpty(ctx context.Context, c contender) error {
	if err := errors.Join(a.set.DeleteSlices(ctx), a.view.Gone(ctx)); err != nil {
		return err
	}
	a.progress("%v: start without slices…", c)
	measured, err := a.measureStart(ctx, c)
	a.results.empty[c] = measured
	return err
}

// measureStart runs a contender from its start until the slices are exact.
func (a *worldRun) measureStart(ctx context.Context, c contender) (*start, error) {
	before, err := slicewrites.Count(ctx, a.kube)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	process, err := a.start(ctx, c, a.cluster)
	if err != nil {
		return nil, err
	}
	defer process.Stop()
	running, stop := process.While(ctx)
	defer stop()
	if err := a.view.Exact(running, a.set); err != nil {
		return nil, errors.Join(err, context.Cause(running))
	}
	measured := &start{wall: time.Since(began)}
	err = a.account(ctx, process, measured, before)
	return measured, err
}

// account adds the CPU time, the peak memory and the writes since before.
func (a *worldRun) account(ctx context.Context, process *contending, measured *start, before int) (err error) {
	if measured.cpu, err = process.CPU(); err != nil {
		return err
	}
	used, err := process.Usage()
	if err != nil {
		return err
	}
	measured.peak = used.Peak
	measured.writes, err = a.writtenSince(ctx, before)
	return err
}

// writtenSince returns the writes since before, once their number stays the same. kube-apiserver
// counts a write after it has sent the event.
func (a *worldRun) writtenSince(ctx context.Context, before int) (int, error) {
	last := -1
	for {
		now, err := slicewrites.Count(ctx, a.kube)
		if err != nil || now == last {
			return now - before, err
		}
		last = now
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(countEvery):
		}
	}
}

// takeTurn measures one contender: the adoption of the slices, flips, and a restart after changes
// that no process has seen.
func (a *worldRun) takeTurn(ctx context.Context, c contender, round int) error {
	load, err := loadAverage()
	if err != nil {
		return err
	}
	a.results.loads = append(a.results.loads, load)
	a.progress("round %d, %v: start beside the slices, then %d flips at %d/s…", round+1, c, a.world.flips.Count, a.world.flips.Rate)
	turn := &a.results.rounds[round][c]
	if err := a.adoptAndFlip(ctx, c, turn, round); err != nil {
		return err
	}
	if err := a.set.FlipUnseen(ctx, a.world.unseen); err != nil {
		return err
	}
	turn.restart, err = a.measureStart(ctx, c)
	return err
}

func (a *worldRun) adoptAndFlip(ctx context.Context, c contender, turn *turn, round int) error {
	before, err := slicewrites.Count(ctx, a.kube)
	if err != nil {
		return err
	}
	began := time.Now()
	process, err := a.start(ctx, c, a.cluster)
	if err != nil {
		return err
	}
	defer process.Stop()
	running, stop := process.While(ctx)
	defer stop()
	select {
	case <-running.Done():
		return context.Cause(running)
	case <-time.After(time.Until(began.Add(a.world.rest))):
	}
	adopted := &start{}
	if err := a.account(running, process, adopted, before); err != nil {
		return err
	}
	turn.adoption = adopted
	if _, _, err := a.set.Flip(running, pace.Steady{Count: warmUp, Rate: a.world.flips.Rate}, a.view); err != nil {
		return errors.Join(err, context.Cause(running))
	}
	profile := a.profile(running, process, round)
	turn.flips, err = a.measureFlips(running, process)
	return errors.Join(err, <-profile, context.Cause(running))
}

func (a *worldRun) measureFlips(ctx context.Context, process *contending) (*flipping, error) {
	before, err := slicewrites.Count(ctx, a.kube)
	if err != nil {
		return nil, err
	}
	f := &flipping{}
	f.cpu, err = process.Spent(func() (err error) {
		f.latencies, f.rate, err = a.set.Flip(ctx, a.world.flips, a.view)
		return errors.Join(err, a.view.Exact(ctx, a.set))
	})
	if err != nil {
		return nil, err
	}
	if f.writes, err = a.writtenSince(ctx, before); err != nil {
		return nil, err
	}
	f.resident, err = process.Resident()
	return f, err
}

// profile writes a CPU profile of slicesvc for the time of the flips and a heap profile of their
// end, if they are asked for. The result arrives when they are written.
func (a *worldRun) profile(ctx context.Context, process *contending, round int) <-chan error {
	result := make(chan error, 1)
	if a.profiles == "" || process.server == nil {
		result <- nil
		return result
	}
	go func() {
		seconds := max(1, a.world.flips.Count/a.world.flips.Rate)
		result <- errors.Join(
			a.keepProfile(ctx, process, fmt.Sprintf("profile?seconds=%d", seconds), fmt.Sprintf("%s-%d-cpu.pprof", a.world.name, round+1)),
			a.keepProfile(ctx, process, "heap?gc=1", fmt.Sprintf("%s-%d-heap.pprof", a.world.name, round+1)),
		)
	}()
	return result
}

func (a *worldRun) keepProfile(ctx context.Context, process *contending, path, name string) error {
	text, err := process.server.Get(ctx, "/debug/pprof/"+path)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(a.profiles, name), []byte(text), 0o644)
}
