package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trivet-dev/trivet/test/lab/gobuild"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	upNodes    = 6
	upServices = 4
	upPods     = 12
)

// startUp runs `trivet-lab up` on free ports and waits until it reports that all services are
// ready.
func startUp(t *testing.T, args ...string) *running {
	t.Helper()
	assets, err := filepath.Abs(filepath.Join("..", "..", ".assets"))
	if err != nil {
		t.Fatal(err)
	}
	up := run(t, "trivet-lab", append([]string{
		"up", "--free-ports", "--assets-dir", assets, "--churn", "500ms",
		"--nodes", fmt.Sprint(upNodes), "--services", fmt.Sprint(upServices), "--pods", fmt.Sprint(upPods),
	}, args...)...)
	testkit.Eventually(t, 2*time.Minute, func() error { return up.said("Ctrl-C stops everything.") })
	return up
}

// field reads a value from the lines that `trivet-lab up` prints when it is ready.
func (r *running) field(t *testing.T, name string) string {
	t.Helper()
	match := regexp.MustCompile(`(?m)^\s+` + name + `\s+(\S+)$`).FindStringSubmatch(r.output())
	if match == nil {
		t.Fatalf("trivet-lab up does not say %q", name)
	}
	return match[1]
}

func kubeOf(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

func TestUp_EveryServiceWorksAndNothingIsLeft(t *testing.T) {
	up := startUp(t)
	dataDir := filepath.Dir(filepath.Dir(up.field(t, "kubeconfig")))
	kube := kubeOf(t, up.field(t, "kubeconfig"))

	t.Run("status names a leader for each service", func(t *testing.T) { statusNamesLeaders(t, up) })
	t.Run("leasesvc keeps every node's Lease", func(t *testing.T) { leasesAreKept(t, kube) })
	t.Run("bootstrapsvc keeps the kubernetes endpoints", func(t *testing.T) { kubernetesEndpointsAreKept(t, kube) })
	t.Run("slicesvc keeps every Service's slices", func(t *testing.T) { slicesAreKept(t, kube) })
	t.Run("the suggested commands work", func(t *testing.T) { suggestedStatusWorks(t, up) })

	below := children(t, up.PID())
	if len(below) < 2 {
		t.Fatalf("children = %v, want at least etcd and kube-apiserver", below)
	}
	if code := up.stop(t, syscall.SIGINT, time.Minute); code != 0 {
		t.Errorf("exit code = %d after Ctrl-C, want 0", code)
	}
	for _, pid := range below {
		if alive(pid) {
			t.Errorf("process %d outlived trivet-lab up", pid)
		}
	}
	if _, err := os.Stat(dataDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder %s outlived trivet-lab up (%v)", dataDir, err)
	}
}

// statusNamesLeaders polls, because on a busy machine a later probe of kube-apiserver may be slow.
func statusNamesLeaders(t *testing.T, up *running) {
	page, client := openPage(t, up.field(t, "page"))
	testkit.Eventually(t, 20*time.Second, func() error {
		reply, err := statusBy(client, page)
		if err != nil {
			return err
		}
		for _, service := range []string{"leasesvc", "bootstrapsvc", "slicesvc"} {
			if !reply.leads(service) {
				return fmt.Errorf("%s has a shard without a leader, or a problem: %+v", service, reply)
			}
		}
		return nil
	})
}

func leasesAreKept(t *testing.T, kube kubernetes.Interface) {
	testkit.Eventually(t, 40*time.Second, func() error {
		ofNodes := metav1.ListOptions{LabelSelector: "!trivet.dev/write-check"} // leasesvc has one of its own
		leases, err := kube.CoordinationV1().Leases("kube-node-lease").List(t.Context(), ofNodes)
		if err != nil {
			return err
		}
		if len(leases.Items) != upNodes {
			return fmt.Errorf("%d Leases, want %d", len(leases.Items), upNodes)
		}
		for _, lease := range leases.Items {
			owners := lease.OwnerReferences
			if len(owners) != 1 || owners[0].Kind != "Node" || owners[0].Name != lease.Name || owners[0].UID == "" {
				return fmt.Errorf("Lease %s belongs to %v, want its Node", lease.Name, owners)
			}
			if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != lease.Name {
				return fmt.Errorf("Lease %s has holder %v", lease.Name, lease.Spec.HolderIdentity)
			}
			if !lease.Spec.RenewTime.After(lease.CreationTimestamp.Add(time.Second)) {
				return fmt.Errorf("Lease %s has not been renewed yet", lease.Name)
			}
		}
		return nil
	})
}

func kubernetesEndpointsAreKept(t *testing.T, kube kubernetes.Interface) {
	testkit.Eventually(t, 20*time.Second, func() error {
		endpoints, err := kube.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(endpoints.Subsets) != 1 || len(endpoints.Subsets[0].Addresses) != 1 {
			return fmt.Errorf("subsets = %v, want one address", endpoints.Subsets)
		}
		slice, err := kube.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(slice.Endpoints) != 1 || slice.Endpoints[0].Addresses[0] != endpoints.Subsets[0].Addresses[0].IP {
			return fmt.Errorf("slice holds %v, Endpoints hold %v", slice.Endpoints, endpoints.Subsets[0].Addresses)
		}
		return nil
	})
}

func slicesAreKept(t *testing.T, kube kubernetes.Interface) {
	testkit.Eventually(t, 20*time.Second, func() error {
		slices, err := kube.DiscoveryV1().EndpointSlices("demo").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		endpoints := map[string]int{}
		for _, slice := range slices.Items {
			endpoints[slice.Labels["kubernetes.io/service-name"]] += len(slice.Endpoints)
		}
		const mirrored, addresses = "outside-database", 3 // the addresses of its Endpoints object
		if endpoints[mirrored] != addresses {
			return fmt.Errorf("Service %s has %d mirrored endpoints, want %d", mirrored, endpoints[mirrored], addresses)
		}
		delete(endpoints, mirrored)
		if len(endpoints) != upServices {
			return fmt.Errorf("slices of %d Services with a selector, want %d", len(endpoints), upServices)
		}
		for service, n := range endpoints {
			if n != upPods/upServices {
				return fmt.Errorf("Service %s has %d endpoints, want %d", service, n, upPods/upServices)
			}
		}
		return nil
	})
}

func suggestedStatusWorks(t *testing.T, up *running) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	curl := regexp.MustCompile(`(?m)^  curl (.*)$`).FindStringSubmatch(up.output())
	if curl == nil {
		t.Fatal("trivet-lab up suggests no curl command")
	}
	for _, command := range []string{
		". " + up.field(t, "settings") + "; " + gobuild.Command(t, "trivet") + " status --wait --wait-duration 15s",
		"curl --silent --fail " + curl[1],
	} {
		if output, err := exec.CommandContext(ctx, "sh", "-c", command).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", command, err, output)
		}
	}
	anonymous := exec.CommandContext(ctx, gobuild.Command(t, "trivet"), "status", "--server", strings.Fields(up.lineOf(t, "gateway"))[1])
	if output, err := anonymous.CombinedOutput(); err == nil {
		t.Errorf("trivet status without a certificate:\n%s", output)
	}
}

