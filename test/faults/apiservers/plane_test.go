package apiservers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/devcluster"
	"github.com/trivet-dev/trivet/internal/testkit"
)

const (
	// port is where pods are said to reach every server: one port, because the Service has one target port.
	port = "6443"
	// readTimeout bounds one look at what is published.
	readTimeout = 5 * time.Second
)

// plane is a control plane in which machines come and go, and what is published of them.
type plane struct {
	*testing.T
	cluster *devcluster.Cluster
	// kube reaches the kube-apiserver that no fault strikes.
	kube kubernetes.Interface
	// name keeps the keys of tests apart.
	name string
}

// newPlane is the control plane that all tests share.
func newPlane(t *testing.T) plane {
	t.Helper()
	return plane{T: t, cluster: testkit.Cluster(t), kube: testkit.Kube(t), name: strings.ToLower(strings.NewReplacer("_", "-", "/", "-", "=", "-").Replace(t.Name()))}
}

// machine is a kube-apiserver and the bootstrapsvc beside it, which reaches Kubernetes through that server only.
type machine struct {
	*sidecar
	plane   plane
	address string
	server  *devcluster.Peer
	args    []string
}

// machines starts kube-apiservers, all at once, and no sidecar yet.
func (p plane) machines(addresses ...string) []*machine {
	p.Helper()
	machines := make([]*machine, len(addresses))
	problems := make([]error, len(addresses))
	var starting sync.WaitGroup
	for i, address := range addresses {
		machines[i] = &machine{plane: p, address: address}
		starting.Go(func() {
			machines[i].server, problems[i] = p.cluster.AddAPIServer(p.Context(), devcluster.PeerConfig{AdvertiseAddress: address})
		})
	}
	starting.Wait()
	p.Cleanup(func() {
		for _, m := range machines {
			if m.server != nil {
				m.server.Kill()
			}
		}
	})
	if err := errors.Join(problems...); err != nil {
		p.Fatal(err)
	}
	return machines
}

// attend starts a sidecar on the machine.
func (m *machine) attend() {
	m.plane.Helper()
	m.sidecar = m.plane.sidecar(m.server.Kubeconfig(),
		append([]string{"--apiserver-advertise-address=" + m.address, "--apiserver-port=" + port}, m.args...)...)
}

// lose ends both at once, as a power cut does.
func (m *machine) lose() {
	m.kill()
	m.server.Kill()
}

// published are the addresses in the EndpointSlices of default/kubernetes that are ready, sorted; an error if the Endpoints
// object says otherwise.
func published(ctx context.Context, kube kubernetes.Interface) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	found, err := kube.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=kubernetes",
	})
	if err != nil {
		return nil, err
	}
	addresses := []string{}
	for _, slice := range found.Items {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
				addresses = append(addresses, endpoint.Addresses...)
			}
		}
	}
	slices.Sort(addresses)
	return addresses, nil
}

func inEndpoints(ctx context.Context, kube kubernetes.Interface) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	endpoints, err := kube.CoreV1().Endpoints("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	addresses := []string{}
	for _, subset := range endpoints.Subsets {
		for _, address := range subset.Addresses {
			addresses = append(addresses, address.IP)
		}
	}
	slices.Sort(addresses)
	return addresses, nil
}

// becomes waits until exactly the machines are published, in slices and in Endpoints, and returns how long that took.
func (p plane) becomes(within time.Duration, want ...*machine) time.Duration {
	p.Helper()
	addresses := addressesOf(want...)
	began := time.Now()
	testkit.Eventually(p, within, func() error {
		inSlices, err1 := published(p.Context(), p.kube)
		old, err2 := inEndpoints(p.Context(), p.kube)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if !slices.Equal(inSlices, addresses) || !slices.Equal(old, addresses) {
			return fmt.Errorf("slices have %v, Endpoints has %v, want %v", inSlices, old, addresses)
		}
		return nil
	})
	return time.Since(began)
}

func addressesOf(machines ...*machine) []string {
	addresses := []string{}
	for _, m := range machines {
		addresses = append(addresses, m.address)
	}
	slices.Sort(addresses)
	return addresses
}

// stays reports an error if an address is missing from the slices at any look, until the returned function is called: whoever
// is well must not suffer from what happens to others.
func (p plane) stays(who ...*machine) (end func()) {
	p.Helper()
	ctx, cancel := context.WithCancel(p.Context())
	var looking sync.WaitGroup
	looking.Go(func() {
		looks := 0
		for ; ctx.Err() == nil; looks++ {
			has, err := published(ctx, p.kube)
			for _, want := range addressesOf(who...) {
				if err == nil && !slices.Contains(has, want) {
					p.Errorf("%s is well and was not published; %v were", want, has)
					return
				}
			}
			pause(ctx, 20*time.Millisecond)
		}
		if looks == 0 {
			p.Error("nobody looked at what was published")
		}
	})
	return func() {
		cancel()
		looking.Wait()
	}
}

// pause lets time pass on a real system; nothing is expected to be over afterwards.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
