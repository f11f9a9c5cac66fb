package resources

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// recovery bounds the time from when etcd and kube-apiserver answer again until all services work.
const recovery = 10 * time.Second

const outageReplicas = 2

// fullWorld is a world with two replicas of each service, a gateway, nodes that beat, Services and
// Pods.
type fullWorld struct {
	*world
	gateway  *grpc.ClientConn
	agents   *beating
	probe    *probe
	replicas map[string]int
	known    map[string]bool
}

func newFullWorld(t *testing.T) *fullWorld {
	t.Helper()
	w := newWorld(t, true)
	nodes := w.simulated(20, 10, 80).Nodes()
	f := &fullWorld{world: w, replicas: map[string]int{leases: outageReplicas, bootstrap: outageReplicas, slicing: outageReplicas, gateways: 1}}
	var targets []string
	for n := range outageReplicas {
		s := w.newServer(leases, n, "--loops=*,node-health", "--shards=8")
		targets = append(targets, s.GRPC)
		sidecar := []string{"--apiserver-advertise-address=10.99.0.1", "--apiserver-port=6443"}
		if n > 0 {
			sidecar = append(sidecar, "--loops=*,-apiserver-probe") // The kube-apiserver has one.
		}
		w.newServer(bootstrap, n, sidecar...)
		w.newServer(slicing, n, "--shards=8")
	}
	g := w.newServer(gateways, 0, "--http-listen=")
	for _, s := range w.servers {
		s.start()
	}
	f.gateway = w.dial(g.GRPC)
	f.agents = w.beat(nodeHolders(nodes), targets, func(int) func(string) (*grpc.ClientConn, error) { return plaintext })
	f.probe = w.newProbe("probe", "10.250.0.1")
	w.renewedSince(f.agents, time.Now(), startTimeout)
	w.await(startTimeout, func(ctx context.Context) (err error) {
		if err = unhealthy(ctx, f.gateway, f.replicas, nil); err != nil {
			f.known, _ = problems(ctx, f.gateway) // a small cluster may have lasting warnings
			err = unhealthy(ctx, f.gateway, f.replicas, f.known)
		}
		return err
	})
	w.await(startTimeout, f.probe.change)
	w.await(startTimeout, f.probe.applied)
	return f
}

func plaintext(target string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// recover measures how long everything takes since etcd and kube-apiserver are back.
func (f *fullWorld) recover(tb *table, back time.Time) {
	f.Helper()
	address := f.addressOf("probe")
	f.await(tooLong, f.probe.change)
	f.await(tooLong, func(ctx context.Context) error {
		err := f.kube.NetworkingV1().IPAddresses().Delete(ctx, address, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	steps := []struct {
		what  string
		bound time.Duration
		holds func(context.Context) error
	}{
		{"until a change of a Pod is in its EndpointSlice", recovery, f.probe.applied},
		{"until the freed address of a Service is allocated again", recovery, func(ctx context.Context) error {
			_, err := f.kube.NetworkingV1().IPAddresses().Get(ctx, address, metav1.GetOptions{})
			return err
		}},
		{"until each agent has an accepted beat", recovery, func(context.Context) error {
			_, err := renewals(f.agents, back, nil, 0)
			return err
		}},
		{"until each replica is ready, each shard has a leader and the gateway's verdict is as before", recovery, func(ctx context.Context) error {
			return unhealthy(ctx, f.gateway, f.replicas, f.known)
		}},
		{"until the Lease of each Node is renewed", leaseBound, func(ctx context.Context) error { return f.leasesAreFresh(ctx, back) }},
	}
	took, errs := make([]time.Duration, len(steps)), make([]error, len(steps))
	var waiting sync.WaitGroup
	for i, step := range steps {
		waiting.Go(func() { took[i], errs[i] = f.until(back, step.holds) })
	}
	waiting.Wait()
	for i, step := range steps {
		if errs[i] != nil {
			f.Errorf("%s: not within %v: %v", step.what, tooLong, errs[i])
		}
		atMost(tb, step.what, took[i], step.bound, duration)
	}
	atMost(tb, "Nodes that were marked", len(f.marked()), 0, count)
}

// tooLong is well above each bound, so that the table has the figure.
const tooLong = 3 * time.Minute

// until polls a condition and returns how long after a time it held first.
func (f *fullWorld) until(since time.Time, holds func(context.Context) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), tooLong)
	defer cancel()
	for {
		err := holds(ctx)
		if err == nil || ctx.Err() != nil {
			return time.Since(since), err
		}
		testkit.Pause(ctx, 5*pollEvery)
	}
}

// leaseBound is recovery and the time after which leasesvc renews a Lease with its defaults.
const leaseBound = recovery + 24*time.Second

func (f *fullWorld) addressOf(service string) string {
	f.Helper()
	var address string
	f.await(requestTimeout, func(ctx context.Context) error {
		s, err := f.kube.CoreV1().Services(namespace).Get(ctx, service, metav1.GetOptions{})
		if err == nil {
			address = s.Spec.ClusterIP
		}
		return err
	})
	return address
}

func (f *fullWorld) leasesAreFresh(ctx context.Context, since time.Time) error {
	list, err := f.kube.CoordinationV1().Leases("kube-node-lease").List(ctx, metav1.ListOptions{LabelSelector: "!trivet.dev/write-check"})
	if err != nil {
		return err
	}
	if len(list.Items) < len(f.agents.holders) {
		return fmt.Errorf("%d Leases of %d Nodes", len(list.Items), len(f.agents.holders))
	}
	for _, lease := range list.Items {
		if lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Time.Before(since) {
			return fmt.Errorf("Lease %s was renewed at %v", lease.Name, lease.Spec.RenewTime)
		}
	}
	return nil
}

func (f *fullWorld) awaitAPIServer() {
	f.Helper()
	f.await(startTimeout, func(ctx context.Context) error {
		_, err := f.kube.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
		return err
	})
}

func TestOutage_OfEtcd(t *testing.T) {
	full(t)
	f := newFullWorld(t)
	tb := newTable(t, fmt.Sprintf("etcd is stopped for %v", *outage))
	if err := f.cluster.StopEtcd(); err != nil {
		t.Fatal(err)
	}
	testkit.Pause(context.Background(), *outage)
	if err := f.cluster.StartEtcd(); err != nil {
		t.Fatal(err)
	}
	etcd := time.Now()
	// A kube-apiserver pauses for up to two minutes before it dials etcd again. Its liveness probe
	// restarts it meanwhile in a real cluster.
	if err := f.cluster.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	if err := f.cluster.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	f.awaitAPIServer()
	back := time.Now()
	tb.add("restart of kube-apiserver after etcd is back, before which no time below begins", "%s", duration(back.Sub(etcd)))
	f.recover(tb, back)
}

func TestOutage_OfKubeAPIServer(t *testing.T) {
	full(t)
	f := newFullWorld(t)
	tb := newTable(t, fmt.Sprintf("kube-apiserver is stopped for %v", *outage))
	if err := f.cluster.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	testkit.Pause(context.Background(), *outage)
	if err := f.cluster.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	f.awaitAPIServer()
	f.recover(tb, time.Now())
}
