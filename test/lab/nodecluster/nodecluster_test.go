package nodecluster

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

func TestConfig_ReportsEveryProblem(t *testing.T) {
	if err := DefaultConfig("/dir", "/assets", "/trivet").validate(); err != nil {
		t.Fatalf("the default is refused: %v", err)
	}
	config := Config{Dir: "relative", Assets: "/assets", Nodes: []NodeConfig{{Name: "w1"}, {Name: "w1"}, {Name: "Upper"}, {Name: "hub"}, {Name: "toolongname"}}}
	err := config.validate()
	for _, want := range []string{"absolute", "first node", "two nodes have the name w1", `"Upper"`, `"hub"`, `"toolongname"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

func TestAddresses_OfNodesAndPodsDoNotOverlap(t *testing.T) {
	seen := map[netip.Addr]bool{hubAddress(): true}
	for i := range maxNodes {
		if seen[nodeAddress(i)] {
			t.Fatalf("node %d has the address of another one: %s", i, nodeAddress(i))
		}
		seen[nodeAddress(i)] = true
		if i > 0 && podCIDR(i).Overlaps(podCIDR(i-1)) || podCIDR(i).Contains(nodeAddress(i)) {
			t.Fatalf("the Pods of node %d have addresses of others: %s", i, podCIDR(i))
		}
	}
}

func TestStaticPods_EveryNodeRunsWhatItIsFor(t *testing.T) {
	config := DefaultConfig("/dir", "/assets", "/trivet").withDefaults()
	for i, want := range []string{
		"bootstrapsvc etcd gateway kube-apiserver kube-controller-manager kube-scheduler leasesvc slicesvc trivet-agent",
		"bootstrapsvc kube-apiserver trivet-agent",
		"trivet-agent",
		"trivet-agent",
	} {
		if got := namesOf(podsOf(t, config, i)); got != want {
			t.Errorf("node %d runs %q, want %q", i, got, want)
		}
	}
	config.WithoutTrivet, config.UpstreamEndpoints = true, true
	if got, want := namesOf(podsOf(t, config, 0)), "etcd kube-apiserver kube-controller-manager kube-scheduler"; got != want {
		t.Errorf("without Trivet the first node runs %q, want %q", got, want)
	}
}

func TestStaticPods_AreThoseOfDeployWithTheSettingsOfTheCluster(t *testing.T) {
	config := DefaultConfig("/dir", "/assets", "/trivet").withDefaults()
	config.ServerArgs = map[string][]string{"leasesvc": {"--log-level=debug"}}
	leasesvc := podsOf(t, config, 0)["leasesvc"]
	main := leasesvc.Spec.Containers[0]
	if loops := envOf(podsOf(t, config, 0)["slicesvc"])["TRIVET_LOOPS"]; loops != "*,endpointslice-mirroring" {
		t.Errorf("loops of slicesvc are %q", loops)
	}
	env := envOf(leasesvc)
	if env["TRIVET_ETCD_ENDPOINTS"] != "https://10.77.0.11:2379" || env["TRIVET_LOOPS"] != "*,node-health,taint-eviction" {
		t.Errorf("settings of leasesvc are %v", env)
	}
	if env["TRIVET_TLS_CERT_FILE"] == "" || !leasesvc.Spec.HostNetwork || main.LivenessProbe == nil {
		t.Error("leasesvc has not what all servers of deploy/static-pods share")
	}
	if !slices.Contains(main.Args, "--log-level=debug") || main.Image != trivetImage {
		t.Errorf("leasesvc runs %s with %v", main.Image, main.Args)
	}
	for i, node := range config.Nodes {
		args := podsOf(t, config, i)["trivet-agent"].Spec.Containers[0].Args
		if got, want := slices.Contains(args, "--kubelet-endpoint="+kubeletEndpoint), node.Agent == EndpointAgent; got != want {
			t.Errorf("the agent of %s has an endpoint: %v, want %v; its arguments are %v", node.Name, got, want, args)
		}
	}
	manager := podsOf(t, config, 0)["kube-controller-manager"]
	if !slices.Contains(manager.Spec.Containers[0].Args, "--controllers="+ReplacingControllers) {
		t.Errorf("kube-controller-manager has arguments %v", manager.Spec.Containers[0].Args)
	}
}

func envOf(pod *corev1.Pod) map[string]string {
	env := map[string]string{}
	for _, variable := range pod.Spec.Containers[0].Env {
		env[variable.Name] = variable.Value
	}
	return env
}

func podsOf(t *testing.T, config Config, i int) map[string]*corev1.Pod {
	t.Helper()
	manifests, err := staticPods(config, i)
	if err != nil {
		t.Fatal(err)
	}
	pods := map[string]*corev1.Pod{}
	for _, text := range manifests {
		pod := &corev1.Pod{}
		if err := yaml.UnmarshalStrict(text, pod); err != nil {
			t.Fatal(err)
		}
		if pod.Kind != "Pod" || pod.Spec.ServiceAccountName != "" {
			t.Errorf("%s %s of account %q is no static Pod", pod.Kind, pod.Name, pod.Spec.ServiceAccountName)
		}
		pods[pod.Name] = pod
	}
	return pods
}

func namesOf(pods map[string]*corev1.Pod) string {
	var names []string
	for name := range pods {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestEquipKubelet_WorkersKnowABalancedAddressAndCertificateFilesAreAsTheKubeletStoresThem(t *testing.T) {
	config := DefaultConfig("/dir", "/assets", "/trivet").withDefaults()
	pki, err := newAuthorities(filepath.Join(t.TempDir(), "pki"))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"https://127.0.0.1:6443", "https://127.0.0.1:6443", "https://10.77.0.11:6443", "https://10.96.0.1:443"} {
		root := t.TempDir()
		if err := pki.equipKubelet(config, i, root); err != nil {
			t.Fatal(err)
		}
		kubeconfig, err := clientcmd.LoadFromFile(filepath.Join(root, "etc/kubernetes/kubelet.conf"))
		if err != nil {
			t.Fatal(err)
		}
		if got := kubeconfig.Clusters["cluster"].Server; got != want {
			t.Errorf("the kubelet of node %d uses %s, want %s", i, got, want)
		}
		if target, err := os.Readlink(filepath.Join(root, "var/lib/kubelet/pki", kubeletCurrent)); err != nil || !strings.HasPrefix(target, "/var/lib/kubelet/pki/") {
			t.Errorf("current certificate is a link to %q, %v", target, err)
		}
	}
}

func TestWriteImage_IsAnArchiveWhoseDigestsAreRight(t *testing.T) {
	dir := t.TempDir()
	program, archive := filepath.Join(dir, "program"), filepath.Join(dir, "image.tar")
	if err := os.WriteFile(program, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("program", link); err != nil {
		t.Fatal(err)
	}
	if err := WriteImage(archive, "localhost/program:1", program, link); err != nil {
		t.Fatal(err)
	}
	files := untar(t, archive)
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil || len(manifest) != 1 {
		t.Fatalf("manifest %s: %v", files["manifest.json"], err)
	}
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
		Config struct{ Entrypoint []string }
	}
	if err := json.Unmarshal(files[manifest[0].Config], &config); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(files["layer.tar"])
	if want := "sha256:" + hex.EncodeToString(sum[:]); !slices.Equal(config.RootFS.DiffIDs, []string{want}) {
		t.Errorf("layer is %s, the image says %v", want, config.RootFS.DiffIDs)
	}
	if !slices.Equal(config.Config.Entrypoint, []string{"/program"}) || manifest[0].RepoTags[0] != "localhost/program:1" {
		t.Errorf("the image is %s and runs %v", manifest[0].RepoTags, config.Config.Entrypoint)
	}
	layer := filepath.Join(dir, "layer.tar")
	if err := os.WriteFile(layer, files["layer.tar"], 0o600); err != nil {
		t.Fatal(err)
	}
	inLayer := untar(t, layer)
	if program, link := string(inLayer["program"]), string(inLayer["link"]); program != "content" || link != "-> program" {
		t.Errorf("in the layer the program is %q and the link %q", program, link)
	}
}

// untar returns the contents of an archive by name, and "-> target" for a link.
func untar(t *testing.T, file string) map[string][]byte {
	t.Helper()
	content, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	files := map[string][]byte{}
	for archive := tar.NewReader(content); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeSymlink {
			files[header.Name] = []byte("-> " + header.Linkname)
			continue
		}
		if files[header.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadPID_AnotherProcessWithTheNumberIsNotTheProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	command := exec.Command("sleep", "60")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if err := writePID(file, command.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if pid, running := readPID(file); !running || pid != command.Process.Pid {
		t.Errorf("process %d, running %v, want %d", pid, running, command.Process.Pid)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), " ", " 1", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, running := readPID(file); running {
		t.Error("a process with another start time is taken for the process")
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// A zombie is no process that runs, so this does not depend on Wait.
	if err := poll(t.Context(), 10*time.Second, func() error {
		if _, running := readPID(file); running {
			return errors.New("still running")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	_ = command.Wait()
}

func TestBalancer_NewConnectionsGoToReadyServersAndToAnyIfNoneIsReady(t *testing.T) {
	var servers []netip.AddrPort
	var handlers []*httptest.Server
	for range 2 {
		server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		defer server.Close()
		handlers = append(handlers, server)
		servers = append(servers, netip.MustParseAddrPort(server.Listener.Addr().String()))
	}
	b := newBalancer(servers, new(net.Dialer).DialContext)
	client := handlers[0].Client()
	b.ready[0].Store(answers(t.Context(), client, servers[0]))
	if !b.ready[0].Load() {
		t.Fatal("a server that answers is not ready")
	}
	for range 4 {
		if got := dialed(t, b); got != servers[0] {
			t.Errorf("connected to %s, want the ready %s", got, servers[0])
		}
	}
	handlers[0].Close()
	b.ready[0].Store(answers(t.Context(), client, servers[0]))
	for range 4 {
		if got := dialed(t, b); got != servers[1] {
			t.Errorf("connected to %s, want %s: the other one is gone", got, servers[1])
		}
	}
}

func dialed(t *testing.T, b *balancer) netip.AddrPort {
	t.Helper()
	conn, err := b.dialReady(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return netip.MustParseAddrPort(conn.RemoteAddr().String())
}

func TestReaper_WaitsForItsChildrenAndStartsAProgramAgain(t *testing.T) {
	if os.Getenv("NODECLUSTER_REAPER") == "" {
		// In a process of its own, because a reaper waits for all children of its process.
		command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		command.Env = append(os.Environ(), "NODECLUSTER_REAPER=1")
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		return
	}
	dir := t.TempDir()
	children := newReaper()
	go children.run()
	status, err := children.execute(filepath.Join(dir, "log"), "sh", "-c", "echo said; exit 3")
	if err != nil || status.ExitStatus() != 3 {
		t.Errorf("exit status %d, %v, want 3", status.ExitStatus(), err)
	}
	if said, err := os.ReadFile(filepath.Join(dir, "log")); string(said) != "said\n" {
		t.Errorf("log is %q, %v", said, err)
	}
	if _, err := children.execute(filepath.Join(dir, "log"), filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing program has run")
	}
}

func TestRunChild_OtherArgumentsAreNoChild(t *testing.T) {
	for _, args := range [][]string{{"cluster", "up"}, {pid1Name}, {pid1Name, "a", "b"}} {
		if isChild, err := RunChild(context.Background(), args); isChild || err != nil {
			t.Errorf("%v is a child (%v)", args, err)
		}
	}
	if isChild, err := RunChild(context.Background(), []string{pid1Name, filepath.Join(t.TempDir(), "missing")}); !isChild || err == nil {
		t.Error("a node without a configuration runs")
	}
}
