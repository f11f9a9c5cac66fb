package nodestore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/kubeconn"
)

// Cache is the cluster as far as it is cached; *Subscription is one. Its methods, except Run,
// answer from memory and may be called concurrently. Returned objects must not be written to.
type Cache interface {
	// Run keeps the cache until ctx ends. It is called once.
	Run(ctx context.Context) error
	// Synced is closed when all objects have been listed.
	Synced() <-chan struct{}
	// Changed returns the names of the Nodes that changed since the last call, or whose Lease or
	// Pods did.
	Changed() map[string]struct{}
	// Node returns nil for a Node that does not exist.
	Node(name string) *corev1.Node
	// Pods returns the Pods on a Node, in no order.
	Pods(node string) []*corev1.Pod
}

// Loop runs a controller: passes in one goroutine, workers beside it. All fields except Wake are
// required.
type Loop struct {
	// Name is for errors.
	Name string
	// Interval is the time between two passes.
	Interval time.Duration
	// Wake asks for a pass before Interval is over: a quarter of it later, so that one pass takes
	// in what happens at about the same time.
	Wake <-chan struct{}
	// Report is called every ReportWaiting while the cache is not synced. Passes report themselves.
	Report func(error)
	// Start is called once, before the first pass. It starts workers that end with ctx or after
	// End.
	Start func(ctx context.Context, workers *sync.WaitGroup)
	// Pass must not block. An error ends the Loop.
	Pass func() error
	// End is called after the last pass.
	End func()
}

// ReportWaiting is the time between two reports about a cache that is not synced.
const ReportWaiting = 30 * time.Second

// Run runs the cache, and passes from when it is synced, until ctx ends. It returns after all
// goroutines have ended.
func (l Loop) Run(ctx context.Context, cache Cache) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	ended := make(chan error, 1)
	running.Go(func() { ended <- cache.Run(ctx) })
	if err := l.await(ctx, cache, ended); err != nil || ctx.Err() != nil {
		return err
	}
	l.Start(ctx, &running)
	defer l.End()
	ticker := time.NewTicker(l.Interval)
	defer ticker.Stop()
	for {
		if err := l.Pass(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return l.cacheEnded(ctx, err)
		case <-ticker.C:
		case <-l.Wake:
			if !backoff.Sleep(ctx, l.Interval/4) {
				return nil
			}
		}
	}
}

// await waits until the cache is synced. That is slow in a large cluster, and never happens without
// a role.
func (l Loop) await(ctx context.Context, cache Cache, ended <-chan error) error {
	ticker := time.NewTicker(ReportWaiting)
	defer ticker.Stop()
	begin := time.Now()
	for {
		select {
		case <-cache.Synced():
			return nil
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return l.cacheEnded(ctx, err)
		case <-ticker.C:
			l.Report(fmt.Errorf("%s has waited for %v until its objects are listed", l.Name, time.Since(begin).Round(time.Second)))
		}
	}
}

func (l Loop) cacheEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(fmt.Errorf("the cache of %s has ended", l.Name), err)
}

const (
	minRetryDelay = time.Second
	// MaxRetryDelay bounds RetryDelay, unless kube-apiserver asks for more.
	MaxRetryDelay = 30 * time.Second
	// maxSuggestedDelay bounds what kube-apiserver, or a proxy before it, may ask for.
	maxSuggestedDelay = time.Minute
)

// RetryDelay returns how long to wait after a failed write. It doubles with each earlier failure.
// It is shorter if kube-apiserver could not answer.
func RetryDelay(err error, failures int) time.Duration {
	longest := MaxRetryDelay
	if kubeconn.Unavailable(err) {
		longest = kubeconn.MaxOutagePause
	}
	delay := backoff.Exponential{Min: minRetryDelay, Max: longest}.After(failures + 1)
	if seconds, given := apierrors.SuggestsClientDelay(err); given {
		delay = max(delay, min(time.Duration(seconds)*time.Second, maxSuggestedDelay))
	}
	return delay
}
