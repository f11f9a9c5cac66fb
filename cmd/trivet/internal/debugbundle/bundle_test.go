package debugbundle_test

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/debugbundle"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/findings"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/status"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/observe/loglevel"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// root has some commands of trivet. The others are unknown, which the archive must survive.
func root(streams printer.Streams) *cobra.Command {
	command := &cobra.Command{Use: "trivet", SilenceUsage: true, SilenceErrors: true}
	command.SetOut(streams.Out)
	command.SetErr(streams.Err)
	command.AddCommand(status.NewCommand(streams), findings.NewCommand(streams), debugbundle.NewCommand(streams, root))
	return command
}

// secret returns a text that no redaction may leave, with a number for its place.
func secret(place int) string { return fmt.Sprintf("hunter2-%04d-correct-horse", place) }

func privateKey(place int) string {
	return "-----BEGIN EC PRIVATE KEY-----\n" + secret(place) + "\n-----END EC PRIVATE KEY-----"
}

// fakeCluster answers as a gateway, whose status names the replicas.
type fakeCluster struct {
	gatewayv1.UnimplementedClusterServiceServer

	replicas map[string]string // admin address by id
}

func (f *fakeCluster) GetClusterStatus(context.Context, *gatewayv1.GetClusterStatusRequest) (*gatewayv1.GetClusterStatusResponse, error) {
	service := &gatewayv1.ServiceStatus{Service: "slicesvc"}
	for id, address := range f.replicas {
		service.Replicas = append(service.Replicas, &gatewayv1.ReplicaResult{Status: &statusv1.ReplicaStatus{
			Replica: &statusv1.Replica{Id: id, Service: "slicesvc", AdminAddress: address},
		}})
	}
	return &gatewayv1.GetClusterStatusResponse{Status: &gatewayv1.ClusterStatus{
		Cluster: "default", Services: []*gatewayv1.ServiceStatus{service},
		Verdict: &metav1.Verdict{State: metav1.Verdict_STATE_FAILED, Problems: []*metav1.Problem{{
			Code: "NO_LEADER", Severity: metav1.Problem_SEVERITY_ERROR, Message: "cannot read " + privateKey(1) + " of the server",
		}}},
	}}, nil
}

func serveHTTP(t *testing.T, handler http.Handler) string {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// replica is an admin server whose answers have secrets.
func replica() http.Handler {
	mux := http.NewServeMux()
	say := func(path, text string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
	}
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "[-]etcd failed: dial https://root:"+secret(2)+"@etcd:2379: refused", http.StatusInternalServerError)
	})
	say("/loops", `[{"name":"endpointslices","error":"401 with Authorization: Bearer `+secret(3)+`"}]`)
	say("/flags", `{"listen":"127.0.0.1:7603","token-audiences":"trivet","tls-key-file":"/tls/tls.key","password":"`+secret(4)+`"}`)
	say("/metrics", "# TYPE trivet_build_info gauge\ntrivet_build_info{version=\"1\",token=\""+secret(5)+"\"} 1\n")
	say("/debug/pprof/goroutine", "goroutine profile: total 7\n")
	say("/debug/pprof/heap", "\x1f\x8bprofile")
	say("/debug/log-level", `{"level":"info","configured":"info"}`)
	return mux
}

