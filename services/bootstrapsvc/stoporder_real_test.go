package bootstrapsvc_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/test/lab/bootstraptest"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// A kube-apiserver stops beside a bootstrapsvc that lives, with the flags of deploy/static-pods.
// Its address leaves the endpoints while it still takes new connections.
func TestReal_AddressLeavesBeforeKubeAPIServerRefuses(t *testing.T) {
	const staying, stopping = "10.99.22.1", "10.99.22.2"
	peer, err := testkit.Cluster(t).AddAPIServer(t.Context(), devcluster.PeerConfig{
		AdvertiseAddress: stopping, Args: []string{"--endpoint-reconciler-type=none", "--shutdown-delay-duration=10s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	keepReady := func(cfg *bootstrapsvc.Config) { cfg.Endpoints.KeepReady = true }
	startReplica(t, staying, keepReady)
	startReplicaBeside(t, stopping, peer.RESTConfig(), keepReady)
	kube := testkit.Kube(t)
	testkit.Eventually(t, bootstraptest.Soon, func() error {
		if got, err := publishedAddresses(t.Context(), kube); err != nil || !slices.Equal(got, []string{staying, stopping}) {
			return fmt.Errorf("published %v, %w, want both", got, err)
		}
		return nil
	})

	begun, stopped := time.Now(), make(chan error, 1)
	go func() { stopped <- peer.Stop() }()
	for {
		if err := connectAnew(t.Context(), peer.RESTConfig()); err != nil {
			t.Fatalf("%s after its stop began, kube-apiserver refused while its address was published: %v", time.Since(begun), err)
		}
		got, err := publishedAddresses(t.Context(), kube)
		if err == nil && !slices.Contains(got, stopping) {
			t.Logf("the address left %s after the stop began", time.Since(begun).Round(time.Millisecond))
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := connectAnew(t.Context(), peer.RESTConfig()); err != nil {
		t.Errorf("kube-apiserver refused at the moment at which its address left: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if err := connectAnew(t.Context(), peer.RESTConfig()); err == nil {
		t.Error("kube-apiserver still serves, so this test proves nothing")
	}
}

// publishedAddresses returns the sorted addresses of the EndpointSlice of default/kubernetes.
func publishedAddresses(ctx context.Context, kube kubernetes.Interface) ([]string, error) {
	found, err := kube.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var addresses []string
	for _, endpoint := range found.Endpoints {
		addresses = append(addresses, endpoint.Addresses...)
	}
	slices.SortFunc(addresses, func(a, b string) int { return netip.MustParseAddr(a).Compare(netip.MustParseAddr(b)) })
	return addresses, nil
}

// connectAnew makes one request over a connection of its own.
func connectAnew(ctx context.Context, config *rest.Config) error {
	files, err := rest.TLSConfigFor(config)
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: files, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/version", http.NoBody)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("/version answered %s", response.Status)
	}
	return nil
}
