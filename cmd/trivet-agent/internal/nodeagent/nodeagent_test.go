package nodeagent

import (
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/settings"
)

func TestProbe_TheAgeOfASilentKubeletGrowsWhileTheAgentLives(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.rotate(t, "node-1", "first.pem")
	p := start(t, f.config())
	registered := f.leasesvc.awaitBeat(t, "registered", 0, func(b beat) bool { return b.registered })
	boot, err := os.ReadFile(bootIDFile)
	if err != nil {
		t.Fatal(err)
	}
	if registered.holder != "node-1" || registered.bootID != strings.TrimSpace(string(boot)) || !strings.HasPrefix(registered.info, "trivet-agent") {
		t.Errorf("registered %+v", registered)
	}
	if registered.age < 0 {
		t.Error("the registration does not say that the kubelet is observed")
	}
	p.awaitReady(t, "[+]leasesvc ok")

	f.kubelet.silent.Store(true)
	var ages []time.Duration
	_, n := f.leasesvc.last()
	for _, age := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second} {
		ages = append(ages, f.leasesvc.awaitBeat(t, "age grows", n, func(b beat) bool { return b.age >= age }).age)
	}
	if !slices.IsSorted(ages) {
		t.Errorf("ages %v", ages)
	}
	p.awaitReady(t, "[-]kubelet failed: last seen")
	if body, code := p.get(t, "/livez"); code != http.StatusOK {
		t.Errorf("/livez depends on the kubelet: %d %s", code, body)
	}
	f.kubelet.silent.Store(false)
	_, n = f.leasesvc.last()
	f.leasesvc.awaitBeat(t, "the kubelet is back", n, func(b beat) bool { return b.age < 500*time.Millisecond })
	p.awaitReady(t, "[+]kubelet ok")
}

func TestProbe_AKubeletThatWasNotSeenHasNoBeat(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.rotate(t, "node-1", "first.pem")
	f.kubelet.silent.Store(true)
	p := start(t, f.config())
	p.awaitReady(t, "[-]leasesvc failed: the kubelet was not seen since the agent started")
	await(t, "probed", func() bool {
		body, _ := p.get(t, "/metrics")
		return strings.Contains(body, `trivet_agent_kubelet_probes_total{result="failed"} 2`)
	})
	if _, n := f.leasesvc.last(); n != 0 {
		t.Errorf("%d beats for a kubelet that was never seen; its own Lease must speak", n)
	}
	f.kubelet.silent.Store(false)
	f.leasesvc.awaitBeat(t, "registered", 0, func(b beat) bool { return b.registered })
}

