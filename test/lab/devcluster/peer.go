package devcluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
)

// PeerConfig configures an additional kube-apiserver.
type PeerConfig struct {
	// AdvertiseAddress is its advertised address. It listens on 127.0.0.1 only, on its own port.
	AdvertiseAddress string
	// EtcdURL is where it reaches etcd, for example through a relay. Empty: etcd itself.
	EtcdURL string
	// Args are appended after Config.APIServerArgs and override them.
	Args []string
}

// Peer is an additional kube-apiserver on the etcd of a cluster, with the cluster's credentials.
// Its methods are safe for concurrent use. Cluster.Stop stops it.
type Peer struct {
	cluster *Cluster
	server  *server
}

// AddAPIServer starts an additional kube-apiserver and returns when it is ready. After an error no
// process remains.
func (c *Cluster) AddAPIServer(ctx context.Context, cfg PeerConfig) (*Peer, error) {
	if c.apiServer == nil {
		return nil, errNoServer
	}
	if _, err := netip.ParseAddr(cfg.AdvertiseAddress); err != nil {
		return nil, fmt.Errorf("PeerConfig.AdvertiseAddress: %q is not an IP address: %w", cfg.AdvertiseAddress, err)
	}
	peer := &Peer{cluster: c, server: c.newPeer(cfg)}
	if err := c.startServer(ctx, peer.server); err != nil {
		return nil, err
	}
	if err := c.writeKubeconfig(peer.Kubeconfig(), peer.url(), adminName, adminGroup); err != nil {
		return nil, errors.Join(err, peer.Stop())
	}
	return peer, nil
}

// newPeer registers the server with the cluster, so that Stop finds it.
func (c *Cluster) newPeer(cfg PeerConfig) *server {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.cfg
	own.AdvertiseAddress, own.APIServerPort = cfg.AdvertiseAddress, 0
	own.APIServerArgs = append(own.APIServerArgs[:len(own.APIServerArgs):len(own.APIServerArgs)], cfg.Args...)
	etcdURL := c.etcdURL
	if cfg.EtcdURL != "" {
		etcdURL = func() string { return cfg.EtcdURL }
	}
	s := newAPIServer(own, c.creds, c.apiServer.path, etcdURL)
	s.name = fmt.Sprintf("%s-%d", apiServerName, len(c.peers)+2)
	s.field = "the peer's port"
	c.peers = append(c.peers, s)
	return s
}

// Kubeconfig returns the path of an administrator's kubeconfig for this kube-apiserver.
func (p *Peer) Kubeconfig() string {
	return filepath.Join(p.cluster.creds.dir, "kubeconfig-"+p.server.name)
}

// RESTConfig returns an administrator's configuration for this kube-apiserver.
func (p *Peer) RESTConfig() *rest.Config {
	config := p.cluster.RESTConfig()
	config.Host = p.url()
	return config
}

// Name returns the name of this kube-apiserver in the logs of the cluster.
func (p *Peer) Name() string { return p.server.name }

// WriteKubeconfig is Cluster.WriteKubeconfig for this kube-apiserver.
func (p *Peer) WriteKubeconfig(path, commonName string, groups ...string) error {
	return p.cluster.writeKubeconfig(path, p.url(), commonName, groups...)
}

// url needs no lock, because the port does not change after AddAPIServer.
func (p *Peer) url() string { return fmt.Sprintf("https://127.0.0.1:%d", p.server.port) }

// Stop stops this kube-apiserver gracefully; its port stays. It is idempotent.
func (p *Peer) Stop() error { return p.cluster.stopServer(p.server) }

// Start restarts this kube-apiserver and returns when it is ready. It does nothing if it runs.
func (p *Peer) Start() error { return p.cluster.startServer(context.Background(), p.server) }

// Kill ends this kube-apiserver like a crash and returns when the process has ended. It is
// idempotent.
func (p *Peer) Kill() {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	p.server.kill()
}

// Freeze suspends this kube-apiserver until Thaw, and returns when no thread of it runs. The kernel
// still accepts connections on its port, without a response.
func (p *Peer) Freeze() error {
	child, err := p.child()
	if err != nil {
		return fmt.Errorf("freeze %s: %w", p.server.name, err)
	}
	return child.Freeze()
}

// Thaw resumes a frozen kube-apiserver.
func (p *Peer) Thaw() error {
	child, err := p.child()
	if err != nil {
		return fmt.Errorf("thaw %s: %w", p.server.name, err)
	}
	return child.Thaw()
}

func (p *Peer) child() (*childprocess.Child, error) {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	if p.server.child == nil {
		return nil, errors.New("it is stopped")
	}
	return p.server.child, nil
}
