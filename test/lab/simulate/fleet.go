package simulate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Fleet writes the simulated objects. It is not safe for concurrent use.
type Fleet struct {
	kube   kubernetes.Interface
	logger *slog.Logger
	state  *fleet
	random *rand.Rand
}

// New returns a fleet. It writes nothing. The client must be allowed to write Nodes, Services,
// Endpoints and Pods.
func New(cfg Config, kube kubernetes.Interface, logger *slog.Logger) *Fleet {
	return &Fleet{
		kube: kube, logger: logger, state: newFleet(cfg),
		random: rand.New(rand.NewPCG(cfg.Seed, 0)),
	}
}

// Nodes returns the names of the simulated Nodes. The caller sends their heartbeats.
func (f *Fleet) Nodes() []string {
	names := make([]string, f.state.cfg.Nodes)
	for i := range names {
		names[i] = nodeName(i)
	}
	return names
}

// Create writes the whole fleet. It is idempotent: it adopts existing objects, except for Pods of
// an earlier run, which it deletes because their state is unknown.
func (f *Fleet) Create(ctx context.Context) error {
	for i := range f.state.cfg.Nodes {
		if err := f.createNode(ctx, i); err != nil {
			return err
		}
	}
	if err := f.createNamespace(ctx); err != nil {
		return err
	}
	if err := f.deleteForeignPods(ctx); err != nil {
		return err
	}
	for i := range f.state.cfg.Services {
		_, err := f.kube.CoreV1().Services(f.namespace()).Create(ctx, service(f.namespace(), i), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create Service %s: %w", serviceName(i), err)
		}
	}
	if err := f.restoreAddresses(ctx); err != nil {
		return err
	}
	if f.state.cfg.Services > 0 {
		if err := f.createOutside(ctx); err != nil {
			return err
		}
	}
	for _, p := range f.state.pods {
		if err := f.createPod(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// createOutside creates a Service of servers outside of the cluster, with its Endpoints object.
func (f *Fleet) createOutside(ctx context.Context) error {
	_, err := f.kube.CoreV1().Services(f.namespace()).Create(ctx, outsideService(f.namespace()), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create Service %s: %w", outsideName, err)
	}
	_, err = f.kube.CoreV1().Endpoints(f.namespace()).Create(ctx, outsideEndpoints(f.namespace()), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create Endpoints %s: %w", outsideName, err)
	}
	return nil
}

// Churn changes the fleet, on average once a period, until ctx ends. A change that fails is logged
// and skipped.
func (f *Fleet) Churn(ctx context.Context, period time.Duration) error {
	if period <= 0 {
		<-ctx.Done()
		return nil
	}
	for {
		pause := period/2 + time.Duration(f.random.Int64N(int64(period)))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		c, ok := f.state.next(f.random)
		if !ok {
			continue
		}
		if err := f.apply(ctx, c); err != nil && ctx.Err() == nil {
			f.logger.Warn("skipping a simulated change", "pod", c.before.name, "error", err)
			continue
		}
		f.state.applied(c)
	}
}

// RollOut replaces one Pod a period until ctx ends: all Pods of one Service, then all of the next.
// A change that fails is logged and skipped.
func (f *Fleet) RollOut(ctx context.Context, period time.Duration) {
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(period):
		}
		c, ok := f.state.rollOut(i)
		if !ok {
			continue
		}
		if err := f.apply(ctx, c); err != nil && ctx.Err() == nil {
			f.logger.Warn("skipping a simulated change", "pod", c.before.name, "error", err)
			continue
		}
		f.state.applied(c)
	}
}

func (f *Fleet) namespace() string { return f.state.cfg.Namespace }

func (f *Fleet) apply(ctx context.Context, c change) error {
	if c.verb != replace {
		return f.reportStatus(ctx, c.after)
	}
	err := f.createPod(ctx, c.after)
	if err == nil {
		err = f.deletePod(ctx, c.before)
	}
	if err != nil {
		// Delete the new Pod, because the state of the fleet does not include it.
		return errors.Join(err, f.deletePod(ctx, c.after))
	}
	return nil
}

func (f *Fleet) deletePod(ctx context.Context, p pod) error {
	err := f.kube.CoreV1().Pods(f.namespace()).Delete(ctx, p.name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete Pod %s: %w", p.name, err)
	}
	return nil
}

func (f *Fleet) createNode(ctx context.Context, i int) error {
	wanted := node(i, time.Now())
	made, err := f.kube.CoreV1().Nodes().Create(ctx, wanted, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return f.adoptNode(ctx, wanted)
	}
	if err != nil {
		return fmt.Errorf("create Node %s: %w", wanted.Name, err)
	}
	return f.finishNode(ctx, made, wanted.Status)
}

// maxConflicts bounds the conflicts with leasesvc, which writes labels and taints of the same
// Nodes.
const maxConflicts = 10

// adoptNode completes a Node of an earlier run.
func (f *Fleet) adoptNode(ctx context.Context, wanted *corev1.Node) error {
	found, err := f.kube.CoreV1().Nodes().Get(ctx, wanted.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("read Node %s: %w", wanted.Name, err)
	case found.Labels[Label] != "true":
		return fmt.Errorf("create Node %s: it exists without the label %s=true, so it is not simulated", wanted.Name, Label)
	default:
		return f.finishNode(ctx, found, wanted.Status)
	}
}

// finishNode writes the status and removes the taint that admission adds to each new Node, because
// the Node is ready.
func (f *Fleet) finishNode(ctx context.Context, made *corev1.Node, status corev1.NodeStatus) error {
	for conflicts := 0; ; conflicts++ {
		err := f.reportNode(ctx, made, status)
		if !apierrors.IsConflict(err) || conflicts == maxConflicts {
			return err
		}
		if made, err = f.kube.CoreV1().Nodes().Get(ctx, made.Name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("read Node again: %w", err)
		}
	}
}

func (f *Fleet) reportNode(ctx context.Context, made *corev1.Node, status corev1.NodeStatus) error {
	made.Status = status
	reported, err := f.kube.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("report status of Node %s: %w", made.Name, err)
	}
	if len(reported.Spec.Taints) == 0 {
		return nil
	}
	reported.Spec.Taints = nil
	if _, err := f.kube.CoreV1().Nodes().Update(ctx, reported, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("untaint Node %s: %w", made.Name, err)
	}
	return nil
}

