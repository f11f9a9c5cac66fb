package bootstrapsvc_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/bootstraptest"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	roleName     = "trivet"
	rolePassword = "of-this-test-only"
)

// permission is one line of the role in docs/deployment.md.
type permission struct {
	key, end string
	kind     clientv3.PermissionType
}

// documentedRole returns the role that docs/deployment.md gives to the client of bootstrapsvc.
func documentedRole(t *testing.T) []permission {
	t.Helper()
	file, err := os.Open("../../docs/deployment.md")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var role []permission
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		granted, found := strings.CutPrefix(lines.Text(), "etcdctl role grant-permission "+roleName+" ")
		if !found {
			continue
		}
		granted, isPrefix := strings.CutPrefix(granted, "--prefix=true ")
		kind, key, _ := strings.Cut(granted, " ")
		p := permission{key: key, kind: clientv3.PermissionType(clientv3.PermRead)}
		if kind == "readwrite" {
			p.kind = clientv3.PermissionType(clientv3.PermReadWrite)
		}
		if isPrefix {
			p.end = clientv3.GetPrefixRangeEnd(key)
		}
		role = append(role, p)
	}
	if err := lines.Err(); err != nil || len(role) == 0 {
		t.Fatalf("docs/deployment.md has the role %v, %v", role, err)
	}
	return role
}

// enableAuth gives etcd users. kube-apiserver is known by its certificate and may do anything. The
// returned client is the user of bootstrapsvc, with a role.
func enableAuth(t *testing.T, cluster *devcluster.Cluster, role []permission) (root, client *clientv3.Client) {
	t.Helper()
	root, err := cluster.EtcdClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	ctx := t.Context()
	do := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(root.UserAdd(ctx, "root", rolePassword))
	do(root.UserGrantRole(ctx, "root", "root"))
	do(root.UserAddWithOptions(ctx, "trivet", "", &clientv3.UserAddOptions{NoPassword: true})) // the name in the certificate
	do(root.UserGrantRole(ctx, "trivet", "root"))
	do(root.RoleAdd(ctx, roleName))
	for _, p := range role {
		do(root.RoleGrantPermission(ctx, roleName, p.key, p.end, p.kind))
	}
	do(root.UserAdd(ctx, "bootstrapsvc", rolePassword))
	do(root.UserGrantRole(ctx, "bootstrapsvc", roleName))
	do(root.AuthEnable(ctx))
	client, err = clientv3.New(clientv3.Config{
		Endpoints: cluster.EtcdEndpoints(), TLS: etcdTLS(t, cluster), Username: "bootstrapsvc", Password: rolePassword, DialTimeout: bootstraptest.Soon,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return root, client
}

// etcdTLS is the client certificate of kube-apiserver. A user name and a password count before it.
func etcdTLS(t *testing.T, cluster *devcluster.Cluster) *tls.Config {
	t.Helper()
	caFile, certFile, keyFile := cluster.EtcdFiles()
	ca, err := os.ReadFile(caFile)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13}
}

// The service runs against an etcd with users and exactly the documented role. Without one of the
// rights it says so, and does not call etcd unavailable.
func TestReal_DocumentedEtcdRoleSuffices(t *testing.T) {
	t.Parallel()
	cluster := testkit.OwnCluster(t, devcluster.Config{})
	root, etcd := enableAuth(t, cluster, documentedRole(t))
	member := term.Member{ID: "replica-1", Service: "bootstrapsvc", Cluster: "prod-1"}
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	candidate, err := term.New(etcd, term.Config{Member: member, Shards: 1, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(kubeconn.Fence(quiet(cluster.RESTConfig())))
	if err != nil {
		t.Fatal(err)
	}
	cfg := bootstrapsvc.DefaultConfig()
	cfg.AdvertiseAddress, cfg.APIServerPort, cfg.Endpoints.AdoptMasterLeases = "10.99.8.1", 6443, true
	service, err := bootstrapsvc.New(cfg, bootstrapsvc.Deps{
		Member: member, Kube: kube, KubeConfig: cluster.RESTConfig(), Etcd: etcd,
		Leadership: candidate, Logger: logger, Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- service.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	// The endpoints are written, and every loop has made a pass without an error.
	testkit.Eventually(t, time.Minute, func() error {
		if published := service.Counts()["endpoint_addresses"]; published != 1 {
			return fmt.Errorf("%d addresses are published, want 1", published)
		}
		for _, l := range service.Loops().Status() {
			if l.State != loop.Running || l.LastError != "" {
				return fmt.Errorf("loop %s is %v: %s", l.Name, l.State, l.LastError)
			}
		}
		return service.Loops().CheckReady()
	})

	if _, err := root.RoleRevokePermission(t.Context(), roleName, "/registry/masterleases/", clientv3.GetPrefixRangeEnd("/registry/masterleases/")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, func() error {
		status := service.Loops().Status()
		i := slices.IndexFunc(status, func(l loop.Status) bool { return l.Name == "masterlease-probe" })
		if cause := status[i].LastError; !strings.Contains(cause, "etcd denies access") || strings.Contains(cause, "unavailable") {
			return fmt.Errorf("without the right to read master leases, the loop says %q", cause)
		}
		return nil
	})
}
