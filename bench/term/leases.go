package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Defaults of the components of Kubernetes.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// runLeases runs one LeaderElector for each shard with the defaults of Kubernetes' components.
// Unlike them, it releases the lock on a stop: otherwise a stop would take as long as a crash.
func (c candidateConfig) runLeases(ctx context.Context, r report) error {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1 // 64 locks would exceed client-go's default limit of 5 requests per second
	config.ContentType = runtime.ContentTypeProtobuf
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return announcingTransport{next: next, report: r} })
	client, err := coordinationv1.NewForConfig(config)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	for shard := range c.Shards {
		elector, err := c.elector(client, shard, r)
		if err != nil {
			return err
		}
		all.Go(func() { elector.Run(ctx) })
	}
	all.Wait()
	if ctx.Err() == nil {
		return fmt.Errorf("candidate %s lost its locks", c.ID)
	}
	return nil
}

func (c candidateConfig) elector(client coordinationv1.LeasesGetter, shard int, r report) (*leaderelection.LeaderElector, error) {
	return leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s-%d", c.Group, shard)},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.ID},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { r.act(ctx, shard) },
			OnStoppedLeading: func() {},
			OnNewLeader:      func(string) { r.send(ready, shard) },
		},
	})
}

// announcingTransport reports each request.
type announcingTransport struct {
	next   http.RoundTripper
	report report
}

func (a announcingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	a.report.send(request, 0)
	return a.next.RoundTrip(r)
}
