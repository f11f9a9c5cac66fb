package apiservers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/devcluster"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/internal/testkit"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
)

const (
	// port is where pods are said to reach every server: one port, because the Service has one target port.
	port = "6443"
	// readTimeout bounds one look at what is published.
	readTimeout = 5 * time.Second
)

// sidecarVariable makes this test binary a bootstrapsvc and nothing else.
const sidecarVariable = "TRIVET_APISERVERS_SIDECAR"

func TestMain(m *testing.M) {
	if os.Getenv(sidecarVariable) != "" {
		cfg := bootstrapsvc.DefaultConfig()
		os.Exit(process.Main(os.Args[1:], bootstrapsvc.Program(&cfg)))
	}
	testkit.Main(m)
}

// plane is a control plane in which machines come and go, and what is published of them.
type fixture struct {
	*testing.T
	cluster *devcluster.Cluster
	// kube reaches the kube-apiserver that no fault strikes.
	kube kubernetes.Interface
	// name keeps the keys of tests apart.
	name string
}

// newPlane is the control plane that all tests share.
func newFixture(t *testing.T) fixture {
	t.Helper()
	return fixture{T: t, cluster: testkit.Cluster(t), kube: testkit.Kube(t), name: strings.ToLower(strings.NewReplacer("_", "-", "/", "-", "=", "-").Replace(t.Name()))}
}

// machine is a kube-apiserver and the bootstrapsvc beside it, which reaches Kubernetes through that server only.
type machine struct {
	*sidecar
	fixture fixture
	address string
	server  *devcluster.Peer
	args    []string
}

// machines starts kube-apiservers, all at once, and no sidecar yet.
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

// attend starts a sidecar on the machine.
func (m *machine) startSidecar() {
	m.fixture.Helper()
	m.sidecar = m.fixture.sidecar(m.server.Kubeconfig(),
		append([]string{"--apiserver-advertise-address=" + m.address, "--apiserver-port=" + port}, m.args...)...)
}

// lose ends both at once, as a power cut does.
func (m *machine) powerOff() {
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

// becomes waits until exactly the machines are published, in slices and in Endpoints, and returns how long that took.
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
					f.Errorf("%s is well and was not published; %v were", want, has)
					return
				}
			}
			pause(ctx, 20*time.Millisecond)
		}
		if reads == 0 {
			f.Error("nobody looked at what was published")
		}
	})
	return func() {
		cancel()
		watching.Wait()
	}
}

// whoLeads returns first the machine whose sidecar leads, of two: it alone takes a call that writes.
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

// pause lets time pass on a real system; nothing is expected to be over afterwards.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
