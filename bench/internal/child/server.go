package child

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/internal/devcluster"
)

// readyTimeout bounds the time until a server is ready.
const readyTimeout = 30 * time.Second

// Server is one Trivet server.
type Server struct {
	*Child
	// GRPC and Admin are its addresses, host:port.
	GRPC, Admin string
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
	ca, cert, key := cluster.EtcdFiles()
	child, err := Start(Config{
		Path: filepath.Join(cfg.BinDir, cfg.Name), Log: cfg.Log,
		Args: append([]string{
			"--kubeconfig=" + cluster.Kubeconfig(), "--etcd-endpoints=" + strings.Join(cluster.EtcdEndpoints(), ","),
			"--etcd-ca-file=" + ca, "--etcd-cert-file=" + cert, "--etcd-key-file=" + key,
			"--listen=" + grpc, "--admin-listen=" + admin, "--insecure",
		}, cfg.Args...),
	})
	if err != nil {
		return nil, err
	}
	l := &Server{Child: child, GRPC: grpc, Admin: admin}
	if err := l.awaitReady(ctx); err != nil {
		l.Kill()
		return nil, err
	}
	return l, nil
}

func (l *Server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for !l.ready(ctx) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not become ready; see %s", l.command.Path, l.log)
		case <-l.Ended():
			return l.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

func (l *Server) ready(ctx context.Context) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.Admin+"/readyz", nil)
	if err != nil {
		return false
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	return reply.Body.Close() == nil && reply.StatusCode == http.StatusOK
}

// FreeAddress returns a loopback address with a free port.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
