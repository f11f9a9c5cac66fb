package mirroring

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/test/conformance/internal/simtest"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	upstream = "upstream"
	ours     = "ours"
	// The loop has another name in each program.
	oursLoop     = "endpointslice-mirroring"
	upstreamLoop = "endpointslice-mirroring-controller"
	// mirrorManager is the managed-by label of mirrored slices.
	mirrorManager = "endpointslicemirroring-controller.k8s.io"

	// testAgent is the user agent of the test itself.
	testAgent = "mirroring-test"
	// canaries is the namespace of objects that show that the controller works.
	canaries = "canaries"
	// patience is how long something may take that is due, on a machine that does other things,
	// too.
	patience = 90 * time.Second
)

// side is a control plane of its own with one mirroring controller.
type side struct {
	t       *testing.T
	name    string
	cluster *devcluster.Cluster
	config  *rest.Config
	kube    kubernetes.Interface
	audit   *auditLog

	mu      sync.Mutex // guards the following fields
	running []*simtest.Child
	beats   map[string]int // changes of each canary
}

// setup are the settings of a controller that differ between cases. The zero value is the
// controller of the side with upstream's defaults, as an administrator.
type setup struct {
	// controller is upstream or ours.
	controller string
	perSubset  int
	kubeconfig string
	// spill lets slicesvc make further slices. kube-controller-manager cannot.
	spill bool
	// metrics is the port of metrics; 0: none are needed.
	metrics int
}

// startSides starts the control planes that -sides names, without controllers.
func startSides(t *testing.T) []*side {
	t.Helper()
	if *arguments.manager == "" {
		t.Skip("needs -manager=path of kube-controller-manager: run `make conformance`")
	}
	names := strings.Split(*arguments.sides, ",")
	sides := make([]*side, len(names))
	var starting sync.WaitGroup
	for i, name := range names {
		starting.Go(func() { sides[i] = startSide(t, name) })
	}
	starting.Wait()
	if slices.Contains(sides, nil) {
		t.FailNow()
	}
	return sides
}

// startSide returns nil after it has failed the test.
func startSide(t *testing.T, name string) *side {
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Error(err)
		return nil
	}
	cluster, err := devcluster.Start(t.Context(), devcluster.Config{APIServerArgs: []string{
		"--audit-policy-file=" + policy, "--audit-log-path=" + log,
		"--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
		"--feature-gates=StrictIPCIDRValidation=false", // as in the clusters where such addresses come from
	}})
	if err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	config := cluster.RESTConfig()
	config.UserAgent = testAgent
	config.WarningHandler = rest.NoWarnings{} // "Endpoints is deprecated", at every call
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Error(err)
		return nil
	}
	s := &side{
		t: t, name: name, cluster: cluster, config: config, kube: kube,
		audit: &auditLog{path: log, versions: map[string]string{}}, beats: map[string]int{},
	}
	if err := s.makeNamespace(t.Context(), canaries); err != nil {
		t.Error(err)
		return nil
	}
	return s
}

func (s *side) makeNamespace(ctx context.Context, name string) error {
	_, err := s.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	return err
}

// start starts a controller; one more, if one runs already.
func (s *side) start(t *testing.T, with setup) *simtest.Child {
	t.Helper()
	with.controller = cmp.Or(with.controller, s.name)
	with.kubeconfig = cmp.Or(with.kubeconfig, s.cluster.Kubeconfig())
	limit := "--mirroring-max-endpoints-per-subset=" + strconv.Itoa(cmp.Or(with.perSubset, 1000))
	child := childprocess.Config{Name: "kube-controller-manager", Path: *arguments.manager, Args: []string{
		"--kubeconfig=" + with.kubeconfig, "--controllers=" + upstreamLoop, "--leader-elect=false", limit,
		"--secure-port=" + strconv.Itoa(with.metrics), "--bind-address=127.0.0.1", "--cert-dir=" + s.t.TempDir(),
		"--authorization-always-allow-paths=/metrics",
	}}
	if with.controller == ours {
		ca, cert, key := s.cluster.EtcdFiles()
		child = childprocess.Config{
			Name: "slicesvc", Env: []string{serverVariable + "=yes"},
			Args: []string{
				"--kubeconfig=" + with.kubeconfig, "--loops=" + oursLoop, limit,
				"--insecure", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:" + strconv.Itoa(with.metrics), "--drain-timeout=1s",
				"--etcd-endpoints=" + strings.Join(s.cluster.EtcdEndpoints(), ","),
				"--etcd-ca-file=" + ca, "--etcd-cert-file=" + cert, "--etcd-key-file=" + key,
				"--mirroring-spill=" + strconv.FormatBool(with.spill),
			},
		}
	}
	started := simtest.StartChild(t, child)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = append(s.running, started)
	return started
}

// stop ends the controllers of the side: slicesvc as an operator does, so that its shards are free
// at once. kube-controller-manager has nothing to release.
func (s *side) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, child := range s.running {
		if child.Name() == "slicesvc" {
			child.Stop()
		} else {
			child.Kill()
		}
	}
	s.running = nil
}

// killFirst ends the oldest controller at once.
func (s *side) killFirst() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[0].Kill()
	s.running = s.running[1:]
}

// kill ends the controllers of the side at once.
func (s *side) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, child := range s.running {
		child.Kill()
	}
	s.running = nil
}

// awaitController returns when the controller has mirrored a change that is made now. Then it has
// seen all that was done before to Endpoints. Each caller has a canary of its own.
func (s *side) awaitController(t *testing.T, canary string) {
	t.Helper()
	s.mu.Lock()
	s.beats[canary]++
	beat := s.beats[canary]
	s.mu.Unlock()
	address := fmt.Sprintf("10.99.%d.%d", beat/250, beat%250+1)
	endpoints := endpointsOf(canary, subset(ports("", 80), addresses(address)))
	var err error
	if beat == 1 {
		if _, err = s.kube.CoreV1().Services(canaries).Create(t.Context(), service(canary), metav1.CreateOptions{}); err == nil {
			_, err = s.kube.CoreV1().Endpoints(canaries).Create(t.Context(), endpoints, metav1.CreateOptions{})
		}
	} else {
		_, err = s.kube.CoreV1().Endpoints(canaries).Update(t.Context(), endpoints, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatalf("%s: canary: %v", s.name, err)
	}
	testkit.Eventually(t, patience, func() error {
		found, err := s.mirrored(t.Context(), canaries, canary)
		if err == nil && (len(found) != 1 || len(found[0].Endpoints) != 1 || found[0].Endpoints[0].Addresses[0] != address) {
			err = fmt.Errorf("%s: the canary is not mirrored", s.name)
		}
		return err
	})
}

// mirrored returns the slices of a Service that carry the label of mirroring controllers.
func (s *side) mirrored(ctx context.Context, namespace, name string) ([]discoveryv1.EndpointSlice, error) {
	list, err := s.kube.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelManagedBy + "=" + mirrorManager + "," + discoveryv1.LabelServiceName + "=" + name,
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