// kubeAPIServer has a Deployment with secrets at every place that may have one.
func kubeAPIServer(t *testing.T) (kubeconfig string) {
	mux := http.NewServeMux()
	lastApplied, err := json.Marshal(map[string]any{"env": secret(6)})
	if err != nil {
		t.Fatal(err)
	}
	container := map[string]any{
		"name": "slicesvc", "args": []string{"--listen=:7603", "--token=" + secret(7), "--password", secret(8), "--tls-key-file=/tls/tls.key"},
		"env": []any{
			map[string]any{"name": "PLAIN", "value": secret(9)},
			map[string]any{"name": "FROM", "valueFrom": map[string]any{"secretKeyRef": map[string]any{"name": "trivet", "key": "a"}}},
		},
		"livenessProbe": map[string]any{"httpGet": map[string]any{"httpHeaders": []any{map[string]any{"name": "Cookie", "value": secret(10)}}}},
	}
	item := map[string]any{
		"metadata": map[string]any{
			"name": "slicesvc", "managedFields": []any{"long"},
			"annotations": map[string]any{
				"kubectl.kubernetes.io/last-applied-configuration": string(lastApplied), "deployer.example/secret": secret(11),
				"deployment.kubernetes.io/revision": "7",
			},
		},
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{container}, "initContainers": []any{container}}}},
	}
	mux.HandleFunc("GET /apis/apps/v1/namespaces/trivet-system/deployments", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "DeploymentList", "items": []any{item}})
	})
	mux.HandleFunc("GET /api/v1/namespaces/trivet-system/events", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "EventList", "items": []any{
			map[string]any{"message": "pull failed: eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ" + strings.ReplaceAll(secret(12), "-", "_") + ".c2lnbmF0dXJl and abcdef.0123456789abcdef"},
		}})
	})
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: a, clusters: [{name: a, cluster: {server: "http://%s"}}],
contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {token: %s}}]}`, serveHTTP(t, mux), secret(13))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(header.Name, "trivet-debug/")] = string(body)
	}
}

// Each source has secrets, and one replica of two accepts requests and answers none.
func TestBundle_HasEverySourceAndNoSecret(t *testing.T) {
	release := make(chan struct{})
	hanging := serveHTTP(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() { close(release) })
	cluster := &fakeCluster{replicas: map[string]string{"slicesvc-a": serveHTTP(t, replica()), "slicesvc-b": hanging, "../../etc": "127.0.0.1:1"}}
	server := commandtest.ServeServices(t, func(r grpc.ServiceRegistrar) {
		gatewayv1.RegisterClusterServiceServer(r, cluster)
		bootstrapv1.RegisterFindingServiceServer(r, &commandtest.Gateway{Findings: []*bootstrapv1.Finding{{
			Name: "findings/a", State: bootstrapv1.Finding_STATE_OPEN, Message: "the writer has client_secret=" + secret(14),
		}}})
	})
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	begin := time.Now()
	got := commandtest.Run(t, commandtest.Terminal{}, root,
		"debug", "bundle", "-o", path, "--server", server, "--kubeconfig", kubeAPIServer(t), "--timeout", "5s", "--time-limit", "30s")
	if got.Code != exit.OK || got.Stdout != path+"\n" || !strings.Contains(got.Stderr, "missing") {
		t.Fatalf("%s", got)
	}
	if took := time.Since(begin); took > 31*time.Second {
		t.Errorf("the archive took %v although one replica only hangs", took)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the archive has mode %v, %v", info.Mode(), err)
	}
	files := unpack(t, path)
	for name, want := range map[string]string{
		"status.json": "NO_LEADER", "findings.json": "findings/a",
		"replicas/slicesvc/slicesvc-a/readyz.txt": "[-]etcd failed", "replicas/slicesvc/slicesvc-a/loops.json": "endpointslices",
		"replicas/slicesvc/slicesvc-a/flags.json": `"tls-key-file":"/tls/tls.key"`, "replicas/slicesvc/slicesvc-a/metrics.txt": "trivet_build_info",
		"replicas/slicesvc/slicesvc-a/goroutines.txt": "goroutine profile", "replicas/slicesvc/slicesvc-a/heap.pb.gz": "profile",
		"replicas/slicesvc/slicesvc-a/log-level.json": "info",
		"kubernetes/deployments.json":                 "--tls-key-file=/tls/tls.key", "kubernetes/events.json": "pull failed",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s is %q, want it to contain %q", name, files[name], want)
		}
	}
	for name, body := range files {
		for _, leaked := range []string{"hunter2", "correct-horse", "correct_horse", "abcdef.0123456789abcdef", "managedFields"} {
			if strings.Contains(body, leaked) {
				t.Errorf("%s has the secret %q:\n%s", name, leaked, body)
			}
		}
		if strings.Contains(name, "..") {
			t.Errorf("a replica has chosen the path %s", name)
		}
	}
	var manifest struct {
		Files   []struct{ Path string }
		Missing []struct{ Path, Cause string }
	}
	if err := json.Unmarshal([]byte(files["manifest.json"]), &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest.Files) != len(files)-1 {
		t.Errorf("the manifest names %d files of %d", len(manifest.Files), len(files)-1)
	}
	causes := map[string]string{}
	for _, missing := range manifest.Missing {
		causes[missing.Path] = missing.Cause
	}
	for name, want := range map[string]string{
		"replicas/slicesvc/slicesvc-b/readyz.txt": "deadline",
		"replicas/slicesvc/slicesvc-b/heap.pb.gz": "did not answer /readyz",
		"replicas/slicesvc/_.._etc/loops.json":    "refused",
		"kubernetes/daemonsets.json":              "could not find the requested resource",
		"check.json":                              "unknown",
	} {
		if !strings.Contains(causes[name], want) {
			t.Errorf("%s is missing because of %q, want %q", name, causes[name], want)
		}
	}
}

func TestBundle_WithoutAGatewayItIsWrittenNevertheless(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	got := commandtest.Run(t, commandtest.Terminal{}, root, "debug", "bundle", "-o", path, "--server", testkit.FreeAddress(t), "--timeout", "1s")
	if got.Code != exit.OK {
		t.Fatalf("%s", got)
	}
	files := unpack(t, path)
	if len(files) != 1 || !strings.Contains(files["manifest.json"], "connection refused") || !strings.Contains(files["manifest.json"], "no kubeconfig was chosen") {
		t.Errorf("the archive has %v", files)
	}
}

func TestBundle_IsBounded(t *testing.T) {
	cluster := &fakeCluster{replicas: map[string]string{"slicesvc-a": serveHTTP(t, replica())}}
	server := commandtest.ServeServices(t, func(r grpc.ServiceRegistrar) { gatewayv1.RegisterClusterServiceServer(r, cluster) })
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	got := commandtest.Run(t, commandtest.Terminal{}, root, "debug", "bundle", "-o", path, "--server", server, "--max-bytes", "100")
	files := unpack(t, path)
	total := 0
	for name, body := range files {
		if name != "manifest.json" {
			total += len(body)
		}
	}
	if got.Code != exit.OK || total > 100 || total == 0 || !strings.Contains(files["manifest.json"], "the archive has --max-bytes already") {
		t.Errorf("%d bytes: %s", total, got)
	}
}

func TestLogLevel_ChangesEveryReplica(t *testing.T) {
	level := observe.NewLogLevel(observe.LogConfig{})
	admin := func() string {
		mux := http.NewServeMux()
		mux.HandleFunc(loglevel.Path, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut && r.URL.RawQuery == "for=2m0s&level=debug" {
				_, _ = io.WriteString(w, `{"level":"debug","configured":"info","until":"2026-11-23T07:00:00Z"}`)
				return
			}
			_ = json.NewEncoder(w).Encode(level.State())
		})
		return serveHTTP(t, mux)
	}
	cluster := &fakeCluster{replicas: map[string]string{"slicesvc-a": admin(), "slicesvc-b": admin()}}
	server := commandtest.ServeServices(t, func(r grpc.ServiceRegistrar) { gatewayv1.RegisterClusterServiceServer(r, cluster) })
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"slicesvc"}, exit.OK, "slicesvc-a  info\nslicesvc-b  info\n"},
		{[]string{"slicesvc", "debug", "--for", "2m"}, exit.OK, "slicesvc-b  debug until "},
		{[]string{"leasesvc"}, exit.Undetermined, ""},
		{[]string{"slicesvc", "loud"}, exit.Usage, ""},
		{nil, exit.Usage, ""},
	} {
		got := commandtest.Run(t, commandtest.Terminal{}, root, append([]string{"debug", "log-level", "--server", server}, c.args...)...)
		if got.Code != c.code || !strings.Contains(got.Stdout, c.want) {
			t.Errorf("log-level %q: %s", c.args, got)
		}
	}
}

// A replica chooses its answer. It must not write to the terminal of the person.
func TestLogLevel_AnswersHaveNoControlCharacters(t *testing.T) {
	level := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"level":"info\u001b]0;owned\u0007\nslicesvc-c  info","configured":"info"}`)
	}))
	failure := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "\x1b[2Jslicesvc-c  info", http.StatusTeapot)
	}))
	cluster := &fakeCluster{replicas: map[string]string{"slicesvc-a": level, "slicesvc-b": failure}}
	server := commandtest.ServeServices(t, func(r grpc.ServiceRegistrar) { gatewayv1.RegisterClusterServiceServer(r, cluster) })
	got := commandtest.Run(t, commandtest.Terminal{}, root, "debug", "log-level", "--server", server, "slicesvc")
	if strings.ContainsAny(got.Stdout, "\x1b\x07") || strings.Count(got.Stdout, "\n") != 2 {
		t.Errorf("the output is %q, want two lines without control characters", got.Stdout)
	}
}
