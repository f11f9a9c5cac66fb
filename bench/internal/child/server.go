package child

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// readyTimeout bounds the time until a server is ready.
const readyTimeout = 30 * time.Second

// Server is one Trivet server.
type Server struct {
	*Child
	// GRPC and Admin are its addresses, host:port.
	GRPC, Admin string

	scheme string
	client *http.Client
}

// ServerConfig is the configuration of a server.
type ServerConfig struct {
	// Name is the name of the program in BinDir.
	Name, BinDir string
	// Log is the path of its log.
	Log string
	// Args are added to the flags for the cluster and the addresses. The last value of a flag
	// counts.
	Args []string
	// Client is what clients of the admin server need for HTTPS; the flags of TLS are in Args. nil
	// starts the server with --insecure.
	Client *tls.Config
}

// StartServer starts a server beside a cluster and waits until it is ready. It kills the server
// after readyTimeout.
func StartServer(ctx context.Context, cluster *devcluster.Cluster, cfg ServerConfig) (*Server, error) {
	grpc, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	admin, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	l := &Server{GRPC: grpc, Admin: admin, scheme: "https", client: &http.Client{Transport: &http.Transport{TLSClientConfig: cfg.Client}}}
	security := []string(nil)
	if cfg.Client == nil {
		l.scheme, security = "http", []string{"--insecure"}
	}
	ca, cert, key := cluster.EtcdFiles()
	l.Child, err = Start(Config{
		Path: filepath.Join(cfg.BinDir, cfg.Name), Log: cfg.Log,
		Args: slices.Concat([]string{
			"--kubeconfig=" + cluster.Kubeconfig(), "--etcd-endpoints=" + strings.Join(cluster.EtcdEndpoints(), ","),
			"--etcd-ca-file=" + ca, "--etcd-cert-file=" + cert, "--etcd-key-file=" + key,
			"--listen=" + grpc, "--admin-listen=" + admin, "--profiling",
		}, security, cfg.Args),
	})
	if err != nil {
		return nil, err
	}
	if err := l.awaitReady(ctx); err != nil {
		l.Kill()
		return nil, err
	}
	return l, nil
}

func (l *Server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		_, err := l.Get(ctx, "/readyz")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not become ready; see %s: %w", l.command.Path, l.log, err)
		case <-l.Ended():
			return l.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Get returns the body of a path of the admin server.
func (l *Server) Get(ctx context.Context, path string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, l.scheme+"://"+l.Admin+path, nil)
	if err != nil {
		return "", err
	}
	reply, err := l.client.Do(request)
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s of %s: %s", path, l.command.Path, reply.Status)
	}
	return string(body), err
}

// FreeAddress returns a loopback address with a free port.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
