package damage

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/devcluster"
)

// cutter interrupts a replica at one of its writes to IPAddresses, the bitmap or the record of
// repairs. From then on, all requests of the replica to etcd and kube-apiserver fail. A nil cutter
// does nothing.
type cutter struct {
	mu      sync.Mutex // guards the following fields
	writes  int        // since arm
	at      int        // the write to interrupt; 0 for none
	after   bool       // whether the write takes effect and only its answer is lost
	down    bool
	what    []string      // the writes since arm, in order
	cutDone chan struct{} // closed at the interruption
}

func newCutter() *cutter { return &cutter{cutDone: make(chan struct{})} }

var errCut = errors.New("interrupted by the test")

// arm resets the count of writes and sets the write to interrupt.
func (c *cutter) arm(at int, after bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes, c.what, c.at, c.after = 0, nil, at, after
}

// writesSeen returns the writes since arm.
func (c *cutter) writesSeen() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.what...)
}

// pass sends a request unless the replica is interrupted. what describes a write, and is empty for
// any other request.
func (c *cutter) pass(what string, send func() error) error {
	c.mu.Lock()
	if c.down {
		c.mu.Unlock()
		return errCut
	}
	isCutPoint := false
	if what != "" {
		c.writes++
		c.what = append(c.what, what)
		isCutPoint = c.writes == c.at
	}
	if isCutPoint {
		c.down = true
		close(c.cutDone)
	}
	c.mu.Unlock()
	if isCutPoint && !c.after {
		return errCut
	}
	if err := send(); err != nil || !isCutPoint {
		return err
	}
	return errCut
}

// clients returns the clients of a replica. Their requests go through the cutter.
func (c *cutter) clients(t *testing.T, cluster *devcluster.Cluster) (*clientv3.Client, *rest.Config) {
	t.Helper()
	config := cluster.RESTConfig()
	if c == nil {
		etcd, err := cluster.EtcdClient()
		if err != nil {
			t.Fatal(err)
		}
		return etcd, config
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return cutTransport{cutter: c, next: next} })
	etcd, err := clientv3.New(clientv3.Config{
		Endpoints: cluster.EtcdEndpoints(), TLS: etcdTLS(t, cluster), Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(c.unary), grpc.WithChainStreamInterceptor(c.stream),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return etcd, config
}

func etcdTLS(t *testing.T, cluster *devcluster.Cluster) *tls.Config {
	t.Helper()
	ca, cert, key := cluster.EtcdFiles()
	authority, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{pair}}
}

// cutTransport sends requests to kube-apiserver.
type cutTransport struct {
	cutter *cutter
	next   http.RoundTripper
}

func (t cutTransport) RoundTrip(request *http.Request) (response *http.Response, err error) {
	what := ""
	if request.Method != http.MethodGet && strings.Contains(request.URL.Path, "/ipaddresses") {
		what = request.Method + " " + request.URL.Path
	}
	err = t.cutter.pass(what, func() (err error) {
		response, err = t.next.RoundTrip(request)
		return err
	})
	if err != nil && response != nil {
		response.Body.Close()
		return nil, err
	}
	return response, err
}

func (c *cutter) unary(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	err := c.pass(writeOf(request), func() error { return invoke(ctx, method, request, reply, connection, options...) })
	if errors.Is(err, errCut) {
		return status.Error(codes.Unavailable, errCut.Error())
	}
	return err
}

// writeOf describes a write to the bitmap or the record of repairs. It is empty for any other
// request.
func writeOf(request any) string {
	txn, ok := request.(*pb.TxnRequest)
	if !ok {
		return ""
	}
	for _, op := range txn.Success {
		key := string(op.GetRequestPut().GetKey())
		if strings.Contains(key, "/repairs/") || strings.HasPrefix(key, "/registry/") {
			return "PUT " + key
		}
	}
	return ""
}

// stream ends watches and the keep-alive of the session at the interruption.
func (c *cutter) stream(ctx context.Context, description *grpc.StreamDesc, connection *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (stream grpc.ClientStream, err error) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		select {
		case <-c.cutDone:
		case <-ctx.Done():
		}
	}()
	err = c.pass("", func() (err error) {
		stream, err = open(ctx, description, connection, method, options...)
		return err
	})
	if err != nil {
		cancel()
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return stream, nil
}
