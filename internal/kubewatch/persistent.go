package kubewatch

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/kubeconn"
)

const (
	// minPause and maxPause bound the pause before a request is repeated, without its jitter. A
	// reflector pauses for up to a minute, and the informers of client-go have no option for it.
	minPause = 250 * time.Millisecond
	maxPause = 3 * time.Second
	// maxSuggestedPause bounds what kube-apiserver, or a proxy before it, may ask for.
	maxSuggestedPause = 10 * time.Second
)

// Persistent returns a ListWatch that repeats a request while kube-apiserver cannot answer it. So
// the objects are current within seconds after kube-apiserver is back, however long it was away.
// The reflector gets each other error, for which it has to list or to fall back.
func Persistent(of *cache.ListWatch) *cache.ListWatch {
	return &cache.ListWatch{
		DisableChunking: of.DisableChunking,
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return repeat(ctx, options, of.ListWithContextFunc)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return repeat(ctx, options, of.WatchFuncWithContext)
		},
	}
}

func repeat[T any](ctx context.Context, options metav1.ListOptions, send func(context.Context, metav1.ListOptions) (T, error)) (T, error) {
	for failures := 1; ; failures++ {
		answer, err := send(ctx, options)
		if err == nil || ctx.Err() != nil || !unavailable(err, options) {
			return answer, err
		}
		wait := backoff.Jitter(backoff.Exponential{Min: minPause, Max: maxPause}.After(failures))
		if seconds, suggested := apierrors.SuggestsClientDelay(err); suggested {
			wait = max(wait, min(time.Duration(seconds)*time.Second, maxSuggestedPause))
		}
		if !backoff.Sleep(ctx, wait) {
			return answer, err
		}
	}
}

// unavailable reports whether the same request may succeed later. Without a status of
// kube-apiserver, there was no answer. A reflector that cannot stream a list has to list.
func unavailable(err error, options metav1.ListOptions) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	return kubeconn.Unavailable(err) && (options.SendInitialEvents == nil || !apierrors.IsInternalError(err))
}
