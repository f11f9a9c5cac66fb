package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// administrator returns a client without rate limits.
func administrator(cfg *rest.Config) (kubernetes.Interface, error) {
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.WarningHandler = rest.NoWarnings{}
	return kubernetes.NewForConfig(cfg)
}

// zoneSize is the number of Nodes of a zone.
const zoneSize = 50

// createNodes creates ready Nodes, as kubelets register them.
func createNodes(ctx context.Context, kube kubernetes.Interface, names []string) error {
	const atOnce = 16
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, name := range names {
		group.Go(func() error {
			now := metav1.Now()
			labels := map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: fmt.Sprint("zone-", i/zoneSize)}
			_, err := kube.CoreV1().Nodes().Create(ctx, &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
				Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
					Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
					LastHeartbeatTime: now, LastTransitionTime: now,
				}}},
			}, metav1.CreateOptions{})
			return err
		})
	}
	return group.Wait()
}

// verdicts has the Nodes that were marked Unknown, and the times at which the watch reported it.
type verdicts struct {
	mu      sync.Mutex // guards unknown
	unknown map[string]time.Time
	watcher watch.Interface
}

// watchVerdicts watches all Nodes from now on, until close.
func watchVerdicts(ctx context.Context, kube kubernetes.Interface) (*verdicts, error) {
	watcher, err := kube.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	v := &verdicts{unknown: map[string]time.Time{}, watcher: watcher}
	go func() {
		for event := range watcher.ResultChan() {
			if node, ok := event.Object.(*corev1.Node); ok {
				v.note(node, time.Now())
			}
		}
	}()
	return v, nil
}

func (v *verdicts) close() { v.watcher.Stop() }

func (v *verdicts) note(node *corev1.Node, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, condition := range node.Status.Conditions {
		if _, known := v.unknown[node.Name]; !known && condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionUnknown {
			v.unknown[node.Name] = now
		}
	}
}

// when returns the time at which a Node was marked Unknown, or zero.
func (v *verdicts) when(name string) time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.unknown[name]
}

func (v *verdicts) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.unknown)
}
