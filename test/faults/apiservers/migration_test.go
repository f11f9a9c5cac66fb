package apiservers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	apiv1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// A kube-apiserver with its own endpoint reconciler is published from its master leases. Neither
// writer reverts the other.
func TestMigration_MasterLeasesAreAdopted(t *testing.T) {
	testkit.LongTest(t, 2)
	f := newFixture(t)
	server, err := f.cluster.AddAPIServer(t.Context(), devcluster.PeerConfig{
		AdvertiseAddress: "10.99.5.1", Args: []string{"--endpoint-reconciler-type=lease"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	old := &machine{fixture: f, address: "10.99.5.1", server: server}
	observer := f.sidecar(f.cluster.Kubeconfig(), "--loops=*,-apiserver-probe", "--apiserver-port="+port, "--adopt-master-leases")
	f.waitForPublished(waitTimeout, old)
	f.Helper()
	testkit.Eventually(t, waitTimeout, func() error {
		found, err := apiServerAt(t, observer, old.address)
		if err == nil && (found.GetRegistrationSource() != bootstrapv1.APIServer_REGISTRATION_SOURCE_MASTER_LEASE || !hasCondition(found, "Published", apiv1.Condition_STATUS_TRUE)) {
			err = fmt.Errorf("the replica reports about %s: %v", old.address, found)
		}
		return err
	})

	// The kube-apiserver has published its own port. Only the sidecar repairs that, once.
	testkit.Eventually(t, waitTimeout, func() error {
		if published := publishedPorts(t, f.kube); !slices.Equal(published, []string{port}) {
			return fmt.Errorf("ports %v are published, want %s", published, port)
		}
		return nil
	})

	before := resourceVersions(t, f.kube)
	end := f.requirePublished(old)
	testkit.Pause(t.Context(), 25*time.Second) // two and a half intervals of both writers
	end()
	if after := resourceVersions(t, f.kube); after != before {
		t.Errorf("without a change, the slices went from version %s to %s", before, after)
	}
}

// resourceVersions returns a string that changes with every write of the slices.
func resourceVersions(t *testing.T, kube kubernetes.Interface) string {
	t.Helper()
	var versions []string
	for _, slice := range endpointSlices(t, kube) {
		versions = append(versions, slice.Name+" "+slice.ResourceVersion)
	}
	return fmt.Sprint(versions)
}

// publishedPorts returns the ports in the slices.
func publishedPorts(t *testing.T, kube kubernetes.Interface) []string {
	t.Helper()
	var ports []string
	for _, slice := range endpointSlices(t, kube) {
		for _, port := range slice.Ports {
			ports = append(ports, fmt.Sprint(*port.Port))
		}
	}
	return ports
}

func endpointSlices(t *testing.T, kube kubernetes.Interface) []discoveryv1.EndpointSlice {
	t.Helper()
	found, err := kube.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=kubernetes",
	})
	if err != nil {
		t.Fatal(err)
	}
	return found.Items
}

// apiServerAt returns what a replica reports about the kube-apiserver at an address.
func apiServerAt(t *testing.T, replica *sidecar, address string) (*bootstrapv1.APIServer, error) {
	list, err := replica.client.ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{})
	if err != nil {
		return nil, err
	}
	for _, server := range list.GetApiservers() {
		if server.GetAddress() == address {
			return server, nil
		}
	}
	return nil, fmt.Errorf("%s is not among %v", address, list.GetApiservers())
}

func hasCondition(server *bootstrapv1.APIServer, conditionType string, status apiv1.Condition_Status) bool {
	return slices.ContainsFunc(server.GetConditions(), func(c *apiv1.Condition) bool { return c.GetType() == conditionType && c.GetStatus() == status })
}

// Keys without an etcd lease, as a restore leaves them, are reported and never published.
func TestMigration_KeysWithoutLeaseAreNotPublished(t *testing.T) {
	f := newFixture(t)
	healthy := f.machines("10.99.6.1")[0]
	healthy.args = []string{"--adopt-master-leases"}
	healthy.startSidecar()
	f.waitForPublished(waitTimeout, healthy)
	etcd := testkit.Etcd(t)
	const withoutLease, master = "10.99.6.2", "10.99.6.3"
	for key, value := range map[string]string{
		"/trivet/" + f.world.Name + "/apiservers/" + withoutLease: `{"port":6443,"ready":true,"replica":"removed"}`,
		"/registry/masterleases/" + master: `{"kind":"Endpoints","apiVersion":"v1","metadata":{"name":"` + master +
			`"},"subsets":[{"addresses":[{"ip":"` + master + `"}]}]}`,
	} {
		if _, err := etcd.Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if _, err := testkit.Etcd(t).Delete(t.Context(), "/registry/masterleases/"+master); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	for _, address := range []string{withoutLease, master} {
		testkit.Eventually(t, waitTimeout, func() error {
			found, err := apiServerAt(t, healthy.sidecar, address)
			if err == nil && (!hasCondition(found, "Registered", apiv1.Condition_STATUS_FALSE) || hasCondition(found, "Published", apiv1.Condition_STATUS_TRUE)) {
				err = fmt.Errorf("of a key without a lease the replica reports: %v", found)
			}
			return err
		})
	}
	testkit.Pause(t.Context(), 12*time.Second) // more than one interval
	f.waitForPublished(readTimeout, healthy)
}

// etcd is restored from a copy that contains a machine that was lost after the copy.
func TestMigration_RestoredEtcdDropsTheLostMachine(t *testing.T) {
	testkit.LongTest(t, 1)
	dir := filepath.Join(t.TempDir(), "cluster")
	f := newFixtureOn(t, &devcluster.Config{DataDir: dir})
	cluster := f.cluster
	machines := f.machines("10.99.7.1", "10.99.7.2")
	remaining, lost := machines[0], machines[1]
	remaining.startSidecar()
	lost.startSidecar()
	f.waitForPublished(waitTimeout, remaining, lost)

	data, copied := filepath.Join(dir, "etcd"), filepath.Join(t.TempDir(), "copy")
	if err := errors.Join(cluster.StopEtcd(), os.CopyFS(copied, os.DirFS(data)), cluster.StartEtcd()); err != nil {
		t.Fatal(err)
	}
	f.waitForPublished(waitTimeout, remaining, lost)
	lost.powerOff()
	f.waitForPublished(waitTimeout, remaining)

	remaining.powerOff()
	if err := errors.Join(cluster.StopAPIServer(), cluster.StopEtcd(), os.RemoveAll(data), os.CopyFS(data, os.DirFS(copied)),
		restrictDirs(data), cluster.StartEtcd(), cluster.StartAPIServer(), remaining.server.Start()); err != nil {
		t.Fatal(err)
	}
	if has, err := published(t.Context(), f.kube); err != nil || !slices.Contains(has, lost.address) {
		t.Fatalf("the restored slices hold %v, %v, and should hold the lost %s", has, err, lost.address)
	}
	remaining.startSidecar()
	end := f.requirePublished(remaining)
	f.checkRemoval("machine that only the copy contains", killedRemovalTime+5*time.Second, remaining)
	end()
}

// restrictDirs removes all rights of other users, which etcd requires of its data directory.
func restrictDirs(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return os.Chmod(path, 0o700)
	})
}
