package main

import (
	"context"
	"fmt"
	"os"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
)

const (
	// floorVariable holds a kubeconfig path. It makes this binary run the floor for that cluster.
	floorVariable = "TRIVET_BENCH_FLOOR"
	// floorWorkers is the number of workers of the other contenders.
	floorWorkers = 5
)

// floorProgram is the minimal client-go program for a Pod that flips: caches with only the used
// fields, and one protobuf Update of the slice that contains the Pod. It creates no slice and knows
// no Service, so it is only a lower bound.
type floorProgram struct {
	kube  kubernetes.Interface
	queue workqueue.TypedRateLimitingInterface[string]

	mu     sync.Mutex // guards the following fields
	ready  map[string]bool
	places map[string]string // the slice of each Pod
	slices map[string]*discoveryv1.EndpointSlice
}

// floorAsChild runs until it is killed. It returns the exit code.
func floorAsChild(kubeconfig string) int {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	config.QPS = -1
	kube, err := administrator(config)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	f := &floorProgram{
		kube:  kube,
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		ready: map[string]bool{}, places: map[string]string{}, slices: map[string]*discoveryv1.EndpointSlice{},
	}
	if err := f.run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 1
}

func (f *floorProgram) run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactory(f.kube, 0)
	pods, slices := factory.Core().V1().Pods().Informer(), factory.Discovery().V1().EndpointSlices().Informer()
	if err := pods.SetTransform(onlyReadiness); err != nil {
		return err
	}
	if err := slices.SetTransform(withoutManagedFields); err != nil {
		return err
	}
	sawPods, err := handle(pods, f.sawPod)
	if err != nil {
		return err
	}
	sawSlices, err := handle(slices, f.sawSlice)
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), sawPods.HasSynced, sawSlices.HasSynced)
	f.catchUp()
	var workers sync.WaitGroup
	for range floorWorkers {
		workers.Go(func() { f.work(ctx) })
	}
	workers.Wait()
	return ctx.Err()
}

// handle calls saw for each added or changed object.
func handle[T any](informer cache.SharedIndexInformer, saw func(T)) (cache.ResourceEventHandlerRegistration, error) {
	return informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { see(object, saw) },
		UpdateFunc: func(_, object any) { see(object, saw) },
	})
}

func see[T any](object any, saw func(T)) {
	if typed, ok := object.(T); ok {
		saw(typed)
	}
}

// onlyReadiness reduces a Pod to its name and readiness.
func onlyReadiness(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, ResourceVersion: pod.ResourceVersion}}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			kept.Status.Conditions = []corev1.PodCondition{{Type: condition.Type, Status: condition.Status}}
		}
	}
	return kept, nil
}

func withoutManagedFields(object any) (any, error) {
	if slice, ok := object.(*discoveryv1.EndpointSlice); ok {
		slice.ManagedFields = nil
	}
	return object, nil
}

func (f *floorProgram) sawPod(pod *corev1.Pod) {
	ready := len(pod.Status.Conditions) > 0 && pod.Status.Conditions[0].Status == corev1.ConditionTrue
	f.mu.Lock()
	before, known := f.ready[pod.Name]
	f.ready[pod.Name] = ready
	place := f.places[pod.Name]
	f.mu.Unlock()
	if known && before != ready && place != "" {
		f.queue.Add(place)
	}
}

// sawSlice stores the slice. It can be older than the last Update for a moment: the next Update
// then conflicts and is retried.
func (f *floorProgram) sawSlice(slice *discoveryv1.EndpointSlice) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if kept := f.slices[slice.Name]; kept != nil && kept.Generation > slice.Generation {
		return
	}
	if f.slices[slice.Name] == nil {
		for i := range slice.Endpoints {
			f.places[slice.Endpoints[i].TargetRef.Name] = slice.Name
		}
	}
	f.slices[slice.Name] = slice
}

// catchUp queues the slices of Pods that flipped before the informer had them.
func (f *floorProgram) catchUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, slice := range f.slices {
		for i := range slice.Endpoints {
			if f.ready[slice.Endpoints[i].TargetRef.Name] != *slice.Endpoints[i].Conditions.Ready {
				f.queue.Add(name)
			}
		}
	}
}

func (f *floorProgram) work(ctx context.Context) {
	for {
		name, shutdown := f.queue.Get()
		if shutdown {
			return
		}
		if err := f.rewrite(ctx, name); err != nil {
			f.queue.AddRateLimited(name)
		} else {
			f.queue.Forget(name)
		}
		f.queue.Done(name)
	}
}

// rewrite updates a slice with the known readiness of its Pods.
func (f *floorProgram) rewrite(ctx context.Context, name string) error {
	f.mu.Lock()
	slice := f.slices[name].DeepCopy()
	for i := range slice.Endpoints {
		ready := f.ready[slice.Endpoints[i].TargetRef.Name]
		slice.Endpoints[i].Conditions.Ready, slice.Endpoints[i].Conditions.Serving = &ready, &ready
	}
	f.mu.Unlock()
	answer, err := f.kube.DiscoveryV1().EndpointSlices(slice.Namespace).Update(ctx, slice, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	answer.ManagedFields = nil
	f.sawSlice(answer)
	return nil
}
