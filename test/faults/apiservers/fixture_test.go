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

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/lab/worldtest"
)

const (
	// port is the published port of every server. All servers need the same port because the
	// Service has one target port.
	port = "6443"
	// readTimeout bounds one read of the published endpoints.
	readTimeout = 5 * time.Second
)

func TestMain(m *testing.M) { worldtest.Main(m) }

// fixture is the control plane that the machines of a test join.
type fixture struct {
	*testing.T
	cluster *devcluster.Cluster
	// kube is a client of a kube-apiserver without faults.
	kube kubernetes.Interface
	// world has the sidecars of the test. Its name separates the etcd keys of the tests.
	world *worldtest.World
}

// newFixture returns the control plane that all tests share.
func newFixture(t *testing.T) fixture { return newFixtureOn(t, nil) }

// newFixtureOn returns a control plane of its own, if it is configured.
func newFixtureOn(t *testing.T, own *devcluster.Config) fixture {
	t.Helper()
	w := worldtest.New(t, worldtest.Config{
		Plain: true, Own: own, Name: strings.ToLower(strings.NewReplacer("_", "-", "/", "-", "=", "-").Replace(t.Name())),
	})
	return fixture{T: t, cluster: w.Cluster, kube: w.Kube, world: w}
}

// machine is a kube-apiserver and its bootstrapsvc, which reaches Kubernetes only through that
// server.
type machine struct {
	*sidecar
	fixture fixture
	address string
	server  *devcluster.Peer
	args    []string
}

// machines starts kube-apiservers concurrently, without sidecars.
func (f fixture) machines(addresses ...string) []*machine {
	f.Helper()
	machines := make([]*machine, len(addresses))
	problems := make([]error, len(addresses))
	var starting sync.WaitGroup
	for i, address := range addresses {
		machines[i] = &machine{fixture: f, address: address}
		starting.Go(func() {
			machines[i].server, problems[i] = f.cluster.AddAPIServer(f.Context(), devcluster.PeerConfig{AdvertiseAddress: address})
		})
	}
	starting.Wait()
	f.Cleanup(func() {
		for _, m := range machines {
			if m.server != nil {
				m.server.Kill()
			}
		}
	})
	if err := errors.Join(problems...); err != nil {
		f.Fatal(err)
	}
	return machines
}

// startMachines starts kube-apiservers, then their sidecars in order. The first sidecar becomes the
// leader.
func (f fixture) startMachines(addresses ...string) []*machine {
	f.Helper()
	machines := f.machines(addresses...)
	for i, m := range machines {
		m.startSidecar()
		f.waitForPublished(waitTimeout, machines[:i+1]...)
	}
	return machines
}

func (m *machine) startSidecar() {
	m.fixture.Helper()
	m.sidecar = m.fixture.sidecar(m.server.Kubeconfig(),
		append([]string{"--apiserver-advertise-address=" + m.address, "--apiserver-port=" + port}, m.args...)...)
}

// powerOff kills the sidecar and the server.
func (m *machine) powerOff() {
	m.Kill()
	m.server.Kill()
}

// published returns the sorted addresses of the ready endpoints in the EndpointSlices of
// default/kubernetes.
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

func publishedInEndpoints(ctx context.Context, kube kubernetes.Interface) ([]string, error) {
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

// waitForPublished waits until exactly the given machines are published, in EndpointSlices and in
// Endpoints, and returns the time that it took.
func (f fixture) waitForPublished(within time.Duration, want ...*machine) time.Duration {
	f.Helper()
	addresses := addressesOf(want...)
	began := time.Now()
	testkit.Eventually(f, within, func() error {
		inSlices, err1 := published(f.Context(), f.kube)
		old, err2 := publishedInEndpoints(f.Context(), f.kube)
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

// waitForKeys waits until every machine has a key. An address that an earlier test published stays
// for a moment without one.
func (f fixture) waitForKeys(machines ...*machine) {
	f.Helper()
	testkit.Eventually(f, waitTimeout, func() error {
		list, err := machines[0].client.ListAPIServers(f.Context(), &bootstrapv1.ListAPIServersRequest{})
		if err != nil {
			return err
		}
		var has []string
		for _, server := range list.GetApiservers() {
			if server.GetReady() {
				has = append(has, server.GetAddress())
			}
		}
		if slices.Sort(has); !slices.Equal(has, addressesOf(machines...)) {
			return fmt.Errorf("keys are of %v, want %v", has, addressesOf(machines...))
		}
		return nil
	})
}

func addressesOf(machines ...*machine) []string {
	addresses := []string{}
	for _, m := range machines {
		addresses = append(addresses, m.address)
	}
	slices.Sort(addresses)
	return addresses
}

// requirePublished fails the test if one of the machines is missing from the EndpointSlices at any
// read. The returned function stops it.
func (f fixture) requirePublished(machines ...*machine) (end func()) {
	f.Helper()
	ctx, cancel := context.WithCancel(f.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		reads := 0
		for ; ctx.Err() == nil; reads++ {
			has, err := published(ctx, f.kube)
			for _, want := range addressesOf(machines...) {
				if err == nil && !slices.Contains(has, want) {
					f.Errorf("%s is healthy and not published; published are %v", want, has)
					return
				}
			}
			testkit.Pause(ctx, 20*time.Millisecond)
		}
		if reads == 0 {
			f.Error("the published endpoints were never read")
		}
	})
	return func() {
		cancel()
		watching.Wait()
	}
}

// leaderAndOther returns the machine of the leading sidecar first. Only the leader accepts
// ReconcileBaseline.
func (f fixture) leaderAndOther(machines []*machine) (leader, other *machine) {
	f.Helper()
	testkit.Eventually(f, waitTimeout, func() error {
		var problems []error
		for i, m := range machines {
			_, err := m.client.ReconcileBaseline(f.Context(), &bootstrapv1.ReconcileBaselineRequest{})
			if err == nil {
				leader, other = m, machines[1-i]
				return nil
			}
			problems = append(problems, err)
		}
		return errors.Join(problems...)
	})
	return leader, other
}
