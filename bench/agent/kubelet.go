package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// renewPeriod is that of a kubelet's Lease. The status of its Node is written as often.
	renewPeriod = 10 * time.Second
	// secretBytes is the size of the Secret that each read gets.
	secretBytes = 8 << 10
)

// kubelet makes the requests of a kubelet through the endpoint.
type kubelet struct {
	node   *node
	client kubernetes.Interface
	stop   func()

	mu  sync.Mutex // guards err
	err error
}

func newKubelet(n *node, kubeconfig string) (*kubelet, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.ContentType, config.AcceptContentTypes = -1, "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	return &kubelet{node: n, client: client, stop: func() {}}, err
}

// failure returns the first error of the requests in the background.
func (k *kubelet) failure() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// start creates the objects and starts the requests. The endpoint may not listen yet.
func (k *kubelet) start(ctx context.Context) error {
	if err := k.createObjects(ctx); err != nil {
		return err
	}
	if err := k.awaitEndpoint(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	k.stop = sync.OnceFunc(func() {
		cancel()
		group.Wait()
	})
	background := func(what string, work func(context.Context) error) {
		group.Go(func() {
			if err := work(ctx); err != nil && ctx.Err() == nil {
				k.mu.Lock()
				defer k.mu.Unlock()
				k.err = errors.Join(k.err, fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	background("renew the Lease", k.renew)
	background("write the status of the Node", k.writeStatus)
	for _, w := range k.watches() {
		background("watch", func(ctx context.Context) error { return follow(ctx, w) })
	}
	return nil
}

func (k *kubelet) createObjects(ctx context.Context) error {
	admin := k.node.admin.CoreV1()
	_, err := admin.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	for i := range k.node.cfg.watches {
		_, err := admin.Secrets("default").Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: secretName(i)}, StringData: map[string]string{"data": strings.Repeat("x", secretBytes)},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

func secretName(i int) string { return fmt.Sprintf("secret-%d", i) }

func (k *kubelet) awaitEndpoint(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		_, err := k.client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the endpoint does not answer: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// renew creates the Lease and renews it, as the Lease controller of a kubelet does.
func (k *kubelet) renew(ctx context.Context) error {
	leases := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	owner, err := k.client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	lease, err := leases.Get(ctx, nodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		lease, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: nodeName, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: owner.UID}}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: new(nodeName), LeaseDurationSeconds: new(int32(40)), RenewTime: now()},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	return each(ctx, renewPeriod, func() error {
		lease.Spec.RenewTime = now()
		renewed, err := leases.Update(ctx, lease, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) { // leasesvc writes the Lease, too
			renewed, err = leases.Get(ctx, nodeName, metav1.GetOptions{})
		}
		if err == nil {
			lease = renewed
		}
		return err
	})
}

func now() *metav1.MicroTime { return &metav1.MicroTime{Time: time.Now()} }

func (k *kubelet) writeStatus(ctx context.Context) error {
	return each(ctx, renewPeriod, func() error {
		patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","message":"kubelet is posting ready status","lastHeartbeatTime":%q}]}}`,
			time.Now().UTC().Format(time.RFC3339))
		_, err := k.client.CoreV1().Nodes().Patch(ctx, nodeName, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		return err
	})
}

// each calls work at once and then periodically, until it fails or ctx ends.
func each(ctx context.Context, period time.Duration, work func() error) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		if err := work(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

type watchFunc func(context.Context, metav1.ListOptions) (watch.Interface, error)

type watched struct {
	open    watchFunc
	options metav1.ListOptions
}

// watches are those of a kubelet: its Node, its Pods, Services, and each Secret.
func (k *kubelet) watches() []watched {
	core := k.client.CoreV1()
	named := func(field, name string) metav1.ListOptions {
		return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(field, name).String()}
	}
	all := []watched{
		{core.Nodes().Watch, named(metav1.ObjectNameField, nodeName)},
		{core.Pods("").Watch, named("spec.nodeName", nodeName)},
		{core.Services("").Watch, metav1.ListOptions{}},
	}
	for i := range k.node.cfg.watches {
		all = append(all, watched{core.Secrets("default").Watch, named(metav1.ObjectNameField, secretName(i))})
	}
	return all
}

// follow reads a watch until ctx ends.
func follow(ctx context.Context, w watched) error {
	stream, err := w.open(ctx, w.options)
	if err != nil {
		return err
	}
	defer stream.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, open := <-stream.ResultChan():
			if !open {
				return errors.New("the watch ended")
			}
		}
	}
}

// burst reads Secrets in parallel.
func (k *kubelet) burst(ctx context.Context) error {
	failures := make([]error, k.node.cfg.burst)
	var group sync.WaitGroup
	for i := range failures {
		group.Go(func() {
			_, failures[i] = k.client.CoreV1().Secrets("default").Get(ctx, secretName(i%k.node.cfg.watches), metav1.GetOptions{})
		})
	}
	group.Wait()
	return errors.Join(failures...)
}
