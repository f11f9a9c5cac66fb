// Package server runs replicas of Trivet's servers as child processes beside a control plane of
// package devcluster. A new process can take the place of one that has ended.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// Variable names the server that a test binary runs instead of its tests. Main of package worldtest
// reads it.
const Variable = "TRIVET_TEST_SERVER"

const (
	// readyTimeout bounds the time in Run until a server is ready.
	readyTimeout = 30 * time.Second
	pollEvery    = 50 * time.Millisecond
	logEndBytes  = 6000
)

// Config describes a replica. Service, Log and ControlPlane are required.
type Config struct {
	// Service is the name of the server, and Number that of the replica among its replicas.
	Service string
	Number  int
	// BinDir has the program. The default program is this test binary, whose TestMain calls Main of
	// package worldtest.
	BinDir string
	// Log is the path of the log.
	Log string
	// ControlPlane has the etcd and the kube-apiserver.
	ControlPlane *devcluster.Cluster
	// Kubeconfig is the path of the server's kubeconfig. The default is that of an administrator.
	Kubeconfig string
	// Etcd are URLs of etcd. The default are those of the control plane.
	Etcd []string
	// TLS are the server's certificate and the authority of its clients. Without them, and without
	// Client, the server works without TLS.
	TLS identity.Files
	// Client reaches the admin server with TLS, over a connection for each request. The flags of
	// TLS are in Args, if TLS is empty.
	Client *tls.Config
	// Args are added to the flags for the fields above. The last value of a flag counts.
	Args []string
	// Env is added to the environment of this process.
	Env []string
	// Grace is the time from SIGTERM to SIGKILL in Stop. The default is that of childprocess.
	Grace time.Duration
}

// Server is one replica. Its methods are safe for concurrent use.
type Server struct {
	// Service and Name are as in "leasesvc" and "leasesvc-0".
	Service, Name string
	// GRPC and Admin are the addresses, host:port, where the replica listens.
	GRPC, Admin string

	scheme string
	client *http.Client

	mu      sync.Mutex // guards the following fields
	child   childprocess.Config
	process *childprocess.Child
	starts  int
}

// New returns a replica whose process does not run yet.
func New(cfg Config) (*Server, error) {
	grpc, err1 := devcluster.FreeAddress()
	admin, err2 := devcluster.FreeAddress()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	s := &Server{
		Service: cfg.Service, Name: fmt.Sprintf("%s-%d", cfg.Service, cfg.Number), GRPC: grpc, Admin: admin, scheme: "https",
		client: &http.Client{Transport: &http.Transport{TLSClientConfig: cfg.Client, DisableKeepAlives: true}},
	}
	if cfg.Etcd == nil {
		cfg.Etcd = cfg.ControlPlane.EtcdEndpoints()
	}
	if cfg.Kubeconfig == "" {
		cfg.Kubeconfig = cfg.ControlPlane.Kubeconfig()
	}
	ca, cert, key := cfg.ControlPlane.EtcdFiles()
	args := []string{
		"--kubeconfig=" + cfg.Kubeconfig, "--etcd-endpoints=" + strings.Join(cfg.Etcd, ","),
		"--etcd-ca-file=" + ca, "--etcd-cert-file=" + cert, "--etcd-key-file=" + key,
		"--listen=" + s.GRPC, "--admin-listen=" + s.Admin, "--profiling",
	}
	if cfg.TLS != (identity.Files{}) {
		args = append(args, "--tls-cert-file="+cfg.TLS.CertFile, "--tls-key-file="+cfg.TLS.KeyFile, "--client-ca-file="+cfg.TLS.CAFile)
	} else if cfg.Client == nil {
		s.scheme = "http"
		args = append(args, "--insecure")
	}
	s.child = childprocess.Config{Name: s.Name, Args: append(args, cfg.Args...), Env: cfg.Env, Grace: cfg.Grace, Log: cfg.Log}
	if cfg.BinDir != "" {
		s.child.Path = filepath.Join(cfg.BinDir, cfg.Service)
	} else {
		s.child.Env = append(slices.Clone(cfg.Env), Variable+"="+cfg.Service)
	}
	return s, nil
}

// Run starts a replica and waits until it is ready. It kills the server after readyTimeout.
func Run(ctx context.Context, cfg Config) (*Server, error) {
	s, err := New(cfg)
	if err != nil {
		return nil, err
	}
	if err := s.Start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := s.AwaitReady(ctx); err != nil {
		s.Kill()
		return nil, err
	}
	return s, nil
}

// Start starts the next process of the replica.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil && !s.process.Gone() {
		return fmt.Errorf("%s is started while its process %d runs", s.Name, s.process.PID())
	}
	process, err := childprocess.Start(s.child)
	if err != nil {
		return err
	}
	s.process = process
	s.starts++
	return nil
}

// Change changes how the next processes are started, but not their log.
func (s *Server) Change(change func(*childprocess.Config)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.child)
}

// Process returns the present process, or the last one. It is nil before the first start.
func (s *Server) Process() *childprocess.Child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// ProcessName names the present process. The next one of the replica has another name.
func (s *Server) ProcessName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%s#%d", s.Name, s.starts)
}

// Stop ends the process in good order. It returns an error unless the process runs and exits with
// code 0, and does nothing before the first start.
func (s *Server) Stop() error { return s.Process().Stop() }

// Kill ends the process as a crash does. It does nothing without a process.
func (s *Server) Kill() { s.Process().Kill() }

// Err returns an error if the process has ended by itself.
func (s *Server) Err() error {
	if process := s.Process(); process != nil && process.Gone() && !process.Stopping() {
		return process.Death()
	}
	return nil
}

// AwaitReady returns when the server says that it is ready, or an error after its end.
func (s *Server) AwaitReady(ctx context.Context) error {
	process := s.Process()
	for {
		_, err := s.Get(ctx, "/readyz")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not become ready; see %s: %w", s.Name, s.LogFile(), err)
		case <-process.Exited():
			return process.Death()
		case <-time.After(pollEvery):
		}
	}
}

// Get returns the body of a path of the admin server.
func (s *Server) Get(ctx context.Context, path string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.scheme+"://"+s.Admin+path, nil)
	if err != nil {
		return "", err
	}
	reply, err := s.client.Do(request)
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s of %s: %s: %.500s", path, s.Name, reply.Status, body)
	}
	return string(body), err
}

// LogFile is the path of the output of all processes of the replica.
func (s *Server) LogFile() string { return s.child.Log }

// LogEnd returns the end of the output, or why it cannot be read.
func (s *Server) LogEnd() string {
	text, err := os.ReadFile(s.LogFile())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-logEndBytes):])
}