func (f *Fleet) createNamespace(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.namespace(), Labels: labels()}}
	_, err := f.kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create Namespace %s: %w", ns.Name, err)
	}
	return nil
}

func (f *Fleet) deleteForeignPods(ctx context.Context) error {
	pods, err := f.kube.CoreV1().Pods(f.namespace()).List(ctx, metav1.ListOptions{LabelSelector: Label + "=true"})
	if err != nil {
		return fmt.Errorf("list simulated Pods: %w", err)
	}
	var errs []error
	for _, p := range pods.Items {
		err := f.kube.CoreV1().Pods(f.namespace()).Delete(ctx, p.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &p.UID},
		})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete Pod %s of an earlier run: %w", p.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (f *Fleet) createPod(ctx context.Context, p pod) error {
	_, err := f.kube.CoreV1().Pods(f.namespace()).Create(ctx, podObject(f.namespace(), p), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create Pod %s: %w", p.name, err)
	}
	return f.reportStatus(ctx, p)
}

func (f *Fleet) reportStatus(ctx context.Context, p pod) error {
	object := podObject(f.namespace(), p)
	object.Status = podStatus(p, time.Now())
	if _, err := f.kube.CoreV1().Pods(f.namespace()).UpdateStatus(ctx, object, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("report status of Pod %s: %w", p.name, err)
	}
	return nil
}
