package bootstrapsvc_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/term"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/test/lab/bootstraptest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// replica is a replica with the clients of its RPCs.
type replica struct{ *bootstraptest.Replica }

func startReplica(t *testing.T, address string, options ...func(*bootstrapsvc.Config)) *replica {
	t.Helper()
	return startReplicaBeside(t, address, nil, options...)
}

// startReplicaBeside is startReplica for a replica that probes the server of a configuration; nil
// stands for a stand-in.
func startReplicaBeside(t *testing.T, address string, probed *rest.Config, options ...func(*bootstrapsvc.Config)) *replica {
	t.Helper()
	return &replica{bootstraptest.Start(t, bootstraptest.Options{Address: address, Probed: probed, Configure: func(cfg *bootstrapsvc.Config) {
		for _, option := range options {
			option(cfg)
		}
	}})}
}

func quiet(config *rest.Config) *rest.Config {
	config.WarningHandler = rest.NoWarnings{}
	return config
}

// clients are the clients of all services of bootstrapsvc.
type clients struct {
	bootstrapv1.BaselineServiceClient
	bootstrapv1.APIServerServiceClient
	bootstrapv1.FindingServiceClient
	bootstrapv1.RepairServiceClient
}

func newClients(connection grpc.ClientConnInterface) *clients {
	return &clients{
		BaselineServiceClient:  bootstrapv1.NewBaselineServiceClient(connection),
		APIServerServiceClient: bootstrapv1.NewAPIServerServiceClient(connection),
		FindingServiceClient:   bootstrapv1.NewFindingServiceClient(connection),
		RepairServiceClient:    bootstrapv1.NewRepairServiceClient(connection),
	}
}

func (r *replica) client(t *testing.T) *clients {
	t.Helper()
	return newClients(r.Connect(t))
}

// published returns an error unless the Endpoints object and the slices have exactly want.
func published(t *testing.T, client *clients, want ...string) func() error {
	return func() error {
		answer, err := client.GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{})
		if err != nil {
			return err
		}
		service := answer.GetBaseline().GetKubernetesService()
		if !slices.Equal(service.GetEndpointsAddresses(), want) || !slices.Equal(service.GetEndpointSliceAddresses(), want) {
			return fmt.Errorf("endpoints have %v, slices %v, want %v",
				service.GetEndpointsAddresses(), service.GetEndpointSliceAddresses(), want)
		}
		return nil
	}
}

func finds(t *testing.T, client *clients, reason string) func() error {
	return func() error {
		answer, err := client.GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{})
		if err != nil {
			return err
		}
		for _, condition := range answer.GetBaseline().GetConditions() {
			if condition.GetReason() == reason {
				return nil
			}
		}
		return fmt.Errorf("conditions are %v, want one for %s", answer.GetBaseline().GetConditions(), reason)
	}
}

func TestReal_ServersStartStopAndAreKilled(t *testing.T) {
	first := startReplica(t, "10.99.0.1")
	client := first.client(t)
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.0.1"))
	testkit.Eventually(t, bootstraptest.Soon, func() error {
		if !first.Leads() {
			return errors.New("the first replica does not lead")
		}
		return nil
	})

	second := startReplica(t, "10.99.0.2")
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.0.1", "10.99.0.2"))
	second.End(t)
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.0.1"))

	third := startReplica(t, "10.99.0.3")
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.0.1", "10.99.0.3"))
	killed := time.Now()
	first.Kill()
	client = third.client(t)
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.0.3"))
	t.Logf("a killed leader's address left after %s", time.Since(killed).Round(time.Millisecond))

	third.End(t)
	reader := startReplica(t, "10.99.0.4")
	reader.NotReady.Store(true)
	if err := published(t, reader.client(t))(); err != nil {
		t.Errorf("after the last server's stop: %v", err)
	}
}

func TestReal_AddressOfAKilledSidecarExpiresWithItsSession(t *testing.T) {
	leader := startReplica(t, "10.99.1.1")
	client := leader.client(t)
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.1.1"))
	other := startReplica(t, "10.99.1.2")
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.1.1", "10.99.1.2"))

	killed := time.Now()
	other.Kill()
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.1.1"))
	took := time.Since(killed)
	t.Logf("a killed sidecar's address left after %s", took.Round(time.Millisecond))
	if limit := term.DefaultTTL + 3*time.Second; took > limit {
		t.Errorf("it took %s, want at most %s", took, limit)
	}
}