// openPage opens the URL as a browser does. It returns the address of the page without its key, and
// a client that sends the key as the page does.
func openPage(t *testing.T, address string) (page string, client *http.Client) {
	t.Helper()
	page, key, found := strings.Cut(address, "/#key=")
	if !found {
		t.Fatalf("the page's URL %q has no key", address)
	}
	if code, _, err := fetchBy(http.DefaultClient, page+"/v1/status"); err != nil || code != http.StatusForbidden {
		t.Errorf("the status without the key: %d (%v), want 403", code, err)
	}
	client = &http.Client{Transport: withKey(key), Timeout: 10 * time.Second}
	if code, body, err := fetchBy(client, page+"/"); err != nil || code != http.StatusOK || !strings.Contains(body, "<title>") {
		t.Errorf("the page: %d %s (%v)", code, body, err)
	}
	return page, client
}

// withKey sends requests with a key of the page.
type withKey string

// RoundTrip implements http.RoundTripper.
func (k withKey) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("Trivet-Dashboard-Key", string(k))
	return http.DefaultTransport.RoundTrip(request)
}

// lineOf returns a line that `trivet-lab up` prints when it is ready.
func (r *running) lineOf(t *testing.T, name string) string {
	t.Helper()
	match := regexp.MustCompile(`(?m)^\s+` + name + `\s+.*$`).FindString(r.output())
	if match == "" {
		t.Fatalf("trivet-lab up does not say %q", name)
	}
	return match
}

func TestUp_WithoutBinariesSaysWhatToDo(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", "")
	up := run(t, "trivet-lab", "up", "--free-ports", "--assets-dir", t.TempDir())
	<-up.Exited()
	if code := up.ExitCode(); code != 1 {
		t.Errorf("exit code = %d, want 1", code)
	}
	if err := up.said("make assets"); err != nil {
		t.Error(err)
	}
}
