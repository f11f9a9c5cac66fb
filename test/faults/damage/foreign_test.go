package damage

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// observationTime is longer than the passes that a decision takes. With -damage.long, it is also
// longer than the grace period of leaks.
func observationTime() time.Duration {
	if *long {
		return 100 * time.Second
	}
	return 10 * time.Second
}

// An IPAddress of another controller is never changed.
func TestForeign_AddressesOfOtherControllersAreNeverChanged(t *testing.T) {
	inj := newInjector(t)
	replica := startReplica(t, replicaConfig{})
	replica.waitForAudit(t)
	others := map[string]*networkingv1.IPAddress{}
	for _, change := range []func(*networkingv1.IPAddress){
		func(a *networkingv1.IPAddress) {
			a.Labels = nil
			a.Spec.ParentRef = &networkingv1.ParentReference{Group: "gateway.networking.k8s.io", Resource: "gateways", Namespace: "default", Name: "edge"}
		},
		func(a *networkingv1.IPAddress) { a.Labels[networkingv1.LabelManagedBy] = "other.example.com" },
		func(a *networkingv1.IPAddress) { a.Labels = nil },
	} {
		object := ipAddress(inj.freeAddress(), &networkingv1.ParentReference{Resource: "services", Namespace: inj.namespace, Name: "missing"})
		change(object)
		made, err := inj.kube.NetworkingV1().IPAddresses().Create(t.Context(), object, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		inj.injectedKeys = append(inj.injectedKeys, addressKey(made.Name))
		others[made.Name] = made
	}
	testkit.Pause(t.Context(), observationTime())
	for name, before := range others {
		after, err := inj.kube.NetworkingV1().IPAddresses().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || after.ResourceVersion != before.ResourceVersion {
			t.Errorf("IPAddress %s of another controller is now %v, %v, was %v", name, after, err, before)
		}
	}
	list, err := replica.ListFindings(t.Context(), &bootstrapv1.ListFindingsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range list.GetFindings() {
		if others[finding.GetSubject()] != nil && isAutomatic(finding) {
			t.Errorf("a finding about it is repaired automatically: %v", finding)
		}
	}
}

// startCluster starts a control plane for one test and returns its clients.
func startCluster(t *testing.T, cfg devcluster.Config) (*devcluster.Cluster, *clientv3.Client, kubernetes.Interface) {
	t.Helper()
	cluster, err := devcluster.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := cluster.EtcdClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(etcd.Close(), cluster.Stop()); err != nil {
			t.Error(err)
		}
	})
	kube, err := kubernetes.NewForConfig(cluster.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	return cluster, etcd, kube
}

// An unreadable or unexpected range is reported, and its stored value is never changed.
func TestForeign_UnreadableRangesAreNeverRewritten(t *testing.T) {
	cluster, etcd, kube := startCluster(t, devcluster.Config{})
	service, err := kube.CoreV1().Services("default").Create(t.Context(), serviceOfKind("web", withPorts), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	well, err := readBitmap(t.Context(), etcd)
	if err != nil {
		t.Fatal(err)
	}
	replica := startReplica(t, replicaConfig{cluster: cluster, ports: well.object.Range})
	replica.waitForAudit(t)
	good := encode(t, well.object, asProtobuf)
	other := well.object.DeepCopy()
	other.Range = "30000-31000"
	codes := []string{"UNREADABLE", "RANGE_MISMATCH"}
	for _, c := range []struct{ name, value string }{
		{name: "truncated", value: good[:len(good)-7]},
		{name: "empty", value: ""},
		{name: "garbage", value: "\x00\x01\x02"},
		{name: "a later encoding", value: "k9s\x00" + good[4:]},
		{name: "fields of a later version", value: good + "\xaa\x06\x03new"},
		{name: "wrong kind", value: encode(t, service, asProtobuf)},
		{name: "JSON with the wrong type", value: `{"kind":"RangeAllocation","apiVersion":"v1","range":7}`},
		{name: "wrong range", value: encode(t, other, asProtobuf)},
		{name: "invalid range", value: encode(t, &corev1.RangeAllocation{Range: "ports", Data: other.Data}, asProtobuf)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := etcd.Put(t.Context(), portsKey, good); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, waitTimeout, func() error { return checkNoFindings(t, replica) })
			put, err := etcd.Put(t.Context(), portsKey, c.value)
			if err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, waitTimeout, func() error { return checkUnreadableReported(t, replica, codes) })
			after, err := etcd.Get(t.Context(), portsKey)
			if err != nil {
				t.Fatal(err)
			}
			if len(after.Kvs) != 1 || after.Kvs[0].ModRevision != put.Header.Revision {
				t.Errorf("the value was written again: %v", after.Kvs)
			}
		})
	}
	// The range is readable again and lacks the bit of the Service, which the same replica must
	// set.
	well.object.Data = nil
	if _, err := etcd.Put(t.Context(), portsKey, encode(t, well.object, asJSON)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, waitTimeout, func() error {
		now, err := readBitmap(t.Context(), etcd)
		if err == nil && !now.has(service.Spec.Ports[0].NodePort) {
			err = fmt.Errorf("the bit of port %d is not set", service.Spec.Ports[0].NodePort)
		}
		return err
	})
}

