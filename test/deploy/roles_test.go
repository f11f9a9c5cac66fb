package deploy

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/lab/worldtest"
)

// stirred is how long the servers are kept busy before an unused grant counts as one too many.
const stirred = time.Minute

// Each server runs with the roles it is shipped with and is kept busy until a round of all its work
// has succeeded and every verb was used. What it is refused is missing in its roles; what it never
// uses is too much in them.
func TestRoles_GrantWhatIsUsedAndNothingElse(t *testing.T) {
	for tree, servers := range map[string]map[string]func(*testing.T, place) func() error{
		"base":     {"leasesvc": exerciseHeartbeats, "bootstrapsvc": exerciseBootstrap, "slicesvc": exerciseSlices},
		everything: {"leasesvc": exerciseNodeHealth, "slicesvc": exerciseMirroring},
	} {
		t.Run(filepath.Base(tree), func(t *testing.T) {
			cluster, log := startAudited(t)
			objects := render(t, tree)
			applyRoles(t, cluster, objects)
			config := cluster.RESTConfig()
			config.WarningHandler = rest.NoWarnings{} // "Endpoints is deprecated", at every call
			kube, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			for name, busy := range servers {
				t.Run(name, func(t *testing.T) {
					stir := busy(t, place{cluster: cluster, kube: kube})
					expectExact(t, grantsOf(t, objects, name), stir, func() ([]auditEvent, error) { return log.of(username(name)) })
				})
			}
		})
	}
}

// expectExact stirs until every grant has been used, and takes no refusal.
func expectExact(t *testing.T, granted []grant, stir func() error, asked func() ([]auditEvent, error)) {
	t.Helper()
	if len(granted) == 0 {
		t.Fatal("no role names this server")
	}
	testkit.Eventually(t, stirred, func() error {
		problem := stir()
		events, err := asked()
		if err != nil {
			return err
		}
		for _, event := range events {
			if event.forbidden() {
				t.Fatalf("its roles do not allow it to %s", event)
			}
		}
		if left := unused(granted, events); len(left) > 0 {
			return errors.Join(problem, fmt.Errorf("granted and not used: %v", left))
		}
		return problem
	})
}

// place is where the servers run.
type place struct {
	cluster *devcluster.Cluster
	kube    kubernetes.Interface // an administrator's
	etcd    etcdconn.Config      // without endpoints: an administrator's
	log     *testkit.LogBuffer   // gets the servers' logs, too; may be nil
}

func username(server string) string { return "system:serviceaccount:" + system + ":" + server }

// applyRoles really makes the namespaces and roles of a tree.
func applyRoles(t *testing.T, cluster *devcluster.Cluster, objects []*unstructured.Unstructured) {
	t.Helper()
	server := newApplier(t, cluster.RESTConfig())
	for _, object := range objects {
		if object.GetKind() != "Namespace" && object.GroupVersionKind().Group != rbacv1.GroupName {
			continue
		}
		if err := server.apply(t.Context(), object, false); err != nil {
			t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}

// unshown are grants that no request shows. The permission to have a Service or an Endpoints object
// wait for its slices is looked up by admission; without it no slice is created, and that shows.
// The others need a race: slicesvc reads a slice after another writer changed it under a plan, and
// an Event is repeated soon after the first.
var unshown = map[string][]string{
	"slicesvc":     {"services/finalizers update", "endpoints/finalizers update", "endpointslices get", "events patch"},
	"bootstrapsvc": {"events patch"},
}

// grantsOf returns what a server's roles grant, except for what is unshown.
func grantsOf(t *testing.T, objects []*unstructured.Unstructured, server string) []grant {
	t.Helper()
	var all []grant
	add := func(namespace, name string, rules []rbacv1.PolicyRule) {
		if name != "trivet:"+server && !strings.HasPrefix(name, "trivet:"+server+":") {
			return
		}
		for _, g := range grants(namespace, rules) {
			if !slices.Contains(unshown[server], g.resource+" "+g.verb) {
				all = append(all, g)
			}
		}
	}
	for _, role := range ofKind[rbacv1.ClusterRole](t, objects, "ClusterRole") {
		add("", role.Name, role.Rules)
	}
	for _, role := range ofKind[rbacv1.Role](t, objects, "Role") {
		add(role.Namespace, role.Name, role.Rules)
	}
	return all
}

// start runs a server under its service account until the test ends, with loops beside those that
// are on by default, and returns a connection to it.
func start(t *testing.T, in place, program process.Program, loops ...string) *grpc.ClientConn {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := in.cluster.WriteKubeconfig(kubeconfig, username(program.Name), "system:serviceaccounts"); err != nil {
		t.Fatal(err)
	}
	w := worldtest.New(t, worldtest.Config{Name: "default", On: in.cluster, Plain: true})
	log := t.Output()
	if in.log != nil {
		log = io.MultiWriter(log, in.log)
	}
	server := w.RunInProcess(t, program, log, func(cfg *process.Config) {
		cfg.Kube.Kubeconfig, cfg.Loops = kubeconfig, append(cfg.Loops, loops...)
		if len(in.etcd.Endpoints) > 0 {
			cfg.Etcd = in.etcd
		}
	})
	conn, err := rpcclient.Dial(server.Member().GRPCAddress, rpcclient.Config{Insecure: true}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// startLeases asks for renewals so often that a test sees them, and marks silent nodes as soon as
// it may, where a loop does.
func startLeases(t *testing.T, in place, loops ...string) *grpc.ClientConn {
	t.Helper()
	cfg := leasesvc.DefaultConfig()
	cfg.Classes[0].RenewInterval, cfg.Writes.Policy = 200*time.Millisecond, leasesvc.WriteMirror
	cfg.NodeHealth.GracePeriod = time.Second
	return start(t, in, leasesvc.Program(&cfg), loops...)
}

// startBootstrap runs it as a sidecar, with an unused address, and with all that reads etcd.
func startBootstrap(t *testing.T, in place) *grpc.ClientConn {
	t.Helper()
	cfg := bootstrapsvc.DefaultConfig()
	cfg.AdvertiseAddress, cfg.Endpoints.AdoptMasterLeases = "198.51.100.7", true
	return start(t, in, bootstrapsvc.Program(&cfg))
}

func startSlices(t *testing.T, in place, loops ...string) {
	t.Helper()
	cfg := slicesvc.DefaultConfig()
	start(t, in, slicesvc.Program(&cfg), loops...)
}
