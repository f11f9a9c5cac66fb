package damage

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"os"
	"slices"
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

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// interrupter interrupts a replica at one of its writes to IPAddresses, the bitmap or the record of
// repairs. From then on, all requests of the replica to etcd and kube-apiserver fail. A nil
// interrupter does nothing.
type interrupter struct {
	mu     sync.Mutex    // guards the following fields
	writes []string      // since arm, in order
	at     int           // the number of the write to interrupt, from 1; 0 for none
	after  bool          // whether the write takes effect and only its answer is lost
	done   chan struct{} // closed at the interruption
}

func newInterrupter() *interrupter { return &interrupter{done: make(chan struct{})} }

var errInterrupted = errors.New("interrupted by the test")

// arm forgets the writes so far and sets the write to interrupt.
func (i *interrupter) arm(at int, after bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.writes, i.at, i.after = nil, at, after
}

// writesSeen returns the writes since arm.
func (i *interrupter) writesSeen() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.writes)
}

// pass sends a request unless the replica is interrupted. write describes a write, and is empty for
// any other request.
func (i *interrupter) pass(write string, send func() error) error {
	interrupts, err := i.count(write)
	if err != nil {
		return err
	}
	if err := send(); err != nil || !interrupts {
		return err
	}
	return errInterrupted
}

// count records a write. It returns an error if the request must not be sent, and true if only its
// answer must be lost.
func (i *interrupter) count(write string) (interrupts bool, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	select {
	case <-i.done:
		return false, errInterrupted
	default:
	}
	if write == "" {
		return false, nil
	}
	i.writes = append(i.writes, write)
	if len(i.writes) != i.at {
		return false, nil
	}
	close(i.done)
	if !i.after {
		return false, errInterrupted
	}
	return true, nil
}

// clients returns the clients of a replica. Their requests go through the interrupter.
func (i *interrupter) clients(t *testing.T, cluster *devcluster.Cluster) (*clientv3.Client, *rest.Config) {
	t.Helper()
	config := cluster.RESTConfig()
	if i == nil {
		etcd, err := cluster.EtcdClient()
		if err != nil {
			t.Fatal(err)
		}
		return etcd, config
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return interruptedTransport{interrupter: i, next: next}
	})
	etcd, err := clientv3.New(clientv3.Config{
		Endpoints: cluster.EtcdEndpoints(), TLS: etcdTLS(t, cluster), Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(i.unary), grpc.WithChainStreamInterceptor(i.stream),
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

// interruptedTransport sends requests to kube-apiserver.
type interruptedTransport struct {
	interrupter *interrupter
	next        http.RoundTripper
}

func (t interruptedTransport) RoundTrip(request *http.Request) (response *http.Response, err error) {
	what := ""
	if request.Method != http.MethodGet && strings.Contains(request.URL.Path, "/ipaddresses") {
		what = request.Method + " " + request.URL.Path
	}
	err = t.interrupter.pass(what, func() (err error) {
		response, err = t.next.RoundTrip(request)
		return err
	})
	if err != nil && response != nil {
		response.Body.Close()
		return nil, err
	}
	return response, err
}

func (i *interrupter) unary(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	err := i.pass(writeOf(request), func() error { return invoke(ctx, method, request, reply, connection, options...) })
	if errors.Is(err, errInterrupted) {
		return status.Error(codes.Unavailable, errInterrupted.Error())
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
func (i *interrupter) stream(ctx context.Context, description *grpc.StreamDesc, connection *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (stream grpc.ClientStream, err error) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		select {
		case <-i.done:
		case <-ctx.Done():
		}
	}()
	err = i.pass("", func() (err error) {
		stream, err = open(ctx, description, connection, method, options...)
		return err
	})
	if err != nil {
		cancel()
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return stream, nil
}
