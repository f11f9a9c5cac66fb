package allocationcontroller

import (
	"fmt"
	"log/slog"
	"math/big"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// bitmapRange returns a RangeAllocation as kube-apiserver stores it.
func bitmapRange(t *testing.T, text string, offsets ...int) string {
	t.Helper()
	bits := new(big.Int)
	for _, offset := range offsets {
		bits.SetBit(bits, offset, 1)
	}
	raw, err := (&corev1.RangeAllocation{Range: text, Data: bits.Bytes()}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "RangeAllocation"}, Raw: raw}
	encoded, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return "k8s\x00" + string(encoded)
}

// clusterIP returns a Service with addresses.
func clusterIP(name string, kind corev1.ServiceType, addresses ...string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       corev1.ServiceSpec{Type: kind, ClusterIPs: addresses},
	}
}

// A cluster without IPAddress objects allocates addresses in bitmaps, one for each family. The API
// is a fake, the bitmaps are in a real etcd.
func TestControllerReal_RepairsAddressBitmapsOfOldClusters(t *testing.T) {
	etcd := testkit.Etcd(t)
	const prefix, termKey = "/registry-before-1.34", "/trivet/termtest/terms/termtest/0"
	put := func(key, value string) int64 {
		response, err := etcd.Put(t.Context(), key, value)
		if err != nil {
			t.Fatal(err)
		}
		return response.Header.Revision
	}
	put(prefix+"/services/specs/default/kubernetes", "k8s\x00uid-of-kubernetes")
	put(prefix+"/ranges/servicenodeports", bitmapRange(t, "30000-32767"))
	put(prefix+"/ranges/serviceips", bitmapRange(t, "10.0.0.0/24", 0, 5, 19))
	kube := fake.NewClientset(clusterIP("kubernetes", corev1.ServiceTypeClusterIP, "10.0.0.1"),
		clusterIP("missing", corev1.ServiceTypeClusterIP, "10.0.0.9"), clusterIP("external", corev1.ServiceTypeExternalName, "10.0.0.20"),
		clusterIP("headless", corev1.ServiceTypeClusterIP, "None"))
	discovery, ok := kube.Discovery().(*fakediscovery.FakeDiscovery)
	if !ok {
		t.Fatalf("discovery is %T", kube.Discovery())
	}
	discovery.FakedServerVersion = &version.Info{Major: "1", Minor: "32"}
	discovery.Resources = []*metav1.APIResourceList{{GroupVersion: "networking.k8s.io/v1"}}

	if _, err := etcd.Delete(t.Context(), termKey); err != nil {
		t.Fatal(err)
	}
	_, ctx, lose := termtest.NewTerm(0, put(termKey, ""))
	ranges := rangestore.New(etcd, prefix)
	r := &leadership{reporter: &fakeReporter{}, ctx: ctx, lose: lose, ended: make(chan struct{})}
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	r.Controller = New(Config{
		AutoRepair: true, FindingHistory: 10, RepairHistory: 10,
		GracePeriods: allocation.GracePeriods{Unused: time.Second, Observations: 3, Interval: 200 * time.Millisecond},
	}, Deps{
		Cluster: NewKubeCluster(kube, logger, nil), Ranges: ranges, RepairStore: repairstore.New(etcd, "/trivet/before-1.34/"), Reporter: r.reporter, Logger: logger,
	})
	go func() {
		defer close(r.ended)
		if err := r.Run(ctx, r.report); err != nil && ctx.Err() == nil {
			t.Errorf("Run = %v", err)
		}
	}()
	defer r.end()
	want, _ := rangestore.Decode([]byte(bitmapRange(t, "10.0.0.0/24", 0, 8, 19)))
	testkit.Eventually(t, 30*time.Second, func() error {
		value, err := ranges.Read(t.Context(), rangestore.ClusterIPs)
		if err != nil || value.Range.Text() != want.Text() || string(value.Range.Data()) != string(want.Data()) {
			return fmt.Errorf("range %s is %x, %w, want %s %x; %v", value.Range.Text(), value.Range.Data(), err, want.Text(), want.Data(), r.lastError())
		}
		return nil
	})
	testkit.Eventually(t, time.Minute, func() error {
		if current := r.current(t); len(current) != 0 {
			return fmt.Errorf("%v are still current", current)
		}
		return nil
	})
	response, err := etcd.Get(t.Context(), prefix+"/ranges/secondaryserviceips")
	if err != nil || len(response.Kvs) != 0 {
		t.Errorf("the range of an absent family exists: %v, %v", response, err)
	}
}
