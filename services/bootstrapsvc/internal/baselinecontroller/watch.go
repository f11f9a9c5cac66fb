package baselinecontroller

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// rewatchPause is how long a watch that ended waits before it begins anew.
	rewatchPause = time.Second
	// watchFor is how long one watch lasts, so that one of which nothing is heard any more is not believed in for ever.
	watchFor = 5 * time.Minute
)

// Watch calls changed whenever the EndpointSlice that bears the Service's name is written by anybody, and each time it begins to
// watch, because something may have happened before. It blocks until ctx ends; a watch that ends begins anew by itself. changed
// must not block. It is a hint to look sooner: whoever looks now and then anyway misses nothing without it.
func (c *Cluster) Watch(ctx context.Context, changed func()) {
	for ctx.Err() == nil {
		c.watchOnce(ctx, changed)
		select {
		case <-ctx.Done():
		case <-time.After(rewatchPause):
		}
	}
}

func (c *Cluster) watchOnce(ctx context.Context, changed func()) {
	ctx, cancel := context.WithTimeout(ctx, watchFor)
	defer cancel()
	watch, err := c.kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + name,
	})
	if err != nil {
		return
	}
	defer watch.Stop()
	changed()
	for range watch.ResultChan() {
		changed()
	}
}
