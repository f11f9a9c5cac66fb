package main

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

const (
	nodeLeases = "kube-node-lease"
	// kubelets is the number of concurrent writers in a measurement without pauses.
	kubelets = 64
)

// measurePuts returns the cost of a kubelet's Lease write in kube-apiserver and etcd together.
func measurePuts(ctx context.Context, cluster *devcluster.Cluster, d time.Duration) (cost, error) {
	pids, err := childprocess.Children("etcd", "kube-apiserver")
	if err != nil {
		return cost{}, err
	}
	writers := make([]*kubelet, kubelets)
	for i := range writers {
		if writers[i], err = newKubelet(ctx, cluster, fmt.Sprintf("bench-%d", i)); err != nil {
			return cost{}, err
		}
	}
	begin := time.Now()
	return spentOn(func() (int64, error) {
		var written atomic.Int64
		group, ctx := errgroup.WithContext(ctx)
		for _, k := range writers {
			group.Go(func() error {
				for time.Since(begin) < d {
					if err := k.renew(ctx); err != nil {
						return err
					}
					written.Add(1)
				}
				return nil
			})
		}
		err := group.Wait()
		return written.Load(), err
	}, pids...)
}

// kubelet renews one Lease as a kubelet does: with a PUT in protobuf of the last answer, over its
// own connection.
type kubelet struct {
	leases coordinationclient.LeaseInterface
	last   *coordinationv1.Lease
}

func newKubelet(ctx context.Context, cluster *devcluster.Cluster, name string) (*kubelet, error) {
	client, err := ownConnection(cluster.RESTConfig())
	if err != nil {
		return nil, err
	}
	k := &kubelet{leases: client.CoordinationV1().Leases(nodeLeases)}
	duration := int32(40)
	k.last, err = k.leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &name, LeaseDurationSeconds: &duration, RenewTime: new(metav1.NowMicro()),
		},
	}, metav1.CreateOptions{})
	return k, err
}

func (k *kubelet) renew(ctx context.Context) error {
	next := k.last.DeepCopy()
	next.Spec.RenewTime = new(metav1.NowMicro())
	written, err := k.leases.Update(ctx, next, metav1.UpdateOptions{})
	if err == nil {
		k.last = written
	}
	return err
}

// ownConnection returns a client with its own connection. client-go does not share the transport of
// a configuration with a custom dialer.
func ownConnection(cfg *rest.Config) (kubernetes.Interface, error) {
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.Dial = (&net.Dialer{}).DialContext
	return kubernetes.NewForConfig(cfg)
}
