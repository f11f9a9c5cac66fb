package resources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	trivetv1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/simulate"
	"github.com/trivet-dev/trivet/test/lab/worldtest"
)

const (
	clusterName = "resources"
	namespace   = "demo"
	// startTimeout is well above the time until all services work on a busy machine.
	startTimeout = 2 * time.Minute
	// requestTimeout bounds the test's own requests.
	requestTimeout = 15 * time.Second
	pollEvery      = 20 * time.Millisecond
	renewalsEvery  = 100 * time.Millisecond
)

// world is a control plane with the servers that a test starts.
type world struct {
	*testing.T
	dir        string
	cluster    *devcluster.Cluster
	kubeconfig string
	kube       kubernetes.Interface // nil beside a simulated kube-apiserver
	reviews    *reviews             // of a simulated kube-apiserver
	servers    []*replica
}

// newWorld starts etcd, and a real or a simulated kube-apiserver. The test's cleanup ends all
// processes.
func newWorld(t *testing.T, realAPIServer bool) *world {
	t.Helper()
	w := &world{T: t, dir: t.TempDir()}
	if *keep != "" {
		w.dir = filepath.Join(*keep, strings.ReplaceAll(t.Name(), "/", "-"))
		if err := errors.Join(os.RemoveAll(w.dir), os.MkdirAll(w.dir, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var err error
	if w.cluster, err = devcluster.Start(ctx, devcluster.Config{EtcdOnly: !realAPIServer}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	if !realAPIServer {
		w.reviews = &reviews{of: map[string]int{}}
		w.kubeconfig = emptyAPIServer(t, w.dir, w.reviews)
	}
	t.Cleanup(func() {
		for _, s := range w.servers {
			s.Kill()
			if t.Failed() && *keep == "" {
				t.Logf("%s said last:\n%s", s.Name, s.lastLines())
			}
		}
	})
	if !realAPIServer {
		return w
	}
	w.kubeconfig = w.cluster.Kubeconfig()
	config := w.cluster.RESTConfig()
	config.WarningHandler, config.Timeout = rest.NoWarnings{}, requestTimeout
	if w.kube, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	return w
}

// emptyAPIServer starts a simulated kube-apiserver without objects, and returns its kubeconfig. Its
// watches tell nothing. It answers reviews, and accepts no write.
func emptyAPIServer(t *testing.T, dir string, reviews http.Handler) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/readyz":
			fmt.Fprint(w, "ok")
		case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "reviews"):
			reviews.ServeHTTP(w, r)
		case r.Method != http.MethodGet:
			http.Error(w, "read-only", http.StatusForbidden)
		case r.URL.Query().Get("sendInitialEvents") == "true":
			http.Error(w, "no streamed lists", http.StatusUnprocessableEntity)
		case r.URL.Query().Get("watch") != "":
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
		}
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	path := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: server.URL}},
		Contexts:       map[string]*clientcmdapi.Context{"c": {Cluster: "c"}},
		CurrentContext: "c",
	}, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// simulated returns the objects of package simulate.
func (w *world) simulated(nodes, services, pods int) *simulate.Fleet {
	w.Helper()
	fleet := simulate.New(simulate.Config{Nodes: nodes, Services: services, Pods: pods, Namespace: namespace, Seed: 1}, w.kube, slog.New(slog.DiscardHandler))
	if err := fleet.Create(context.Background()); err != nil {
		w.Fatal(err)
	}
	return fleet
}

// await polls a condition until it holds, and fails the test with its last error after a time.
func (w *world) await(within time.Duration, condition func(context.Context) error) (took time.Duration) {
	w.Helper()
	return worldtest.Await(w.T, within, condition)
}

// dial returns a connection without TLS, which the test's cleanup closes.
func (w *world) dial(address string, options ...grpc.DialOption) *grpc.ClientConn {
	w.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = conn.Close() })
	return conn
}

// unhealthy returns how the gateway's status differs from that of a cluster in which all services
// work. Problems in known are ignored.
func unhealthy(ctx context.Context, gateway *grpc.ClientConn, replicas map[string]int, known map[string]bool) error {
	reply, err := worldtest.Working(ctx, gateway, replicas)
	if err != nil {
		return err
	}
	if len(reply.GetMissing()) > 0 {
		return fmt.Errorf("missing: %v", reply.GetMissing())
	}
	for _, problem := range reply.GetStatus().GetVerdict().GetProblems() {
		if !known[problem.GetCode()] {
			return fmt.Errorf("the gateway reports %s: %s", problem.GetCode(), problem.GetMessage())
		}
	}
	return nil
}

// problems returns the reasons that the gateway's verdict has now.
func problems(ctx context.Context, gateway *grpc.ClientConn) (map[string]bool, error) {
	reply, err := gatewayv1.NewClusterServiceClient(gateway).GetClusterStatus(ctx, &gatewayv1.GetClusterStatusRequest{})
	reasons := map[string]bool{}
	for _, problem := range reply.GetStatus().GetVerdict().GetProblems() {
		reasons[problem.GetCode()] = true
	}
	if reply.GetStatus().GetVerdict().GetState() == trivetv1.Verdict_STATE_FAILED {
		err = errors.Join(err, fmt.Errorf("the verdict is that the cluster has failed: %v", slices.Sorted(maps.Keys(reasons))))
	}
	return reasons, err
}

// marked returns the Nodes whose condition Ready is not True.
func (w *world) marked() []string {
	w.Helper()
	var found []string
	options := metav1.ListOptions{Limit: 1000}
	for {
		list, err := w.kube.CoreV1().Nodes().List(context.Background(), options)
		if err != nil {
			w.Fatal(err)
		}
		for _, node := range list.Items {
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
					found = append(found, node.Name)
				}
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return found
		}
	}
}