func TestIdentity_FollowsTheCertificateOfTheKubelet(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := start(t, f.config())
	p.awaitReady(t, "kubelet-client-current.pem") // a new node has none yet
	f.rotate(t, "node-1", "first.pem")
	first := f.leasesvc.awaitBeat(t, "registered", 0, func(b beat) bool { return b.registered })

	f.rotate(t, "node-1", "second.pem")
	time.Sleep(1100 * time.Millisecond) // the files are read at most once a second
	f.leasesvc.mu.Lock()
	f.leasesvc.reauth = true // as when the certificate of the stream ends
	f.leasesvc.mu.Unlock()
	f.leasesvc.awaitBeat(t, "registered with the new certificate", 0, func(b beat) bool { return b.registered && b.client != first.client })

	if err := os.WriteFile(f.path("second.pem"), []byte("-----BEGIN CERTIFICATE-----\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, n := f.leasesvc.last()
	f.leasesvc.mu.Lock()
	f.leasesvc.reauth = true
	f.leasesvc.mu.Unlock()
	f.leasesvc.awaitBeat(t, "a broken file leaves the certificate in use", n, func(b beat) bool { return b.registered && b.client != first.client })
}

func TestIdentity_ACertificateOfAnotherNodeIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.rotate(t, "node-2", "first.pem")
	cfg := f.config()
	cfg.NodeName = "node-1"
	p := start(t, cfg)
	p.awaitReady(t, `is of node "node-2", and --node-name is "node-1"`)
}

func TestStop_ReleasesOnlyWhenToldTo(t *testing.T) {
	t.Parallel()
	for _, release := range []bool{false, true} {
		f := newFixture(t)
		f.rotate(t, "node-1", "first.pem")
		cfg := f.config()
		cfg.ReleaseOnStop = release
		p := start(t, cfg)
		f.leasesvc.awaitBeat(t, "registered", 0, func(b beat) bool { return b.registered })
		p.awaitReady(t, "[+]leasesvc ok")
		p.stop(t)
		if got := len(f.leasesvc.released) == 1 && !f.leasesvc.released[0].KeepObject; got != release {
			t.Errorf("release on stop %v: released %v", release, f.leasesvc.released)
		}
		// The agent comes back as the same boot.
		_, n := f.leasesvc.last()
		start(t, cfg)
		f.leasesvc.awaitBeat(t, "registered again", n, func(b beat) bool { return b.registered })
	}
}

func TestReplicas_OfAFormerRunAreUsedWhileTheirSourceIsAway(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.rotate(t, "node-1", "first.pem")
	cfg := f.config()
	// A source that is away: the kube-apiserver of this kubeconfig does not answer.
	cfg.Leasesvc.Addresses = nil
	cfg.Kubeconfig = f.path("kubelet.conf")
	f.write(t, "kubelet.conf", kubeconfigOf("https://127.0.0.1:1", f.path("ca.crt"), f.path("kubelet-client-current.pem")))
	if err := os.Mkdir(cfg.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	f.write(t, "state/leasesvc.json", []byte(`{"source":"service trivet-system/leasesvc","addresses":["`+f.leasesvc.address+`"]}`))
	p := start(t, cfg)
	f.leasesvc.awaitBeat(t, "registered", 0, func(b beat) bool { return b.registered })
	p.awaitReady(t, "[-]kube-apiserver failed: 127.0.0.1:1")
	p.awaitReady(t, "[+]leasesvc ok")
}

func kubeconfigOf(server, ca, pair string) []byte {
	return []byte(`{"apiVersion":"v1","kind":"Config","current-context":"x","contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],
"clusters":[{"name":"c","cluster":{"server":"` + server + `","certificate-authority":"` + ca + `"}}],
"users":[{"name":"u","user":{"client-certificate":"` + pair + `","client-key":"` + pair + `"}}]}`)
}

// noBridge leaves the process-wide loggers of gRPC and client-go to the servers of the other tests.
func noBridge(*slog.Logger) {}

func TestRun_AnAddressInUseEndsIt(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var stderr bytes.Buffer
	code := run(t.Context(), settings.Invocation{
		Args:   []string{"--leasesvc-insecure", "--leasesvc-address=127.0.0.1:1", "--node-name=n", "--state-dir=" + t.TempDir(), "--admin-listen=" + listener.Addr().String()},
		Stderr: &stderr,
	}, noBridge)
	if code != settings.ExitFailure || !strings.Contains(stderr.String(), "--admin-listen") {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
}

func TestMain_NamesEveryProblem(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"nothing given": {nil, []string{"--leasesvc-ca-file", "--leasesvc-address", "--kubeconfig, --client-cert-file or --token-file"}},
		"beyond loopback": {
			[]string{"--kubelet-healthz=http://10.0.0.1:10248/healthz", "--admin-listen=0.0.0.0:7605", "--kubelet-endpoint=10.0.0.1:7604", "--leasesvc-insecure", "--leasesvc-address=10.0.0.1:1"},
			[]string{"--kubelet-healthz", "--admin-listen", "--kubelet-endpoint", "--leasesvc-insecure: --leasesvc-address"},
		},
		"a token":     {[]string{"--token-file=t", "--kubelet-endpoint=127.0.0.1:1"}, []string{"--token-file: endpoint mode", "--node-name: needed with --token-file"}},
		"half a pair": {[]string{"--client-cert-file=c"}, []string{"--client-cert-file and --client-key-file"}},
		"unknown":     {[]string{"--kubelet-helthz=x"}, []string{"--kubelet-helthz: unknown flag"}},
	} {
		var stderr bytes.Buffer
		if code := run(t.Context(), settings.Invocation{Args: test.args, Stderr: &stderr}, noBridge); code != settings.ExitUsage {
			t.Errorf("%s: exit code %d", name, code)
		}
		for _, want := range test.want {
			if !strings.Contains(stderr.String(), want) {
				t.Errorf("%s: nothing of %q in:\n%s", name, want, stderr.String())
			}
		}
	}
}

// Kubernetes allows a Service name that begins with a digit.
func TestConfig_TakesTheNamesOfServices(t *testing.T) {
	for name, valid := range map[string]bool{"trivet-system/leasesvc": true, "trivet-system/1leasesvc": true, "trivet-system/-leasesvc": false, "trivet-system": false, "a/b/c": false} {
		cfg := LeasesvcConfig{Service: name, CAFile: "ca.crt"}
		if problems := cfg.validate(); (len(problems) == 0) != valid {
			t.Errorf("--leasesvc-service %s: %v", name, problems)
		}
	}
}

func TestMain_EveryFlagIsAVariable(t *testing.T) {
	var stderr bytes.Buffer
	code := run(t.Context(), settings.Invocation{Environ: []string{"TRIVET_KUBELET_PROBE_INTERVAL=1ms", "NODE_NAME=Node One"}, Stderr: &stderr}, noBridge)
	if code != settings.ExitUsage || !strings.Contains(stderr.String(), "--kubelet-probe-interval 1ms") || !strings.Contains(stderr.String(), `"Node One" is no name`) {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
}

func TestKubeconfig_IsPrinted(t *testing.T) {
	f := newFixture(t)
	f.write(t, "kubelet.conf", kubeconfigOf("https://10.0.0.1:6443", f.path("ca.crt"), f.path("kubelet-client-current.pem")))
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), settings.Invocation{
		Args:   []string{"kubeconfig", "--from", f.path("kubelet.conf"), "--state-dir", f.path("state")},
		Stdout: &stdout, Stderr: &stderr,
	}, noBridge)
	if code != settings.ExitOK || !strings.Contains(stdout.String(), "server: https://127.0.0.1:7604") {
		t.Errorf("exit code %d:\n%s%s", code, stdout.String(), stderr.String())
	}
	if code := run(t.Context(), settings.Invocation{Args: []string{"kubeconfig"}, Stderr: &stderr}, noBridge); code != settings.ExitUsage || !strings.Contains(stderr.String(), "--from") {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
}
