package devcluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"k8s.io/client-go/rest"
)

// PeerConfig describes a further kube-apiserver.
type PeerConfig struct {
	// AdvertiseAddress is what it tells others about itself. It still
	// listens on 127.0.0.1 only, on a port of its own.
	AdvertiseAddress string
	// Args are appended to kube-apiserver's flags after those of
	// Config.APIServerArgs, so they win.
	Args []string
}

// Peer is a further kube-apiserver on the etcd of a cluster, with the
// cluster's credentials: what one writes, the others serve. Its methods are
// safe for concurrent use. It ends with the cluster.
type Peer struct {
	cluster *Cluster
	server  *server
}

// AddAPIServer starts a further kube-apiserver and returns when it is ready.
// When it returns an error, nothing of it runs.
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
	s := newAPIServer(own, c.creds, c.apiServer.path, c.etcdURL)
	s.name = fmt.Sprintf("%s-%d", apiServerName, len(c.peers)+2)
	s.field = "the peer's port"
	c.peers = append(c.peers, s)
	return s
}

// Kubeconfig is the path of an administrator's kubeconfig that leads to this
// kube-apiserver alone.
func (p *Peer) Kubeconfig() string {
	return p.cluster.dir.File("kubeconfig-" + p.server.name)
}

// RESTConfig is as the cluster's, for this kube-apiserver alone.
func (p *Peer) RESTConfig() *rest.Config {
	config := p.cluster.RESTConfig()
	config.Host = p.url()
	return config
}

// url may be read without the lock: the port is settled by AddAPIServer.
func (p *Peer) url() string { return fmt.Sprintf("https://127.0.0.1:%d", p.server.port) }

// Stop stops this kube-apiserver in good order, as a fault; its port stays.
// Stopping what is stopped does nothing.
func (p *Peer) Stop() error { return p.cluster.stopServer(p.server) }

// Start starts it again and returns when it is ready. Starting what runs does
// nothing.
func (p *Peer) Start() error { return p.cluster.startServer(context.Background(), p.server) }

// Kill ends it as a crash does and returns when the process is gone. Killing
// what is stopped does nothing.
func (p *Peer) Kill() {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	p.server.kill()
}

// Freeze makes it hang: its port still accepts connections, by the kernel's
// hand, and nothing is answered until Thaw.
func (p *Peer) Freeze() error { return p.signal(syscall.SIGSTOP) }

// Thaw ends what Freeze began.
func (p *Peer) Thaw() error { return p.signal(syscall.SIGCONT) }

func (p *Peer) signal(signal syscall.Signal) error {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	if p.server.child == nil {
		return fmt.Errorf("send %s to %s: it is stopped", signal, p.server.name)
	}
	if err := p.server.child.process.Signal(signal); err != nil {
		return fmt.Errorf("send %s to %s: %w", signal, p.server.name, err)
	}
	return nil
}
