package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/test/lab/gobuild"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// A demo begins with a finding, each fault is named by the verdict, and a restored demo is green. A
// killed demo leaves no process, also none that is suspended.
func TestUp_DemoBreaksAndRestoresAndKilledLeavesNoProcess(t *testing.T) {
	up := startUp(t, "--demo", "--services=3", "--pods=6")
	page, client := openPage(t, up.field(t, "page"))
	up.commands(t, []string{"duplicate-owner.ip-addresses.", "address demo/app-000 is restored", "default: OK"},
		"trivet findings", "trivet-lab restore --all", "trivet status --wait --wait-duration 30s")

	t.Run("the buttons answer their own page only", func(t *testing.T) { buttonsAreProtected(t, page, client) })
	up.commands(t, []string{"trivet explain node sim-node-0000", "trivet zones", "trivet shards", "trivet apiservers", "trivet repair plan", "trivet explain endpoint app-001-"},
		"trivet-lab break node sim-node-0000", "trivet-lab break zone sim-b", "trivet-lab break apiserver", "trivet-lab break address demo/app-002", "trivet-lab break pods app-001",
		"trivet-lab break service slicesvc") // the last one, because the verdict names the replica only while its session lasts
	verdictNames(t, page, client, "NODES_UNKNOWN", "ZONE_DISRUPTED", "REPLICA_UNREACHABLE", "DEPENDENCY_UNREACHABLE", "FINDINGS_OPEN")
	kube := kubeOf(t, up.field(t, "kubeconfig"))
	endpointsAre(t, kube, "app-001", false)
	up.commands(t, []string{"address demo/app-002 is restored", "zone sim-b is restored", "Nothing is broken", "default: OK"},
		"trivet-lab restore --all", "trivet-lab break --list", "trivet status --wait --wait-duration 40s")
	endpointsAre(t, kube, "app-001", true)

	up.commands(t, []string{"suspended process", "suspended kube-apiserver-2"}, "trivet-lab break service leasesvc", "trivet-lab break apiserver")
	below := children(t, up.PID())
	if len(below) < 9 {
		t.Errorf("children = %v, want etcd, two kube-apiservers and six replicas", below)
	}
	up.stop(t, syscall.SIGKILL, 10*time.Second)
	testkit.Eventually(t, time.Minute, func() error {
		for _, pid := range below {
			if alive(pid) {
				return fmt.Errorf("process %d outlived trivet-lab up", pid)
			}
		}
		return nil
	})
}

// commands runs commands one after another. Together they say each of the texts.
func (r *running) commands(t *testing.T, texts []string, lines ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	script := ". " + r.field(t, "settings")
	for _, line := range lines {
		script += "; " + line
	}
	command := exec.CommandContext(ctx, "sh", "-c", script)
	command.Env = append(command.Environ(), "PATH="+filepath.Dir(gobuild.Command(t, "trivet"))+":/usr/bin:/bin")
	output, _ := command.CombinedOutput() // trivet findings and status end with 1 while something is wrong
	for _, text := range texts {
		if !strings.Contains(string(output), text) {
			t.Errorf("the commands do not say %q:\n%s\n%s", text, script, output)
		}
	}
}

// endpointsAre waits until all endpoints of a Service are ready, or none is.
func endpointsAre(t *testing.T, kube kubernetes.Interface, service string, ready bool) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() error {
		slices, err := kube.DiscoveryV1().EndpointSlices("demo").List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
		if err != nil {
			return err
		}
		endpoints := 0
		for _, slice := range slices.Items {
			for _, endpoint := range slice.Endpoints {
				if endpoints++; *endpoint.Conditions.Ready != ready {
					return fmt.Errorf("endpoint %v of Service %s is ready: %t", endpoint.Addresses, service, !ready)
				}
			}
		}
		if endpoints == 0 {
			return fmt.Errorf("Service %s has no endpoint", service)
		}
		return nil
	})
}

// verdictNames waits until the verdict has named each problem at least once. That of a replica ends
// with its session.
func verdictNames(t *testing.T, page string, client *http.Client, codes ...string) {
	t.Helper()
	seen := map[string]bool{}
	testkit.Eventually(t, time.Minute, func() error {
		_, body, err := fetchBy(client, page+"/v1/status")
		if err != nil {
			return err
		}
		var errs []error
		for _, code := range codes {
			if seen[code] = seen[code] || strings.Contains(body, code); !seen[code] {
				errs = append(errs, fmt.Errorf("the verdict has not named %s", code))
			}
		}
		return errors.Join(errs...)
	})
}

// buttonsAreProtected acts as pages of other origins, and as a name that resolves to this machine.
func buttonsAreProtected(t *testing.T, page string, client *http.Client) {
	_, body, err := fetchBy(client, page+"/demo/")
	if err != nil {
		t.Fatal(err)
	}
	var report struct{ Token string }
	if err := json.Unmarshal([]byte(body), &report); err != nil || report.Token == "" {
		t.Fatalf("the report %q (%v) has no token", body, err)
	}
	for name, c := range map[string]struct {
		origin, host, token string
		client              *http.Client
		code                int
	}{
		"own page":       {page, "", report.Token, client, http.StatusOK},
		"no token":       {page, "", "", client, http.StatusForbidden},
		"no key":         {page, "", report.Token, http.DefaultClient, http.StatusForbidden},
		"foreign origin": {"https://evil.example", "", report.Token, client, http.StatusForbidden},
		"DNS rebinding":  {"http://evil.example", "evil.example", report.Token, client, http.StatusMisdirectedRequest},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, page+"/demo/restore", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Origin", c.origin)
		request.Header.Set("Trivet-Demo-Token", c.token)
		request.Host = c.host
		response, err := c.client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != c.code {
			t.Errorf("%s: %d %s (%v), want %d", name, response.StatusCode, answer, err, c.code)
		}
	}
	if code, _, err := fetchBy(client, page+"/assets/demo.js"); err != nil || code != http.StatusOK {
		t.Errorf("demo.js: %d, %v", code, err)
	}
	if _, body, err := fetchBy(client, page+"/"); err != nil || !strings.Contains(body, `src="/assets/demo.js"`) {
		t.Errorf("the page does not load the buttons (%v):\n%s", err, body)
	}
}
