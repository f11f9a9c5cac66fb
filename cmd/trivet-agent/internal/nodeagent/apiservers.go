package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/endpoint"
	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/kubeconfig"
	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/upstream"
	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/identity"
)

// apiservers sends requests to the kube-apiservers of the kubeconfig as the node. Before the node
// is known it refuses them. It is safe for concurrent use.
type apiservers struct {
	mu       sync.Mutex // guards the fields below
	pool     *upstream.Pool
	endpoint *endpoint.Endpoint // nil in probe mode
	waiting  error              // why there is no pool yet
}

func (a *apiservers) set(pool *upstream.Pool, e *endpoint.Endpoint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pool, a.endpoint = pool, e
}

func (a *apiservers) setWaiting(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting = err
}

func (a *apiservers) get() (*upstream.Pool, *endpoint.Endpoint, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pool == nil {
		return nil, nil, fmt.Errorf("waiting for the identity of the node: %w", cmp.Or(a.waiting, errors.New("the agent has just started")))
	}
	return a.pool, a.endpoint, nil
}

// RoundTrip implements http.RoundTripper; the host of the request does not matter.
func (a *apiservers) RoundTrip(r *http.Request) (*http.Response, error) {
	pool, _, err := a.get()
	if err != nil {
		return nil, err
	}
	return pool.RoundTrip(r)
}

// check is nil while a kube-apiserver is ready.
func (a *apiservers) check() error {
	pool, _, err := a.get()
	if err != nil {
		return err
	}
	if !pool.HasCertificate() {
		return errors.New("the node has no valid certificate; check the kubelet's registration and the client certificate of --kubeconfig")
	}
	var problems []error
	for _, server := range pool.Snapshot() {
		if server.Ready {
			return nil
		}
		problems = append(problems, fmt.Errorf("%s: %s", server.Address, cmp.Or(server.Error, "not probed yet")))
	}
	return errors.Join(problems...)
}

func (a *apiservers) detail() string {
	pool, e, err := a.get()
	if err != nil {
		return ""
	}
	var parts []string
	for _, server := range pool.Snapshot() {
		if server.Current {
			parts = append(parts, "requests go to "+server.Address)
		}
	}
	if e == nil {
		return strings.Join(parts, "; ")
	}
	snapshot := e.Snapshot()
	if !snapshot.PassthroughSince.IsZero() {
		parts = append(parts, "Lease writes pass to kube-apiserver, since "+ago(snapshot.PassthroughSince))
	}
	if !snapshot.CutOffSince.IsZero() {
		parts = append(parts, "no request of the kubelet was served since "+ago(snapshot.CutOffSince))
	}
	return strings.Join(append(parts, "the kubelet last wrote its Lease "+ago(snapshot.LastWrite)), "; ")
}

// runAPIServers waits for the kubeconfig and the name of the node. Then it runs the pool of
// kube-apiservers and, in endpoint mode, the endpoint until ctx ends.
func (n *node) runAPIServers(ctx context.Context) error {
	file, name, err := n.awaitKubeconfig(ctx)
	if err != nil {
		return nil // ctx has ended
	}
	pool, err := upstream.New(upstream.Config{
		Kubeconfig: file, Node: name, Discover: n.cfg.Endpoint.DiscoverAPIServers, StateDir: n.cfg.StateDir, Logger: n.logger,
	})
	if err != nil {
		return err
	}
	if n.cfg.Endpoint.Listen == "" {
		n.apiservers.set(pool, nil)
		return pool.Run(ctx)
	}
	listener, err := inheritedListener(n.cfg.Endpoint.Listen)
	if err != nil {
		return err
	}
	served, err := endpoint.New(endpoint.Config{
		Node: name, Listen: n.cfg.Endpoint.Listen, Listener: listener, Upstream: pool, Kubeconfig: file, ClientCAFile: n.cfg.Endpoint.ClientCAFile,
		StateDir: n.cfg.StateDir, Heartbeats: n.beats, Logger: n.logger,
	})
	if err != nil {
		return err
	}
	if err := n.registry.Register(served); err != nil {
		return err
	}
	n.apiservers.set(pool, served)
	both := newParts(ctx)
	both.start("kube-apiservers", pool.Run)
	both.start("endpoint of the kubelet", served.Run)
	return both.wait()
}

// awaitKubeconfig waits until the kubeconfig can be read and the name of the node is known. A node
// that has no certificate yet is known by --node-name only.
func (n *node) awaitKubeconfig(ctx context.Context) (kubeconfig.File, string, error) {
	for logged := ""; ; {
		file, name, err := n.readKubeconfig()
		if err == nil {
			return file, name, nil
		}
		n.apiservers.setWaiting(err)
		if cause := err.Error(); cause != logged {
			logged = cause
			n.logger.Warn("the kubeconfig is not usable yet; trying again until it is", "kubeconfig", n.cfg.Kubeconfig, "error", err)
		}
		if !backoff.Sleep(ctx, retryPeriod) {
			return file, "", ctx.Err()
		}
	}
}

func (n *node) readKubeconfig() (kubeconfig.File, string, error) {
	file, err := kubeconfig.Load(n.cfg.Kubeconfig)
	if err != nil || n.cfg.NodeName != "" {
		return file, n.cfg.NodeName, err
	}
	files, err := n.cfg.credentialFiles(&file)
	if err != nil {
		return file, "", err
	}
	name, err := nodeOfCertificate(files)
	return file, name, err
}

// files returns the files of the identity at leasesvc. The kubeconfig is read each time until it
// can be: it may appear after the agent has started.
func (n *node) files() (identity.Files, error) {
	if n.cfg.Kubeconfig == "" {
		return n.cfg.credentialFiles(nil)
	}
	file, err := kubeconfig.Load(n.cfg.Kubeconfig)
	if err != nil {
		return identity.Files{}, err
	}
	return n.cfg.credentialFiles(&file)
}

// firstInherited is the file descriptor of the first socket of systemd.
const firstInherited = 3

// inheritedListener returns the socket for the kubelet that systemd holds while the agent restarts,
// so that no other program can take its port; nil if the process was started without one.
func inheritedListener(address string) (net.Listener, error) {
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	if count := os.Getenv("LISTEN_FDS"); count != "1" {
		return nil, fmt.Errorf("systemd passes %s sockets; the agent takes one, that of --kubelet-endpoint", count)
	}
	file := os.NewFile(firstInherited, "socket of systemd")
	listener, err := net.FileListener(file)
	_ = file.Close() // the listener has its own descriptor
	if err != nil {
		return nil, fmt.Errorf("socket of systemd: %w", err)
	}
	if err := checkLoopback(listener.Addr().String()); err != nil {
		_ = listener.Close() // it is not used
		return nil, fmt.Errorf("the socket of systemd: %w", err)
	}
	_, want, _ := net.SplitHostPort(address) // validated
	if _, got, _ := net.SplitHostPort(listener.Addr().String()); got != want {
		_ = listener.Close() // it is not used
		return nil, fmt.Errorf("the socket of systemd is %s, and --kubelet-endpoint is %s", listener.Addr(), address)
	}
	return listener, nil
}
