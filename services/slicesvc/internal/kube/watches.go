package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Handler takes in what is watched. Its methods are called from one goroutine for
// each kind and must return soon; objects are given away. What is deleted comes
// as it was last, or with nothing but its names, UID and last known version.
type Handler interface {
	PutService(*corev1.Service)
	DeleteService(*corev1.Service)
	PutPod(*corev1.Pod)
	DeletePod(*corev1.Pod)
	PutNode(*corev1.Node)
	DeleteNode(*corev1.Node)
	// SliceSeen is told of every slice before it is put, and says whether it must be.
	SliceSeen(*metav1.ObjectMeta) bool
	PutSlice(*discoveryv1.EndpointSlice)
	DeleteSlice(*discoveryv1.EndpointSlice)
	// SlicesListed is told which slices there were at a resourceVersion, after they
	// were put: a sink that has others, older than that, has never been shown them.
	SlicesListed(there map[types.NamespacedName]struct{}, resourceVersion string)
}

// Watch is the watches of one process. Its methods are safe for concurrent use;
// Run is called once.
type Watches struct {
	client ObjectClient
	sink   Handler
	logger *slog.Logger
	synced chan struct{} // closed by Run

	mu sync.Mutex // guards trouble
	// trouble is, by kind, why the last attempt to list or watch failed; it goes
	// when everything has been put.
	trouble map[string]error
}

// New returns a Watch; it starts nothing.
func NewWatches(client ObjectClient, sink Handler, logger *slog.Logger) *Watches {
	return &Watches{
		client:  client,
		sink:    sink,
		logger:  logger,
		synced:  make(chan struct{}),
		trouble: map[string]error{},
	}
}

// Run watches until ctx ends and all its goroutines have returned.
func (w *Watches) Run(ctx context.Context) error {
	logged := klog.NewContext(ctx, logr.FromSlogHandler(w.logger.Handler()))
	var running sync.WaitGroup
	defer running.Wait()
	var filling []chan struct{}
	for _, source := range sources() {
		filled := make(chan struct{})
		filling = append(filling, filled)
		store := source.store(w, sync.OnceFunc(func() { close(filled) }))
		reflector := cache.NewReflectorWithOptions(w.observed(source), nil, store, cache.ReflectorOptions{
			Name:            "slicesvc " + source.kind,
			TypeDescription: source.kind,
		})
		running.Go(func() { reflector.RunWithContext(logged) })
	}
	for _, filled := range filling {
		select {
		case <-ctx.Done():
			return nil
		case <-filled:
		}
	}
	w.logger.Info("caches filled")
	close(w.synced)
	<-ctx.Done()
	return nil
}

// Synced is closed once everything the cluster had at the start has been put.
func (w *Watches) Synced() <-chan struct{} { return w.synced }

// Check returns nil once everything has been put; until then an error that says
// what is in the way.
func (w *Watches) Check() error {
	select {
	case <-w.synced:
		return nil
	default:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	problems := []error{errors.New("caches are being filled")}
	for _, err := range w.trouble {
		problems = append(problems, err)
	}
	slices.SortFunc(problems[1:], func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(problems...)
}

// failed takes note of an interrupted list or watch. Once the caches are
// filled, an interruption is everyday life: watches end, and are begun anew
// where they ended.
func (w *Watches) failed(kind string, cause error) {
	w.logger.Debug("watch interrupted", "kind", kind, "error", cause)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trouble[kind] = fmt.Errorf("list %s: %w", kind, cause)
}

// putSlice puts a slice unless the sink knows it, and only then decodes it. One
// that cannot be decoded stays as it was known until there is another version.
func (w *Watches) putSlice(seen *sighting) error {
	if !w.sink.SliceSeen(&seen.ObjectMeta) {
		return nil
	}
	slice, err := seen.slice()
	if err != nil {
		w.logger.Error("slice ignored", "error", err)
		w.failed("endpointslices", err)
		return err
	}
	w.sink.PutSlice(slice)
	return nil
}

func (w *Watches) deleteSlice(seen *sighting) {
	w.sink.DeleteSlice(&discoveryv1.EndpointSlice{ObjectMeta: seen.ObjectMeta})
}
