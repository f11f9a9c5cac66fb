package bootstrapsvc

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/hostaddress"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// startAdoptingReplica runs a replica with --adopt-master-leases beside a kube-apiserver at address
// until the test ends. adopted answers the probes of servers without a sidecar.
func startAdoptingReplica(t *testing.T, address string, adopted apiserverscontroller.Probe) {
	t.Helper()
	etcd, err := testkit.Cluster(t).EtcdClient()
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	member := term.Member{ID: fmt.Sprintf("adopting-%d", time.Now().UnixNano()), Service: "bootstrapsvc", Cluster: "adoption"}
	candidate, err := term.New(etcd, term.Config{Member: member, Shards: 1, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	config := testkit.Cluster(t).RESTConfig()
	config.WarningHandler = rest.NoWarnings{}
	kube, err := kubernetes.NewForConfig(kubeconn.Fence(config))
	if err != nil {
		t.Fatal(err)
	}
	objects := baselinecontroller.NewKubeObjects(kube, nil)
	service, err := assemble(configured(func(c *EndpointsConfig) { c.AdoptMasterLeases = true }), Deps{
		Member: member, Leadership: candidate, Logger: logger,
	}, parts{
		allocations: emptyCluster{}, ranges: emptyRanges{}, repairs: emptyStore{},
		local:   localServer{port: 6443, address: hostaddress.Addresses{Primary: netip.MustParseAddr(address)}},
		objects: objects, keys: apiserverscontroller.NewRegistry(etcd, etcdconn.KeyPrefix("adoption"), member.ID), probe: (&fakeProber{}).Probe,
		masterLeases: apiserverscontroller.NewMasterLeaseReader(etcd, "/registry").Read, probeOf: func(netip.Addr) apiserverscontroller.Probe { return adopted },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- service.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
		etcd.Close()
	})
}

// inSlice returns the addresses in the EndpointSlice.
func inSlice(ctx context.Context, kube kubernetes.Interface) ([]string, error) {
	slices, err := kube.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{
		LabelSelector: "kubernetes.io/service-name=kubernetes",
	})
	if err != nil {
		return nil, err
	}
	var all []string
	for i := range slices.Items {
		all = append(all, apiservers.PublishedInSlices(pointersTo(slices.Items[i:i+1]))...)
	}
	return all, nil
}

func pointersTo[T any](values []T) []*T {
	var pointers []*T
	for i := range values {
		pointers = append(pointers, &values[i])
	}
	return pointers
}

// sliceMonitor watches the slice, because two writers can change it twice within a poll.
type sliceMonitor struct {
	stop context.CancelFunc
	done chan struct{}
	// empty is the longest time of an empty slice, missing is how often the address disappeared.
	empty, missing atomic.Int64
}

func monitorSlice(t *testing.T, kube kubernetes.Interface, address string) *sliceMonitor {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	changes, err := kube.DiscoveryV1().EndpointSlices("default").Watch(ctx, metav1.ListOptions{
		LabelSelector: "kubernetes.io/service-name=kubernetes",
	})
	if err != nil {
		t.Fatal(err)
	}
	v := &sliceMonitor{stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(v.done)
		defer changes.Stop()
		var emptySince time.Time // zero while the slice has addresses
		had := false
		observeEmpty := func() {
			if !emptySince.IsZero() {
				v.empty.Store(max(v.empty.Load(), int64(time.Since(emptySince))))
			}
		}
		for {
			select {
			case <-ctx.Done():
				observeEmpty()
				return
			case event, open := <-changes.ResultChan():
				if !open {
					if ctx.Err() == nil {
						t.Error("the watch of the slice ended")
					}
					return
				}
				slice, is := event.Object.(*discoveryv1.EndpointSlice)
				if !is {
					t.Errorf("the watch of the slice sent %v", event.Object)
					return
				}
				now := apiservers.PublishedInSlices([]*discoveryv1.EndpointSlice{slice})
				if event.Type == watch.Deleted {
					now = nil
				}
				has := slices.Contains(now, address)
				if had && !has {
					v.missing.Add(1)
				}
				had = has
				observeEmpty()
				switch {
				case len(now) > 0:
					emptySince = time.Time{}
				case emptySince.IsZero():
					emptySince = time.Now()
				}
			}
		}
	}()
	return v
}

func (v *sliceMonitor) end() {
	v.stop()
	<-v.done
}

// A kube-apiserver with its own reconciler knows only servers with a master lease. It removes all
// other addresses every ten seconds, and empties the endpoints when it stops as the last one.
func TestReal_MigrationFromTheOwnReconcilerHasNoGap(t *testing.T) {
	const moved, unmoved = "10.99.20.1", "10.99.20.2"
	kube := testkit.Kube(t)
	peer, err := testkit.Cluster(t).AddAPIServer(t.Context(), devcluster.PeerConfig{
		AdvertiseAddress: unmoved, Args: []string{"--endpoint-reconciler-type=lease"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = peer.Stop() })
	holds := func(want ...string) func() error {
		return func() error {
			held, err := inSlice(t.Context(), kube)
			if err == nil && !slices.Equal(held, want) {
				err = fmt.Errorf("the slice has %v, want %v", held, want)
			}
			return err
		}
	}
	testkit.Eventually(t, 30*time.Second, holds(unmoved))
	adopted := &fakeProber{}
	startAdoptingReplica(t, moved, adopted.Probe)
	testkit.Eventually(t, 20*time.Second, holds(moved, unmoved))

	monitor := monitorSlice(t, kube, moved)
	testkit.Eventually(t, time.Minute, func() error {
		if took := monitor.missing.Load(); took < 2 {
			return fmt.Errorf("the other reconciler removed the migrated server %d times, want 2 times to be sure", took)
		}
		return holds(moved, unmoved)()
	})
	adopted.set(true)
	if err := peer.Stop(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 20*time.Second, holds(moved))
	monitor.end()
	empty := time.Duration(monitor.empty.Load())
	t.Logf("longest time without any endpoint: %s", empty.Round(time.Millisecond))
	if empty > 2*time.Second {
		t.Errorf("there was no endpoint for %s, want no longer than a watch and a write take on a loaded machine", empty)
	}
}

// A master lease that a restore left is reported and not published.
func TestReal_MasterLeasesOfARestoreAreReportedAndNotPublished(t *testing.T) {
	const living, restored = "10.99.21.1", "10.99.21.2"
	kube, etcd := testkit.Kube(t), testkit.Etcd(t)
	key := "/registry/masterleases/" + restored
	if _, err := etcd.Put(t.Context(), key, storedLease(t, restored)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = etcd.Delete(context.WithoutCancel(t.Context()), key) })
	startAdoptingReplica(t, living, (&fakeProber{}).Probe)
	testkit.Eventually(t, 20*time.Second, func() error {
		held, err := inSlice(t.Context(), kube)
		if err == nil && !slices.Equal(held, []string{living}) {
			err = fmt.Errorf("the slice has %v, want only %s", held, living)
		}
		return err
	})
	keys, err := apiserverscontroller.NewMasterLeaseReader(etcd, "/registry").Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	isThere := func(k apiservers.MasterLease) bool { return k.Key == key && !k.Leased && k.Unreadable == "" }
	if !slices.ContainsFunc(keys, isThere) {
		t.Errorf("keys = %+v, want the restored one read and kept", keys)
	}
}

// storedLease is the value of a master lease in kube-apiserver's encoding.
func storedLease(t *testing.T, address string) string {
	t.Helper()
	endpoints := corev1.Endpoints{Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: address}}}}}
	raw, err := endpoints.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Endpoints"}, Raw: raw}
	encoded, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return "k8s\x00" + string(encoded)
}