func TestReal_NotReadyServerIsRemovedUnlessItIsTheLast(t *testing.T) {
	one, two := startReplica(t, "10.99.2.1"), startReplica(t, "10.99.2.2")
	client := one.client(t)
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.2.1", "10.99.2.2"))

	one.NotReady.Store(true)
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.2.2"))
	two.NotReady.Store(true)
	testkit.Eventually(t, bootstraptest.Soon, finds(t, client, "NO_APISERVER_READY"))
	if _, err := two.leader(one).client(t).ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := published(t, client, "10.99.2.2")(); err != nil {
		t.Error(err)
	}
	one.NotReady.Store(false)
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.2.1"))
}

// leader is the replica of two that leads.
func (r *replica) leader(other *replica) *replica {
	if r.Leads() {
		return r
	}
	return other
}

func TestReal_AddressOfAnotherFamilyIsLeftOut(t *testing.T) {
	right := startReplica(t, "10.99.3.1")
	client := right.client(t)
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.3.1"))
	startReplica(t, "fd99::1")
	testkit.Eventually(t, bootstraptest.Soon, finds(t, client, "ADDRESS_FAMILY_MISMATCH"))
	if err := published(t, client, "10.99.3.1")(); err != nil {
		t.Error(err)
	}
	answer, err := client.ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, server := range answer.GetApiservers() {
		names = append(names, server.GetName())
		if ttl := server.GetTtl().AsDuration(); ttl <= 0 || ttl > term.DefaultTTL {
			t.Errorf("TTL of %s = %s, want the rest of %s", server.GetName(), ttl, term.DefaultTTL)
		}
	}
	if want := []string{"apiservers/10.99.3.1", "apiservers/fd99::1"}; !slices.Equal(names, want) {
		t.Errorf("apiservers = %v, want %v", names, want)
	}
}

func TestReal_DualStackHasASliceOfEachFamily(t *testing.T) {
	both := startReplica(t, "10.99.5.1,fd99:5::1", func(c *bootstrapsvc.Config) { c.DualStackEndpoints = true })
	client := both.client(t)
	slicesHave := func(want ...string) func() error {
		return func() error {
			answer, err := client.GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{})
			if err != nil {
				return err
			}
			service := answer.GetBaseline().GetKubernetesService()
			if !slices.Equal(service.GetEndpointSliceAddresses(), want) || !slices.Equal(service.GetEndpointsAddresses(), want[:min(1, len(want))]) {
				return fmt.Errorf("slices have %v and endpoints %v, want %v and the first of them",
					service.GetEndpointSliceAddresses(), service.GetEndpointsAddresses(), want)
			}
			return nil
		}
	}
	testkit.Eventually(t, bootstraptest.Soon, slicesHave("10.99.5.1", "fd99:5::1"))
	both.End(t)

	// Without dual stack, the second slice is deleted.
	testkit.Eventually(t, bootstraptest.Soon, published(t, startReplica(t, "10.99.5.2").client(t), "10.99.5.2"))
}

// isWhole says that nothing is wrong with the entry of a kube-apiserver.
func isWhole(server *bootstrapv1.APIServer) bool {
	return !slices.ContainsFunc(server.GetConditions(), func(c *metav1.Condition) bool { return c.GetType() == "Registered" })
}

func TestReal_ServersBehindOneAddressShareIt(t *testing.T) {
	shared := func(c *bootstrapsvc.Config) { c.Endpoints.SharedAddress = true }
	one, two := startReplica(t, "10.99.6.1", shared), startReplica(t, "10.99.6.1", shared)
	client := one.client(t)
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.6.1"))
	lists := func(ready bool, replicas int, isRegistered bool) func() error {
		return func() error {
			answer, err := client.ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{})
			if err != nil {
				return err
			}
			servers := answer.GetApiservers()
			if len(servers) != 1 || servers[0].GetReady() != ready || isWhole(servers[0]) != isRegistered ||
				len(strings.Split(servers[0].GetReplicaId(), ", ")) != replicas {
				return fmt.Errorf("apiservers are %v, want one with %d replicas, registered = %t, ready = %t", servers, replicas, isRegistered, ready)
			}
			return nil
		}
	}
	testkit.Eventually(t, bootstraptest.Soon, lists(true, 2, true))
	one.NotReady.Store(true)
	testkit.Eventually(t, bootstraptest.Soon, lists(true, 2, false))
	if err := published(t, client, "10.99.6.1")(); err != nil {
		t.Error(err)
	}
	two.End(t)
	testkit.Eventually(t, bootstraptest.Soon, lists(false, 1, true))
	one.NotReady.Store(false)
	testkit.Eventually(t, bootstraptest.Soon, lists(true, 1, true))
	if err := published(t, client, "10.99.6.1")(); err != nil {
		t.Error(err)
	}
}
