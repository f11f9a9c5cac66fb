package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/server"
)

const (
	nodeName = "node-1"
	// certificateLife is longer than the measurement.
	certificateLife = 24 * time.Hour
	// readyTimeout bounds the time until the agent is ready.
	readyTimeout = time.Minute
	// settling is the time after the start that does not count.
	settling = 10 * time.Second
)

// node is a node without an agent, and the servers that an agent needs.
type node struct {
	cfg        config
	dir        string
	cluster    *devcluster.Cluster
	admin      kubernetes.Interface
	leasesvc   *server.Server
	healthz    *httptest.Server
	kubeconfig string
	caFile     string // of leasesvc
}

func newNode(ctx context.Context, cfg config) (n *node, err error) {
	n = &node{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if n.dir, err = os.MkdirTemp("", "bench-agent-"); err != nil {
		return n, err
	}
	n.healthz = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	if n.cluster, err = devcluster.Start(ctx, devcluster.Config{APIServerArgs: []string{"--authorization-mode=AlwaysAllow"}}); err != nil {
		return n, err
	}
	if n.admin, err = kubernetes.NewForConfig(n.cluster.RESTConfig()); err != nil {
		return n, err
	}
	n.kubeconfig = filepath.Join(n.dir, "kubelet.conf")
	if err := n.cluster.WriteKubeconfig(n.kubeconfig, "system:node:"+nodeName, "system:nodes"); err != nil {
		return n, err
	}
	if err := n.writeCertificate(); err != nil {
		return n, err
	}
	return n, n.startLeasesvc(ctx)
}

// certificateFile has the client certificate of the kubelet and its key.
func (n *node) certificateFile() string { return filepath.Join(n.dir, "kubelet-client-current.pem") }

func (n *node) writeCertificate() error {
	cert, key, err := n.cluster.ClientCertificate("system:node:"+nodeName, "system:nodes")
	if err != nil {
		return err
	}
	return os.WriteFile(n.certificateFile(), append(cert, key...), 0o600)
}

// startLeasesvc starts leasesvc with TLS, for the certificates of the cluster.
func (n *node) startLeasesvc(ctx context.Context) error {
	authority, err := certs.NewAuthority("bench", certificateLife, time.Now())
	if err != nil {
		return err
	}
	pair, err := authority.Issue(certs.ServerLeaf("leasesvc", "trivet-system", "cluster.local"), certificateLife, time.Now())
	if err != nil {
		return err
	}
	path := func(name string) string { return filepath.Join(n.dir, name) }
	admin := n.cluster.RESTConfig().TLSClientConfig
	n.caFile = path("leasesvc-ca.crt")
	for name, content := range map[string][]byte{
		n.caFile: authority.CertPEM(), path("leasesvc.crt"): pair.CertPEM, path("leasesvc.key"): pair.KeyPEM, path("clients.crt"): admin.CAData,
	} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			return err
		}
	}
	identity, err := tls.X509KeyPair(admin.CertData, admin.KeyData)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority.Certificate())
	n.leasesvc, err = server.Run(ctx, server.Config{
		ControlPlane: n.cluster, Service: "leasesvc", BinDir: n.cfg.binDir, Log: path("leasesvc.log"),
		Client: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: "leasesvc.trivet-system.svc", Certificates: []tls.Certificate{identity}},
		Args: []string{
			"--tls-cert-file=" + path("leasesvc.crt"), "--tls-key-file=" + path("leasesvc.key"), "--client-ca-file=" + path("clients.crt"),
			"--audit-log-file=",
		},
	})
	return err
}

// close stops what newNode has started. The logs stay if an error may need them.
func (n *node) close() error {
	if n.leasesvc != nil {
		n.leasesvc.Stop()
	}
	if n.healthz != nil {
		n.healthz.Close()
	}
	var err error
	if n.cluster != nil {
		err = n.cluster.Stop()
	}
	return errors.Join(err, os.RemoveAll(n.dir))
}

// agent is a running agent.
type agent struct {
	*childprocess.Child
	admin string
}

// startAgent starts an agent and waits until it is ready: leasesvc has accepted a heartbeat.
// meanwhile is called once it runs, for endpoint mode: no heartbeat goes out without a kubelet.
func (n *node) startAgent(ctx context.Context, args []string, meanwhile func() error) (*agent, error) {
	admin, err := devcluster.FreeAddress()
	if err != nil {
		return nil, err
	}
	a := &agent{admin: admin}
	log := filepath.Join(n.dir, "trivet-agent.log")
	a.Child, err = childprocess.Start(childprocess.Config{
		Path: n.cfg.agent, Log: log,
		Args: append([]string{
			"--node-name=" + nodeName, "--kubeconfig=" + n.kubeconfig, "--client-cert-file=" + n.certificateFile(), "--client-key-file=" + n.certificateFile(),
			"--leasesvc-address=" + n.leasesvc.GRPC, "--leasesvc-ca-file=" + n.caFile, "--kubelet-healthz=" + n.healthz.URL,
			"--state-dir=" + n.dir, "--admin-listen=" + admin,
		}, args...),
	})
	if err != nil {
		return nil, err
	}
	if err = meanwhile(); err == nil {
		err = a.awaitReady(ctx)
	}
	if err != nil {
		a.Stop()
		text, _ := os.ReadFile(log) // what there is of it
		return nil, fmt.Errorf("%w; its log:\n%s", err, text)
	}
	return a, nil
}

func (a *agent) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		err := a.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("trivet-agent does not become ready: %w", err)
		case <-a.Exited():
			return a.Death()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (a *agent) ready(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.admin+"/readyz", nil)
	if err != nil {
		return err
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Body, 1<<10))
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("/readyz: %s", text)
	}
	return err
}

// printKubeconfig writes the kubeconfig of the endpoint.
func (n *node) printKubeconfig(ctx context.Context, endpoint, path string) error {
	command := exec.CommandContext(ctx, n.cfg.agent, "kubeconfig", "--from="+n.kubeconfig, "--kubelet-endpoint="+endpoint, "--state-dir="+n.dir)
	text, err := command.Output()
	if err != nil {
		return fmt.Errorf("trivet-agent kubeconfig: %w", err)
	}
	return os.WriteFile(path, text, 0o600)
}
