package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"

	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/deploy"
	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/roles"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// controlPlane is the cluster that Trivet serves: started here, or an existing one.
type controlPlane struct {
	kubeconfig string // the administrator's
	etcd       etcdconn.Config
	cluster    *devcluster.Cluster // nil for an existing cluster
	second     *devcluster.Peer    // a second kube-apiserver; nil without a demo
	advertise  string              // address of kube-apiserver for Pods; empty lets bootstrapsvc find it
	// clientCA has the authorities of the cluster's users, as PEM; empty for an existing cluster.
	clientCA []byte
	dir      string
}

func newControlPlane(ctx context.Context, opts Options, dir string) (*controlPlane, error) {
	if opts.Kubeconfig != "" {
		return &controlPlane{kubeconfig: opts.Kubeconfig, etcd: opts.Etcd}, nil
	}
	cluster, err := devcluster.Start(ctx, devcluster.Config{
		AssetsDir: opts.AssetsDir, DataDir: dir, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	etcd := etcdconn.DefaultConfig()
	etcd.Endpoints = cluster.EtcdEndpoints()
	etcd.CAFile, etcd.CertFile, etcd.KeyFile = cluster.EtcdFiles()
	control := &controlPlane{
		kubeconfig: cluster.Kubeconfig(), etcd: etcd, cluster: cluster, advertise: advertiseAddress(),
		clientCA: cluster.RESTConfig().CAData, dir: dir,
	}
	if err := roles.Apply(ctx, cluster.RESTConfig(), deploy.Files(), manifests()...); err != nil {
		return nil, errors.Join(fmt.Errorf("give the servers their roles: %w", err), cluster.Stop())
	}
	if opts.Demo {
		control.advertise = documentationAddress
		control.second, err = cluster.AddAPIServer(ctx, devcluster.PeerConfig{AdvertiseAddress: secondDocumentationAddress})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("second kube-apiserver: %w", err), cluster.Stop())
		}
	}
	return control, nil
}

// manifests are the folders of deploy/ whose roles the servers get: those of the loops that run in
// a cluster without controllers.
func manifests() []string {
	return []string{"base", "components/node-health", "components/endpointslice-mirroring"}
}

// kubeconfigOf returns the kubeconfig of a server. In a cluster that was started here it is that of
// the service account of deploy/, which has no other rights; an existing cluster has one for all.
func (c *controlPlane) kubeconfigOf(server string) (string, error) {
	if c.cluster == nil {
		return c.kubeconfig, nil
	}
	user, groups := roles.User(server)
	path := filepath.Join(c.dir, "kubeconfig-"+server)
	return path, c.cluster.WriteKubeconfig(path, user, groups...)
}

// secondKubeconfigOf returns the kubeconfig of a server that reaches the second kube-apiserver
// only.
func (c *controlPlane) secondKubeconfigOf(server string) (string, error) {
	user, groups := roles.User(server)
	path := filepath.Join(c.dir, "kubeconfig-"+server+"-2")
	return path, c.second.WriteKubeconfig(path, user, groups...)
}

// documentationAddress is the endpoint on a machine with loopback addresses only, because
// Kubernetes rejects those in endpoints. It is of TEST-NET-1 (RFC 5737) and not reachable; no
// simulated Pod uses it.
const documentationAddress = "192.0.2.1"

// secondDocumentationAddress is the endpoint of the second kube-apiserver of a demo.
const secondDocumentationAddress = "192.0.2.2"

func advertiseAddress() string {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.IsGlobalUnicast() {
			return "" // bootstrapsvc chooses one
		}
	}
	return documentationAddress
}

func (c *controlPlane) describe() string {
	if c.cluster == nil {
		return "existing cluster of " + c.kubeconfig
	}
	if c.second != nil {
		return fmt.Sprintf("etcd and two kube-apiservers, one at %s", c.cluster.RESTConfig().Host)
	}
	return fmt.Sprintf("etcd and kube-apiserver at %s", c.cluster.RESTConfig().Host)
}

// adminConfig returns the client configuration for the simulated fleet, whose writes are not
// fenced.
func (c *controlPlane) adminConfig() (*rest.Config, error) {
	cfg := kubeconn.DefaultConfig()
	cfg.Kubeconfig = c.kubeconfig
	return kubeconn.RESTConfig(cfg)
}

func (c *controlPlane) done() <-chan struct{} {
	if c.cluster == nil {
		return nil
	}
	return c.cluster.Done()
}

func (c *controlPlane) err() error { return c.cluster.Err() }

func (c *controlPlane) stop() error {
	if c == nil || c.cluster == nil {
		return nil
	}
	return c.cluster.Stop()
}
