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

// The defaults of Kubernetes' own components.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// standForLeases runs one LeaderElector for each shard at the defaults of Kubernetes' components,
// but that it releases the lock on a stop, without which a stop would cost as much as a crash.
func (s seat) standForLeases(ctx context.Context, h report) error {
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1 // 64 locks would wait for client-go's own limit of 5 requests per second
	config.ContentType = runtime.ContentTypeProtobuf
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return announcing{next: next, report: h} })
	client, err := coordinationv1.NewForConfig(config)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	for shard := range s.Shards {
		elector, err := s.elector(client, shard, h)
		if err != nil {
			return err
		}
		all.Go(func() { elector.Run(ctx) })
	}
	all.Wait()
	if ctx.Err() == nil {
		return fmt.Errorf("candidate %s lost its locks", s.ID)
	}
	return nil
}

func (s seat) elector(client coordinationv1.LeasesGetter, shard int, h report) (*leaderelection.LeaderElector, error) {
	return leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s-%d", s.Contest, shard)},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: s.ID},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { h.act(ctx, shard) },
			OnStoppedLeading: func() {},
			OnNewLeader:      func(string) { h.say(ready, shard) },
		},
	})
}

// announcing says when a request is sent.
type announcing struct {
	next   http.RoundTripper
	report report
}

func (a announcing) RoundTrip(r *http.Request) (*http.Response, error) {
	a.report.say(request, 0)
	return a.next.RoundTrip(r)
}
