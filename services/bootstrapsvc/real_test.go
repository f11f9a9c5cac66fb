package bootstrapsvc_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/term"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// soon is the time limit for immediate effects on a loaded machine.
const soon = time.Minute

// replica is one bootstrapsvc on the real etcd and kube-apiserver of the test. The server that it
// probes is a stand-in, so that a test can make it not ready.
type replica struct {
	service  *bootstrapsvc.Service
	etcd     *clientv3.Client
	notReady atomic.Bool
	stop     context.CancelFunc
	ended    chan error
}

// startReplica runs a replica for a kube-apiserver at address until the test ends. Replicas of one
// test share its keys.
func startReplica(t *testing.T, address string, options ...func(*bootstrapsvc.Config)) *replica {
	t.Helper()
	return startReplicaBeside(t, address, nil, options...)
}

// startReplicaBeside is startReplica for a replica that probes the server of a configuration; nil
// stands for the stand-in.
func startReplicaBeside(t *testing.T, address string, beside *rest.Config, options ...func(*bootstrapsvc.Config)) *replica {
	t.Helper()
	r := &replica{ended: make(chan error, 1)}
	if beside == nil {
		beside = r.apiServer(t)
	}
	etcd, err := testkit.Cluster(t).EtcdClient()
	if err != nil {
		t.Fatal(err)
	}
	r.etcd = etcd
	member := term.Member{
		ID:      "replica-" + strings.Trim(strings.NewReplacer(".", "-", ":", "-", ",", "-").Replace(address), "-") + "-" + fmt.Sprint(time.Now().UnixNano()),
		Service: "bootstrapsvc", Cluster: strings.ToLower(strings.ReplaceAll(t.Name(), "_", "-")),
	}
	logger := slog.New(slog.NewTextHandler(t.Output(), nil)).With("beside", address)
	candidate, err := term.New(etcd, term.Config{Member: member, Shards: 1, TTL: term.DefaultTTL, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(kubeconn.Fence(quiet(testkit.Cluster(t).RESTConfig())))
	if err != nil {
		t.Fatal(err)
	}
	cfg := bootstrapsvc.DefaultConfig()
	cfg.AdvertiseAddress, cfg.APIServerPort = address, 6443
	for _, option := range options {
		option(&cfg)
	}
	r.service, err = bootstrapsvc.New(cfg, bootstrapsvc.Deps{
		Member: member, Kube: kube, KubeConfig: beside, Etcd: etcd,
		Leadership: candidate, Logger: logger, Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.ended <- r.service.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-r.ended
		etcd.Close()
	})
	return r
}

func quiet(config *rest.Config) *rest.Config {
	config.WarningHandler = rest.NoWarnings{}
	return config
}

// apiServer starts the stand-in and returns how to reach it.
func (r *replica) apiServer(t *testing.T) *rest.Config {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if r.notReady.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
}

// end stops a replica in good order and waits.
func (r *replica) end(t *testing.T) {
	t.Helper()
	r.stop()
	err := <-r.ended
	r.ended <- err // for the cleanup
	if err != nil {
		t.Errorf("Run = %v", err)
	}
}

// kill disconnects a replica from etcd, so that it can neither renew its session nor clean up.
func (r *replica) kill() { r.etcd.Close() }

func (r *replica) leads() bool {
	_, known := r.service.Counts()["namespaces"]
	return known
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
	return newClients(testkit.Serve(t, r.service.Register))
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
	testkit.Eventually(t, soon, published(t, client, "10.99.0.1"))
	testkit.Eventually(t, soon, func() error {
		if !first.leads() {
			return errors.New("the first replica does not lead")
		}
		return nil
	})

	second := startReplica(t, "10.99.0.2")
	testkit.Eventually(t, soon, published(t, client, "10.99.0.1", "10.99.0.2"))
	second.end(t)
	testkit.Eventually(t, soon, published(t, client, "10.99.0.1"))

	third := startReplica(t, "10.99.0.3")
	testkit.Eventually(t, soon, published(t, client, "10.99.0.1", "10.99.0.3"))
	killed := time.Now()
	first.kill()
	client = third.client(t)
	testkit.Eventually(t, soon, published(t, client, "10.99.0.3"))
	t.Logf("a killed leader's address left after %s", time.Since(killed).Round(time.Millisecond))

	third.end(t)
	reader := startReplica(t, "10.99.0.4")
	reader.notReady.Store(true)
	if err := published(t, reader.client(t))(); err != nil {
		t.Errorf("after the last server's stop: %v", err)
	}
}

func TestReal_AddressOfAKilledSidecarExpiresWithItsSession(t *testing.T) {
	leader := startReplica(t, "10.99.1.1")
	client := leader.client(t)
	testkit.Eventually(t, soon, published(t, client, "10.99.1.1"))
	other := startReplica(t, "10.99.1.2")
	testkit.Eventually(t, soon, published(t, client, "10.99.1.1", "10.99.1.2"))

	killed := time.Now()
	other.kill()
	testkit.Eventually(t, soon, published(t, client, "10.99.1.1"))
	took := time.Since(killed)
	t.Logf("a killed sidecar's address left after %s", took.Round(time.Millisecond))
	if limit := term.DefaultTTL + 3*time.Second; took > limit {
		t.Errorf("it took %s, want at most %s", took, limit)
	}
}

func TestReal_NotReadyServerIsRemovedUnlessItIsTheLast(t *testing.T) {
	one, two := startReplica(t, "10.99.2.1"), startReplica(t, "10.99.2.2")
	client := one.client(t)
	testkit.Eventually(t, soon, published(t, client, "10.99.2.1", "10.99.2.2"))

	one.notReady.Store(true)
	testkit.Eventually(t, soon, published(t, client, "10.99.2.2"))
	two.notReady.Store(true)
	testkit.Eventually(t, soon, finds(t, client, "NO_APISERVER_READY"))
	if _, err := two.leader(one).client(t).ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := published(t, client, "10.99.2.2")(); err != nil {
		t.Error(err)
	}
	one.notReady.Store(false)
	testkit.Eventually(t, soon, published(t, client, "10.99.2.1"))
}

// leader is the replica of two that leads.
func (r *replica) leader(other *replica) *replica {
	if r.leads() {
		return r
	}
	return other
}

func TestReal_AddressOfAnotherFamilyIsLeftOut(t *testing.T) {
	right := startReplica(t, "10.99.3.1")
	client := right.client(t)
	testkit.Eventually(t, soon, published(t, client, "10.99.3.1"))
	startReplica(t, "fd99::1")
	testkit.Eventually(t, soon, finds(t, client, "ADDRESS_FAMILY_MISMATCH"))
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
	testkit.Eventually(t, soon, slicesHave("10.99.5.1", "fd99:5::1"))
	both.end(t)

	// Without dual stack, the second slice is deleted.
	testkit.Eventually(t, soon, published(t, startReplica(t, "10.99.5.2").client(t), "10.99.5.2"))
}

// isWhole says that nothing is wrong with the entry of a kube-apiserver.
func isWhole(server *bootstrapv1.APIServer) bool {
	return !slices.ContainsFunc(server.GetConditions(), func(c *metav1.Condition) bool { return c.GetType() == "Registered" })
}

func TestReal_ServersBehindOneAddressShareIt(t *testing.T) {
	shared := func(c *bootstrapsvc.Config) { c.Endpoints.SharedAddress = true }
	one, two := startReplica(t, "10.99.6.1", shared), startReplica(t, "10.99.6.1", shared)
	client := one.client(t)
	testkit.Eventually(t, soon, published(t, client, "10.99.6.1"))
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
	testkit.Eventually(t, soon, lists(true, 2, true))
	one.notReady.Store(true)
	testkit.Eventually(t, soon, lists(true, 2, false))
	if err := published(t, client, "10.99.6.1")(); err != nil {
		t.Error(err)
	}
	two.end(t)
	testkit.Eventually(t, soon, lists(false, 1, true))
	one.notReady.Store(false)
	testkit.Eventually(t, soon, lists(true, 1, true))
	if err := published(t, client, "10.99.6.1")(); err != nil {
		t.Error(err)
	}
}
