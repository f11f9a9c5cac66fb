package main

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

const (
	// firstPort and lastPort are the default range of node ports. All of them are used.
	firstPort, lastPort = 30000, 32767
	portsKey            = "/registry/ranges/servicenodeports"
	// writers is the number of concurrent writes.
	writers = 64
	// namespaces is the number of namespaces of the Services.
	namespaces = 100
)

// world is a cluster with many Services.
type world struct {
	cluster  *devcluster.Cluster
	etcd     *clientv3.Client
	kube     kubernetes.Interface
	template *corev1.Service // created by kube-apiserver, so that all Services have a realistic size
	services int
}

// newWorld starts a cluster and creates Services with their IPAddresses. It uses all ports. It
// writes into etcd, because writes through the API take minutes.
func newWorld(ctx context.Context, services int) (w *world, err error) {
	w = &world{services: services}
	if w.cluster, err = devcluster.Start(ctx, devcluster.Config{}); err != nil {
		return nil, err
	}
	if w.etcd, err = w.cluster.EtcdClient(); err != nil {
		return nil, errors.Join(err, w.cluster.Stop())
	}
	if w.kube, err = administrator(w.cluster.RESTConfig()); err != nil {
		return nil, errors.Join(err, w.close())
	}
	if err := w.fill(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) close() error { return errors.Join(w.etcd.Close(), w.cluster.Stop()) }

// administrator returns a client without rate limits.
func administrator(cfg *rest.Config) (kubernetes.Interface, error) {
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.WarningHandler = rest.NoWarnings{}
	return kubernetes.NewForConfig(cfg)
}

func (w *world) fill(ctx context.Context) (err error) {
	template := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "template", Labels: map[string]string{"app": "bench"}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": "bench"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
	if w.template, err = w.kube.CoreV1().Services("default").Create(ctx, template, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := w.kube.CoreV1().Services("default").Delete(ctx, "template", metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := w.fillPorts(ctx); err != nil {
		return err
	}
	// The order of kube-apiserver: the address of a Service is allocated first.
	for _, make := range []func(int) (string, runtime.Object){w.ipAddress, w.service} {
		if err := w.write(ctx, make); err != nil {
			return err
		}
	}
	return nil
}

// fillPorts sets the bits of all ports of the Services.
func (w *world) fillPorts(ctx context.Context) error {
	bits := new(big.Int)
	for i := range min(w.services, lastPort-firstPort+1) {
		bits.SetBit(bits, i, 1)
	}
	value, err := encode(&corev1.RangeAllocation{Range: fmt.Sprintf("%d-%d", firstPort, lastPort), Data: bits.Bytes()})
	if err != nil {
		return err
	}
	_, err = w.etcd.Put(ctx, portsKey, value)
	return err
}

// write writes each object in its own transaction, as kube-apiserver does. Objects of one
// transaction share a revision, and a watch that restarts within that revision misses the rest.
// kube-apiserver's repairer then deletes the IPAddresses of Services that it misses, once they are
// a minute old.
func (w *world) write(ctx context.Context, make func(int) (string, runtime.Object)) error {
	writing, ctx := errgroup.WithContext(ctx)
	writing.SetLimit(writers)
	for i := range w.services {
		key, object := make(i)
		writing.Go(func() error {
			value, err := encode(object)
			if err != nil {
				return err
			}
			_, err = w.etcd.Put(ctx, key, value)
			return err
		})
	}
	return writing.Wait()
}

// checkAddresses returns an error if an IPAddress in use was deleted.
func (w *world) checkAddresses(ctx context.Context) error {
	there, err := w.etcd.Get(ctx, "/registry/ipaddresses/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	if missing := int64(w.services) + 1 - there.Count; missing > 0 { // The Service default/kubernetes also has one.
		return fmt.Errorf("%d IPAddresses that are in use are gone: kube-apiserver's own repairer took them for unused", missing)
	}
	return nil
}

// address returns the address of the i-th Service, from 10.0.1.0 on.
func address(i int) string {
	return netip.AddrFrom4([4]byte{10, 0, byte(1 + i>>8), byte(i)}).String()
}

func place(i int) (namespace, name string) {
	return fmt.Sprintf("bench-%d", i%namespaces), fmt.Sprintf("service-%d", i)
}

func (w *world) service(i int) (key string, object runtime.Object) {
	s := w.template.DeepCopy()
	s.Namespace, s.Name = place(i)
	s.UID, s.ResourceVersion = uuid.NewUUID(), ""
	s.Spec.ClusterIP, s.Spec.ClusterIPs = address(i), []string{address(i)}
	if s.Spec.Ports[0].NodePort = int32(firstPort + i); s.Spec.Ports[0].NodePort > lastPort {
		s.Spec.Type, s.Spec.Ports[0].NodePort, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeClusterIP, 0, ""
	}
	return "/registry/services/specs/" + s.Namespace + "/" + s.Name, s
}

func (w *world) ipAddress(i int) (key string, object runtime.Object) {
	namespace, name := place(i)
	return "/registry/ipaddresses/" + address(i), &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: address(i), UID: uuid.NewUUID(), CreationTimestamp: metav1.NewTime(time.Now()),
			Labels: map[string]string{networkingv1.LabelIPAddressFamily: "IPv4", networkingv1.LabelManagedBy: "ipallocator.k8s.io"},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: namespace, Name: name}},
	}
}

// encode encodes a value as kube-apiserver stores it.
func encode(object runtime.Object) (string, error) {
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		return "", err
	}
	version := schema.GroupVersion{Group: kinds[0].Group, Version: kinds[0].Version}
	value, err := runtime.Encode(scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), version), object)
	return string(value), err
}