// checkNoFindings returns an error while there is a finding.
func checkNoFindings(t *testing.T, replica *replica) error {
	list, err := replica.ListFindings(t.Context(), &bootstrapv1.ListFindingsRequest{})
	if err == nil && len(list.GetFindings()) > 0 {
		err = fmt.Errorf("findings still exist: %v", list.GetFindings())
	}
	return err
}

// checkUnreadableReported returns an error unless all findings are about the node ports, none is
// repaired automatically, and one with such a code is open.
func checkUnreadableReported(t *testing.T, replica *replica, codes []string) error {
	list, err := replica.ListFindings(t.Context(), &bootstrapv1.ListFindingsRequest{})
	if err != nil {
		return err
	}
	for _, finding := range list.GetFindings() {
		switch {
		case finding.GetStore() != bootstrapv1.Store_STORE_NODE_PORTS:
			return fmt.Errorf("%v is not about the node ports", finding)
		case isAutomatic(finding):
			return fmt.Errorf("%v is repaired automatically", finding)
		case slices.Contains(codes, finding.GetCode()) && finding.GetState() == bootstrapv1.Finding_STATE_OPEN:
			return nil
		}
	}
	return fmt.Errorf("no finding reports the range: %v", list.GetFindings())
}

// Addresses of both families are repaired. Bitmaps of ClusterIPs, which no kube-apiserver reads,
// have no effect.
func TestForeign_DualStackAndStaleBitmaps(t *testing.T) {
	cluster, etcd, kube := startCluster(t, devcluster.Config{ServiceCIDR: "10.0.0.0/16,fd00:10::/112"})
	stale := encode(t, &corev1.RangeAllocation{Range: "10.0.0.0/16", Data: []byte{0xff, 0xff}}, asProtobuf)
	for _, name := range []string{"serviceips", "secondaryserviceips"} {
		if _, err := etcd.Put(t.Context(), "/registry/ranges/"+name, stale); err != nil {
			t.Fatal(err)
		}
	}
	dual := serviceOfKind("dual", plain)
	policy := corev1.IPFamilyPolicyRequireDualStack
	dual.Spec.IPFamilyPolicy = &policy
	dual, err := kube.CoreV1().Services("default").Create(t.Context(), dual, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	replica := startReplica(t, replicaConfig{cluster: cluster})
	replica.waitForAudit(t)
	for _, ip := range dual.Spec.ClusterIPs {
		if err := kube.NetworkingV1().IPAddresses().Delete(t.Context(), ip, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, waitTimeout, func() error {
			made, err := kube.NetworkingV1().IPAddresses().Get(t.Context(), ip, metav1.GetOptions{})
			if err == nil && (made.Spec.ParentRef == nil || *made.Spec.ParentRef != *parentOf(dual)) {
				err = fmt.Errorf("%s has the parent %v", ip, made.Spec.ParentRef)
			}
			return err
		})
	}
	for _, name := range []string{"serviceips", "secondaryserviceips"} {
		after, err := etcd.Get(t.Context(), "/registry/ranges/"+name)
		if err != nil {
			t.Fatal(err)
		}
		if string(after.Kvs[0].Value) != stale {
			t.Errorf("the stale bitmap %s was changed", name)
		}
	}
	list, err := replica.ListFindings(t.Context(), &bootstrapv1.ListFindingsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range list.GetFindings() {
		if strings.Contains(finding.GetStore().String(), "CLUSTER_IPS") && finding.GetState() == bootstrapv1.Finding_STATE_OPEN {
			t.Errorf("an open finding is about an unused bitmap: %v", finding)
		}
	}
}
