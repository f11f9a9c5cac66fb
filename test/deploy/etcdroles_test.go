package deploy

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/etcdroles"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// Every loop of every server does its work at an etcd with users, with the role of its server
// alone. No role reads a Secret of the cluster.
func TestEtcdRoles_EveryLoopWorksAndNoServerReadsASecret(t *testing.T) {
	cluster := testkit.OwnCluster(t, devcluster.Config{})
	testkit.EnableEtcdUsers(t, cluster, etcdroles.Of(etcdconn.KeyPrefix("default"), etcdroles.DefaultRegistry))
	applyRoles(t, cluster, render(t, everything))
	config := cluster.RESTConfig()
	config.WarningHandler = rest.NoWarnings{}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for server, busy := range map[string]func(*testing.T, place) func() error{
		"leasesvc": exerciseNodeHealth, "bootstrapsvc": exerciseBootstrap, "slicesvc": exerciseMirroring, "gateway": exerciseGateway,
	} {
		t.Run(server, func(t *testing.T) {
			in := place{cluster: cluster, kube: kube, etcd: testkit.EtcdAs(t, cluster, etcdroles.User(server)), log: &testkit.LogBuffer{}}
			round := busy(t, in)
			testkit.Eventually(t, 2*time.Minute, func() error { return errors.Join(round(), loopsWork(in)) })
			if denied := rpctypes.ErrPermissionDenied.Error(); strings.Contains(in.log.String(), denied) {
				t.Errorf("the server logs %q", denied)
			}
			expectNoSecrets(t, in.etcd)
		})
	}
}

// exerciseGateway has the gateway find a replica of another server, which it reads in etcd.
func exerciseGateway(t *testing.T, in place) func() error {
	other := in
	other.etcd, other.log = testkit.EtcdAs(t, in.cluster, etcdroles.User("slicesvc")), nil
	startSlices(t, other)
	cfg := gateway.DefaultConfig()
	cfg.HTTPListen = ""
	client := gatewayv1.NewClusterServiceClient(start(t, in, gateway.Program(&cfg)))
	return func() error {
		answer, err := client.GetClusterStatus(t.Context(), &gatewayv1.GetClusterStatusRequest{})
		if err != nil {
			return err
		}
		found := slices.ContainsFunc(answer.GetStatus().GetServices(), func(s *gatewayv1.ServiceStatus) bool {
			return s.GetService() == "slicesvc" && len(s.GetReplicas()) > 0
		})
		if !found {
			return fmt.Errorf("the gateway finds no replica of slicesvc: %v", answer)
		}
		return nil
	}
}

// loopsWork returns an error while a loop of the server fails or waits for its first success.
func loopsWork(in place) error {
	text, err := adminPage(in, "/loops")
	if err == nil && strings.Contains(text, `"last_error":`) {
		err = fmt.Errorf("a loop fails: %s", text)
	}
	return err
}

// adminPage reads a page of the admin server.
func adminPage(in place, path string) (string, error) {
	_, address, found := strings.Cut(in.log.String(), " admin=")
	if !found {
		return "", errors.New("the log does not tell the address of the admin server")
	}
	response, err := http.Get("http://" + strings.Fields(address)[0] + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, response.Status, text)
	}
	return string(text), err
}

// expectNoSecrets expects that etcd denies a user to read and to write what makes it an
// administrator of the cluster.
func expectNoSecrets(t *testing.T, config etcdconn.Config) {
	t.Helper()
	client, err := etcdconn.Connect(config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, key := range []string{"/registry/secrets/", "/registry/clusterrolebindings/", "/registry/"} {
		if _, err := client.Get(t.Context(), key, clientv3.WithPrefix()); !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("read %s: %v, want a denial", key, err)
		}
		if _, err := client.Put(t.Context(), key+"trivet", "x"); !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("write %s: %v, want a denial", key, err)
		}
	}
}
