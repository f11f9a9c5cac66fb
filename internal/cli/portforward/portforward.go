// Package portforward reaches a gateway Pod of a cluster through its kube-apiserver, as `kubectl
// port-forward` does, and reads the authorities of its certificate.
//
// A connection is a stream over a WebSocket; if the WebSocket is refused, it is a stream over SPDY.
// There is no local port, so that no other user of this machine is able to use the connection. TLS
// is not part of the connection: kube-apiserver and the kubelet relay bytes of a session between
// the command and the gateway.
package portforward

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/cli/exit"
)

const (
	// podSelector selects the Pods of the gateway as deploy/base/gateway labels them.
	podSelector = "app.kubernetes.io/name=gateway"
	// authoritiesName and authoritiesKey are where `trivet certs` puts the authorities.
	authoritiesName = "trivet-ca"
	authoritiesKey  = "ca.crt"
	// podTimeout limits the connection to one Pod, so that another one gets its turn.
	podTimeout = 5 * time.Second
)

// Gateway is the gateway of a cluster. It is safe for concurrent use.
type Gateway struct {
	config    *rest.Config
	kube      kubernetes.Interface
	namespace string

	mu   sync.Mutex // guards last
	last string     // name of the Pod of the last connection
}

// New returns the gateway whose Pods run in a namespace.
func New(config *rest.Config, kube kubernetes.Interface, namespace string) *Gateway {
	return &Gateway{config: config, kube: kube, namespace: namespace}
}

// Dial connects to the port with a name, "grpc" or "http", of a ready Pod. It tries all ready Pods
// in a random order; the Pod of the last connection comes last, because that connection was lost.
func (g *Gateway) Dial(ctx context.Context, portName string) (net.Conn, error) {
	pods, err := g.readyPods(ctx)
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, pod := range g.ordered(pods) {
		conn, err := g.dialPod(ctx, pod, portName)
		if err == nil {
			g.setLast(pod.Name)
			return conn, nil
		}
		if apierrors.IsForbidden(err) {
			return nil, g.forbidden(err, "create pods/portforward", "get pods/portforward")
		}
		problems = append(problems, fmt.Errorf("to Pod %s: %w", pod.Name, err))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, &exit.Error{Code: exit.Undetermined, Err: fmt.Errorf("port-forward: %w", errors.Join(problems...))}
}

func (g *Gateway) dialPod(ctx context.Context, pod corev1.Pod, portName string) (net.Conn, error) {
	port := portOf(pod, portName)
	if port == 0 {
		return nil, fmt.Errorf("no container has a port with the name %q", portName)
	}
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	return open(ctx, g.config, pod, port)
}

// Authorities returns the authorities of the gateway's certificate.
func (g *Gateway) Authorities(ctx context.Context) (*x509.CertPool, error) {
	object, err := g.kube.CoreV1().ConfigMaps(g.namespace).Get(ctx, authoritiesName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, &exit.Error{
			Code: exit.Undetermined,
			Err:  fmt.Errorf("there is no ConfigMap %s in namespace %s, which has the authorities of the gateway's certificate", authoritiesName, g.namespace),
			Try:  "create it with `trivet certs`, or give a file of the authorities by --ca-file",
		}
	case apierrors.IsForbidden(err):
		return nil, g.forbidden(err, "get configmaps/"+authoritiesName)
	case err != nil:
		return nil, fmt.Errorf("read ConfigMap %s: %w", authoritiesName, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(object.Data[authoritiesKey])) {
		return nil, &exit.Error{
			Code: exit.Undetermined,
			Err:  fmt.Errorf("ConfigMap %s/%s has no certificate in its key %s", g.namespace, authoritiesName, authoritiesKey),
			Try:  "write it again with `trivet certs`",
		}
	}
	return pool, nil
}

func (g *Gateway) readyPods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := g.kube.CoreV1().Pods(g.namespace).List(ctx, metav1.ListOptions{LabelSelector: podSelector})
	switch {
	case apierrors.IsForbidden(err):
		return nil, g.forbidden(err, "list pods")
	case err != nil:
		return nil, fmt.Errorf("list the Pods of the gateway: %w", err)
	case len(list.Items) == 0:
		return nil, &exit.Error{
			Code: exit.Undetermined,
			Err:  fmt.Errorf("there is no gateway in namespace %s: no Pod has the label %s", g.namespace, podSelector),
			Try:  "name the namespace of Trivet by --trivet-namespace, or the address of a gateway by --server",
		}
	}
	ready := slices.DeleteFunc(slices.Clone(list.Items), func(pod corev1.Pod) bool { return whyNotReady(pod) != "" })
	if len(ready) > 0 {
		return ready, nil
	}
	var states []string
	for _, pod := range list.Items {
		states = append(states, pod.Name+" "+whyNotReady(pod))
	}
	return nil, &exit.Error{
		Code: exit.Undetermined,
		Err:  fmt.Errorf("no Pod of the gateway in namespace %s is ready: %s", g.namespace, strings.Join(states, ", ")),
		Try:  fmt.Sprintf("kubectl -n %s describe pods -l %s", g.namespace, podSelector),
	}
}

// whyNotReady returns why a Pod is not ready; empty if it is ready.
func whyNotReady(pod corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "is terminating"
	}
	if pod.Status.Phase != corev1.PodRunning {
		return "is " + string(pod.Status.Phase)
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			return ""
		}
	}
	return "is not ready"
}

func portOf(pod corev1.Pod, name string) int32 {
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.Name == name {
				return port.ContainerPort
			}
		}
	}
	return 0
}

func (g *Gateway) ordered(pods []corev1.Pod) []corev1.Pod {
	rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	g.mu.Lock()
	defer g.mu.Unlock()
	slices.SortStableFunc(pods, func(a, b corev1.Pod) int {
		switch g.last {
		case a.Name:
			return 1
		case b.Name:
			return -1
		default:
			return 0
		}
	})
	return pods
}

func (g *Gateway) setLast(pod string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = pod
}

// forbidden returns the error of a missing right, with the commands that check each of the rights.
func (g *Gateway) forbidden(err error, rights ...string) error {
	var checks []string
	for _, right := range rights {
		checks = append(checks, fmt.Sprintf("`kubectl auth can-i %s -n %s`", right, g.namespace))
	}
	return &exit.Error{Code: exit.Undetermined, Err: err, Try: "ask for the right that " + strings.Join(checks, " and ") + " checks; docs/cli.md has the Role"}
}

// serversSelector selects the Pods of all servers.
const serversSelector = "app.kubernetes.io/part-of=trivet"

// Servers returns the running Pods of Trivet that have a port with a name.
func (g *Gateway) Servers(ctx context.Context, portName string) ([]corev1.Pod, error) {
	list, err := g.kube.CoreV1().Pods(g.namespace).List(ctx, metav1.ListOptions{LabelSelector: serversSelector})
	switch {
	case apierrors.IsForbidden(err):
		return nil, g.forbidden(err, "list pods")
	case err != nil:
		return nil, fmt.Errorf("list the Pods of Trivet: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool {
		return pod.Status.Phase != corev1.PodRunning || portOf(pod, portName) == 0
	}), nil
}

// DialPod connects to the port with a name of one Pod.
func (g *Gateway) DialPod(ctx context.Context, pod corev1.Pod, portName string) (net.Conn, error) {
	return g.dialPod(ctx, pod, portName)
}
