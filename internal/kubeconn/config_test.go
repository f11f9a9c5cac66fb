package kubeconn_test

import (
	"bytes"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/kubeconn"
)

const kubeconfig = `apiVersion: v1
kind: Config
current-context: here
clusters:
- {name: here, cluster: {server: "https://127.0.0.1:6443", certificate-authority: pki/ca.crt}}
- {name: there, cluster: {server: "https://192.0.2.1:6443"}}
contexts:
- {name: here, context: {cluster: here, user: me}}
- {name: there, context: {cluster: there, user: me}}
users:
- {name: me, user: {token: secret}}
`

// outside makes the test run as if outside of any pod.
func outside(t *testing.T) {
	t.Helper()
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBERNETES_SERVICE_PORT", "")
}

// write writes a kubeconfig, and a certificate beside it.
func write(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"kubeconfig": text, "pki/ca.crt": "stands for a certificate"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "kubeconfig")
}

func TestConfig_Defaults(t *testing.T) {
	t.Parallel()
	var cfg kubeconn.Config
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	cfg.RegisterFlags(fs)
	if err := fs.Parse(nil); err != nil {
		t.Fatal(err)
	}
	want := kubeconn.Config{QPS: 200, Burst: 400}
	if diff := cmp.Diff(want, cfg); diff != "" {
		t.Errorf("flags (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, kubeconn.DefaultConfig()); diff != "" {
		t.Errorf("DefaultConfig (-want +got):\n%s", diff)
	}
}

func TestRESTConfig_OfAFile(t *testing.T) {
	t.Parallel()
	path := write(t, kubeconfig)
	cfg := kubeconn.Config{Kubeconfig: path, QPS: 7, Burst: 9}
	if problems := cfg.Validate(); len(problems) != 0 {
		t.Fatal(problems)
	}
	got, err := kubeconn.RESTConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	type view struct {
		Host, CAFile, Token, ContentType, Accept, UserAgent string
		QPS                                                 float32
		Burst                                               int
	}
	want := view{
		Host: "https://127.0.0.1:6443", CAFile: filepath.Join(filepath.Dir(path), "pki/ca.crt"), Token: "secret",
		ContentType: "application/vnd.kubernetes.protobuf",
		Accept:      "application/vnd.kubernetes.protobuf,application/json",
		UserAgent:   "trivet/" + identity.Version(),
		QPS:         7, Burst: 9,
	}
	if diff := cmp.Diff(want, view{
		Host: got.Host, CAFile: got.CAFile, Token: got.BearerToken,
		ContentType: got.ContentType, Accept: got.AcceptContentTypes, UserAgent: got.UserAgent,
		QPS: got.QPS, Burst: got.Burst,
	}); diff != "" {
		t.Errorf("rest config (-want +got):\n%s", diff)
	}
}

func TestRESTConfig_ZeroRatesAreTheDefaults(t *testing.T) {
	t.Parallel()
	got, err := kubeconn.RESTConfig(kubeconn.Config{Kubeconfig: write(t, kubeconfig)})
	if err != nil {
		t.Fatal(err)
	}
	if got.QPS != 200 || got.Burst != 400 { // client-go's own would be 5 and 10
		t.Errorf("QPS %v, burst %d", got.QPS, got.Burst)
	}
}

func TestValidate_NamesEveryMistake(t *testing.T) {
	outside(t)
	missing := filepath.Join(t.TempDir(), "missing")
	for name, test := range map[string]struct {
		cfg  kubeconn.Config
		want []string // each a part of the problem at its place
	}{
		"outside of a pod": {kubeconn.Config{}, []string{"--kubeconfig is empty, which works only in a Pod"}},
		"all wrong": {kubeconn.Config{Kubeconfig: missing, QPS: -1, Burst: -1}, []string{
			"--kubeconfig " + missing + ": no such file", "--kube-api-qps -1", "--kube-api-burst -1",
		}},
		"not a number": {kubeconn.Config{Kubeconfig: write(t, kubeconfig), QPS: float32(math.NaN())}, []string{"--kube-api-qps NaN"}},
		"not YAML":     {kubeconn.Config{Kubeconfig: write(t, "\x00{")}, []string{"not readable as a kubeconfig"}},
		"a directory":  {kubeconn.Config{Kubeconfig: t.TempDir()}, []string{"not readable as a kubeconfig"}},
		"empty file":   {kubeconn.Config{Kubeconfig: write(t, "")}, []string{`current context "" does not exist`}},
		"no context chosen": {
			kubeconn.Config{Kubeconfig: write(t, strings.Replace(kubeconfig, "current-context: here", "", 1))},
			[]string{"current context \"\" does not exist; choose one with `kubectl config use-context` (known: here, there)"},
		},
		"certificate missing": {
			kubeconn.Config{Kubeconfig: write(t, strings.Replace(kubeconfig, "pki/ca.crt", "pki/none.crt", 1))},
			[]string{"pki/none.crt: no such file"},
		},
		"no verification beyond loopback": {
			kubeconn.Config{Kubeconfig: write(t, strings.Replace(kubeconfig, `"https://127.0.0.1:6443", certificate-authority: pki/ca.crt`, `"https://192.0.2.1:6443", insecure-skip-tls-verify: true`, 1))},
			[]string{"insecure-skip-tls-verify lets any machine on the way to https://192.0.2.1:6443 act"},
		},
		"no verification on loopback": {
			kubeconn.Config{Kubeconfig: write(t, strings.Replace(kubeconfig, "certificate-authority: pki/ca.crt", "insecure-skip-tls-verify: true", 1))},
			nil,
		},
		"no TLS beyond loopback": {
			kubeconn.Config{Kubeconfig: write(t, strings.Replace(kubeconfig, `"https://127.0.0.1:6443", certificate-authority: pki/ca.crt`, `"http://192.0.2.1:8080"`, 1))},
			[]string{"server http://192.0.2.1:8080 has no TLS"},
		},
		"unknown context": {
			kubeconn.Config{Kubeconfig: write(t, strings.Replace(kubeconfig, "current-context: here", "current-context: gone", 1))},
			[]string{`current context "gone" does not exist`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			problems := test.cfg.Validate()
			if len(problems) != len(test.want) {
				t.Fatalf("problems %v, want %d", problems, len(test.want))
			}
			for i, want := range test.want {
				if !strings.Contains(problems[i].Error(), want) {
					t.Errorf("problem %d is %q, want %q in it", i, problems[i], want)
				}
			}
		})
	}
}

func TestRESTConfig_AnUnusableFileNeverMeansAnotherCluster(t *testing.T) {
	// In a pod, client-go's own loader would fall back to the pod's cluster.
	t.Setenv("KUBERNETES_SERVICE_HOST", "192.0.2.7")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	if got, err := kubeconn.RESTConfig(kubeconn.Config{Kubeconfig: write(t, "")}); err == nil {
		t.Errorf("an empty kubeconfig leads to %s", got.Host)
	}
	_, err := kubeconn.RESTConfig(kubeconn.Config{})
	if err == nil || !strings.Contains(err.Error(), "mount its token, or give --kubeconfig") {
		t.Errorf("a pod without a token gives %v", err)
	}
}

// A kube-apiserver that is reached through a proxy only has no other way.
func TestRESTConfig_RequestsPassThroughTheProxyOfTheFile(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.Method + " " + r.Host:
		default:
		}
		http.Error(w, "this proxy only listens", http.StatusForbidden)
	}))
	defer proxy.Close()
	path := write(t, strings.Replace(kubeconfig, `"https://127.0.0.1:6443", certificate-authority: pki/ca.crt`, `"https://192.0.2.1:6443", proxy-url: "`+proxy.URL+`"`, 1))
	cfg, err := kubeconn.RESTConfig(kubeconn.Config{Kubeconfig: path})
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(kubeconn.Fence(cfg))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kube.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{}); err == nil {
		t.Error("a proxy that refuses gave an answer")
	}
	select {
	case got := <-asked:
		if got != "CONNECT 192.0.2.1:6443" {
			t.Errorf("the proxy got %q", got)
		}
	default:
		t.Error("the proxy got no request")
	}
}

func TestRESTConfig_ClientsLogEachWarningOnce(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Warning", `299 - "v1 Endpoints is deprecated"`)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"Endpoints","apiVersion":"v1","metadata":{"name":"kubernetes"}}`)
	}))
	defer server.Close()
	path := write(t, strings.Replace(kubeconfig, `"https://127.0.0.1:6443", certificate-authority: pki/ca.crt`, server.URL, 1))
	cfg, err := kubeconn.RESTConfig(kubeconn.Config{Kubeconfig: path})
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	ctx := klog.NewContext(t.Context(), logr.FromSlogHandler(slog.NewTextHandler(&log, nil)))
	for range 3 {
		if _, err := kube.CoreV1().Endpoints("default").Get(ctx, "kubernetes", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Count(log.String(), "v1 Endpoints is deprecated"); got != 1 {
		t.Errorf("logged %d times, want once:\n%s", got, log.String())
	}
}
