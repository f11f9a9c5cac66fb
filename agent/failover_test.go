package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

const fleet = 50

// replica is a leasesvc on loopback, on the real etcd and kube-apiserver.
type replica struct {
	address   string
	candidate *term.Candidate
	stop      func()
}

func startReplica(t *testing.T, cluster, id string) *replica {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	r := &replica{address: listener.Addr().String()}
	member := term.Member{ID: id, Service: leasesvc.ServiceName, Cluster: cluster, GRPCAddress: r.address, StartTime: time.Now()}
	if r.candidate, err = term.New(testkit.Etcd(t), term.Config{Member: member, Shards: 1, Logger: logger}); err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(kubeconn.Fence(testkit.Cluster(t).RESTConfig()))
	if err != nil {
		t.Fatal(err)
	}
	cfg := leasesvc.DefaultConfig()
	cfg.Classes[0].Namespace = cluster
	cfg.Classes[0].HeartbeatInterval, cfg.Classes[0].RenewInterval = time.Second, time.Second
	service, err := leasesvc.New(cfg, leasesvc.Deps{Member: member, Kube: kube, Leadership: r.candidate, Logger: logger, LoopSelection: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	r.serve(t, listener, service, logger)
	return r
}

// serve runs the replica until stop, which stops its parts in the order of a process.
func (r *replica) serve(t *testing.T, listener net.Listener, service *leasesvc.Service, logger *slog.Logger) {
	cfg := rpcserver.DefaultConfig(r.address)
	cfg.Insecure = true
	server, err := rpcserver.New(cfg, rpcserver.Deps{Logger: logger, Unvalidated: leasesvc.Unvalidated()})
	if err != nil {
		t.Fatal(err)
	}
	server.Register(service.Register)
	stopServing := background(t, func(ctx context.Context) error { return server.Serve(ctx, listener) })
	stopWorking := background(t, service.Run)
	r.stop = func() {
		stopServing()
		stopWorking()
	}
	t.Cleanup(r.stop)
}

// background runs f until the function that it returns is called, for the first time.
func background(t *testing.T, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f(ctx); err != nil {
			t.Errorf("ended: %v", err)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func dialLoopback(target string) (*grpc.ClientConn, error) {
	return grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// addNodes makes the fleet's Nodes and returns its holders.
func addNodes(t *testing.T, kube kubernetes.Interface, prefix string) []agent.Holder {
	t.Helper()
	var holders []agent.Holder
	for i := range fleet {
		h := node(fmt.Sprintf("%s-%d", prefix, i))
		object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.Name}}
		if _, err := kube.CoreV1().Nodes().Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := kube.CoreV1().Nodes().Delete(context.Background(), h.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		holders = append(holders, h)
	}
	return holders
}

// renewed returns UID and renewTime of every Lease in the namespace, once all of the fleet have been renewed after the moment.
func renewed(t *testing.T, kube kubernetes.Interface, namespace string, since time.Time) map[string]types.UID {
	t.Helper()
	uids := map[string]types.UID{}
	testkit.Eventually(t, 30*time.Second, func() error {
		list, err := kube.CoordinationV1().Leases(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, lease := range list.Items {
			if lease.Spec.RenewTime.After(since) {
				uids[lease.Name] = lease.UID
			}
		}
		if len(uids) != fleet {
			return fmt.Errorf("%d of %d leases renewed", len(uids), fleet)
		}
		return nil
	})
	return uids
}

func TestRun_HoldersOutliveTheirLeader(t *testing.T) {
	kube := testkit.Kube(t)
	namespace := testkit.Namespace(t, kube)
	holders := addNodes(t, kube, namespace)
	replicas := map[string]*replica{}
	for _, id := range []string{"replica-a", "replica-b"} {
		r := startReplica(t, namespace, id)
		replicas[r.address] = r
	}
	var targets []string
	for address := range replicas {
		targets = append(targets, address)
	}
	a := run(t, agent.Config{
		Targets: targets, Dial: dialLoopback, Holders: holders, MaxBackoff: time.Second,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	welcomeAt := func(not string) agent.Status {
		t.Helper()
		var s agent.Status
		testkit.Eventually(t, 30*time.Second, func() error {
			if s = a.Status(); s.Welcome != fleet || !s.Connected || s.Target == not {
				return fmt.Errorf("status %+v", s)
			}
			return nil
		})
		return s
	}
	first := welcomeAt("")
	before := renewed(t, kube, namespace, time.Time{})

	replicas[first.Target].stop()
	second := welcomeAt(first.Target)
	if second.Epoch <= first.Epoch {
		t.Errorf("epoch %d does not follow %d", second.Epoch, first.Epoch)
	}
	after := renewed(t, kube, namespace, time.Now())
	for name, uid := range before {
		if after[name] != uid {
			t.Errorf("lease %s was made anew", name)
		}
	}
	expectAllAlive(t, second.Target)
}

func expectAllAlive(t *testing.T, target string) {
	t.Helper()
	connection, err := dialLoopback(target)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	response, err := leasev1.NewLeaseServiceClient(connection).ListLeases(t.Context(), &leasev1.ListLeasesRequest{State: leasev1.Lease_STATE_ALIVE})
	if err != nil || len(response.Leases) != fleet {
		t.Errorf("%d holders alive at the new leader, error %v; want %d", len(response.GetLeases()), err, fleet)
	}
}
