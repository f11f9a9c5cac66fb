package endpoint

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/apiservertest"
	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/kubeconfig"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestServe_OnlyTheNodeIsAnswered(t *testing.T) {
	t.Parallel()
	f := newFixture(t, http.HandlerFunc(echo))
	foreign := apiservertest.NewCluster(t, node)
	foreignCertificate := foreign.Issue(t, certs.NodeLeaf(node))
	for name, c := range map[string]struct {
		certificate *tls.Certificate
		want        int
	}{
		"the node":               {f.issue(certs.NodeLeaf(node)), http.StatusOK},
		"no certificate":         {nil, http.StatusUnauthorized},
		"another node":           {f.issue(certs.NodeLeaf("node-2")), http.StatusUnauthorized},
		"administrator":          {f.issue(certs.ClientLeaf("admin", "system:masters")), http.StatusUnauthorized},
		"the user, other group":  {f.issue(certs.ClientLeaf("system:node:"+node, "system:masters")), http.StatusUnauthorized},
		"another authority":      {&foreignCertificate, http.StatusUnauthorized},
		"no certificate of ours": {f.issue(certs.ClientLeaf("")), http.StatusUnauthorized},
	} {
		for _, http2 := range []bool{true, false} {
			client := f.client(c.certificate, http2)
			for range 2 {
				response, text := f.do(client, http.MethodGet, "/api/v1/nodes/"+node, nil, "Authorization", "Bearer abcdef.0123456789abcdef")
				if response.StatusCode != c.want {
					t.Errorf("%s, HTTP/2 %v: %d %s, want %d", name, http2, response.StatusCode, text, c.want)
				}
			}
		}
	}
}

func TestServe_StrangerIsRefusedBeforeTheBodyIsRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t, http.HandlerFunc(echo))
	conn, err := tls.Dial("tcp", strings.TrimPrefix(f.url, "https://"), f.clientTLS(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /api/v1/nodes HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized || !response.Close {
		t.Errorf("answer %v, close %v", response.Status, response.Close)
	}
}

func TestServe_RequestsPassByteByByte(t *testing.T) {
	t.Parallel()
	f := newFixture(t, http.HandlerFunc(echo))
	client := f.kubelet()
	for _, path := range []string{
		"/api/v1/nodes/a%2Fb", "/api//v1", "/a/../b", "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1&x=a;b", "/openapi/v2?timeout=32s",
	} {
		u, err := url.Parse(f.url + path)
		if err != nil {
			t.Fatal(err)
		}
		u.Opaque = "" // the path is sent as it is
		if _, text := f.do(client, http.MethodGet, path, nil); !strings.HasPrefix(text, "GET "+path+"\n") {
			t.Errorf("GET %s arrives as %s", path, text)
		}
	}
	_, text := f.do(client, http.MethodGet, "/", nil,
		"X-Remote-User", "admin", "X-Remote-Group", "system:masters", "X-Remote-Extra-A", "b", "Authorization", "Bearer token", "Impersonate-User", "other", "Accept", "x/y")
	for header, want := range map[string]bool{"X-Remote": false, "Authorization": false, "Impersonate-User: other": true, "Accept: x/y": true, "X-Forwarded": false} {
		if strings.Contains(text, header) != want {
			t.Errorf("%s passes: %v, want %v\n%s", header, !want, want, text)
		}
	}
}

func TestServe_LimitsHeadersAndBodies(t *testing.T) {
	t.Parallel()
	f := newFixture(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusOK)
	}))
	client := f.client(f.issue(certs.NodeLeaf(node)), false)
	if code := f.code(client, http.MethodGet, "/", "X", strings.Repeat("x", 2*maxHeaderBytes)); code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a large header: %d", code)
	}
	if response, _, err := f.try(client, http.MethodPost, "/api/v1/events", strings.NewReader(strings.Repeat("x", maxBodyBytes+1))); err == nil && response.StatusCode < 400 {
		t.Errorf("a large body: %v", response.Status)
	}
	if response, text := f.do(client, http.MethodPost, "/api/v1/events", strings.NewReader(strings.Repeat("x", 3<<20))); response.StatusCode != http.StatusOK {
		t.Errorf("a body of kube-apiserver's limit: %v %s", response.Status, text)
	}
}

func TestServe_WatchFlowsEventByEvent(t *testing.T) {
	t.Parallel()
	events := make(chan string)
	f := newFixture(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for {
			select {
			case event := <-events:
				_, _ = io.WriteString(w, event+"\n")
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+"/api/v1/pods?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() { events <- "0" }()
	response, err := f.kubelet().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for i := range 3 {
		if i > 0 {
			events <- fmt.Sprint(i)
		}
		if !lines.Scan() || lines.Text() != fmt.Sprint(i) {
			t.Fatalf("event %d: %q %v", i, lines.Text(), lines.Err())
		}
	}
	// The watch ends when its server dies, so that the kubelet opens another one.
	f.server.Kill()
	if lines.Scan() || lines.Err() == nil {
		t.Errorf("the watch goes on or ends as if it were complete: %q", lines.Text())
	}
}

func TestServe_UpgradedConnectionsPassBothWays(t *testing.T) {
	t.Parallel()
	f := newFixture(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(buffered, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		_ = buffered.Flush()
		line, _ := buffered.ReadString('\n')
		fmt.Fprintf(conn, "echo %s", line)
	}))
	for _, protocol := range []string{"SPDY/3.1", "websocket"} {
		config := f.clientTLS(f.issue(certs.NodeLeaf(node)))
		conn, err := tls.Dial("tcp", strings.TrimPrefix(f.url, "https://"), config)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintf(conn, "POST /api/v1/namespaces/a/pods/b/exec?command=c HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol)
		reader := bufio.NewReader(conn)
		response, err := http.ReadResponse(reader, nil)
		if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%s: %v %v", protocol, response, err)
		}
		fmt.Fprintf(conn, "hello\n")
		if line, err := reader.ReadString('\n'); err != nil || line != "echo hello\n" {
			t.Errorf("%s: %q %v", protocol, line, err)
		}
	}
}

func TestBootstrap_PassesWithATokenWhileThereIsNoCertificate(t *testing.T) {
	t.Parallel()
	f := newFixture(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) > 0 {
			t.Error("a bootstrap request passes with a certificate")
		}
		echo(w, r)
	}))
	f.stop()
	content, err := os.ReadFile(f.cluster.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.cluster.CertFile); err != nil {
		t.Fatal(err)
	}
	f.start()
	const token, path = "Bearer abcdef.0123456789abcdef", "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	client := f.client(nil, true)
	for name, c := range map[string]struct {
		method, path, token string
		header              []string
		want                int
	}{
		"create":                  {method: "POST", path: path + "?timeout=10s", want: 200},
		"read":                    {method: "GET", path: path + "/node-csr-a_B-c", want: 200},
		"list":                    {method: "GET", path: path + "?fieldSelector=metadata.name%3Dnode-csr-a", want: 200},
		"watch":                   {method: "GET", path: path + "?fieldSelector=metadata.name%3Dnode-csr-a&watch=true&resourceVersion=1", want: 200},
		"health":                  {method: "GET", path: "/healthz", want: 200},
		"list of all":             {method: "GET", path: path, want: 401},
		"two selectors":           {method: "GET", path: path + "?fieldSelector=metadata.name%3Da&fieldSelector=", want: 401},
		"wider selector":          {method: "GET", path: path + "?fieldSelector=metadata.name%3Da%2Cx%21%3Db", want: 401},
		"approval":                {method: "PUT", path: path + "/a/approval", want: 401},
		"approval, encoded":       {method: "GET", path: path + "/a%2Fapproval", want: 401},
		"delete":                  {method: "DELETE", path: path + "/a", want: 401},
		"secrets":                 {method: "GET", path: "/api/v1/secrets", want: 401},
		"node":                    {method: "POST", path: "/api/v1/nodes", want: 401},
		"double slash":            {method: "POST", path: "/" + path, want: 401},
		"token of another kind":   {method: "POST", path: path, token: "Bearer eyJhbGciOi", want: 401},
		"no token":                {method: "POST", path: path, token: "-", want: 401},
		"impersonation":           {method: "POST", path: path, header: []string{"Impersonate-User", "admin"}, want: 401},
		"password instead":        {method: "POST", path: path, token: "Basic YTpi", want: 401},
		"upgrade":                 {method: "GET", path: path + "/a", header: []string{"Upgrade", "websocket"}, want: 401},
		"token of the front":      {method: "GET", path: path + "/a", header: []string{"X-Remote-User", "admin"}, want: 200},
		"two tokens":              {method: "POST", path: path, header: []string{"Authorization", token}, want: 401},
		"selector of other field": {method: "GET", path: path + "?fieldSelector=spec.signerName%3Da", want: 401},
	} {
		header := append([]string{"Authorization", strings.Replace(firstOf(c.token, token), "-", "", 1)}, c.header...)
		if c.token == "-" {
			header = c.header
		}
		if len(c.header) > 0 && c.header[0] == "Upgrade" {
			client = f.client(nil, false)
		}
		response, text := f.do(client, c.method, c.path, nil, header...)
		if response.StatusCode != c.want {
			t.Errorf("%s: %d, want %d", name, response.StatusCode, c.want)
		}
		if c.want == 200 && (!strings.Contains(text, "Authorization: "+token) || strings.Contains(text, "X-Remote")) {
			t.Errorf("%s arrives as\n%s", name, text)
		}
	}
	// The kubelet with a certificate of its own cannot pass before the agent has one.
	if code := f.code(f.client(f.issue(certs.NodeLeaf(node)), true), "GET", "/api/v1/nodes"); code != http.StatusServiceUnavailable {
		t.Errorf("a request of the node without the agent's certificate: %d", code)
	}
	// Once there is a certificate, the token opens nothing.
	if err := os.WriteFile(f.cluster.CertFile, content, 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		if code := f.code(client, "POST", path, "Authorization", token); code != http.StatusUnauthorized {
			return fmt.Errorf("the token still passes: %d", code)
		}
		return nil
	})
}

// A person deletes the certificate of a kubelet to have it registered anew. The kubelet that still
// runs with it goes on.
func TestBootstrap_PassesAfterTheCertificateWasDeleted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, http.HandlerFunc(echo))
	const token, path = "Bearer abcdef.0123456789abcdef", "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	kubelet, starting := f.kubelet(), f.client(nil, true)
	await := func(want int) {
		t.Helper()
		testkit.Eventually(t, 30*time.Second, func() error {
			if code := f.code(starting, "POST", path, "Authorization", token); code != want {
				return fmt.Errorf("a bootstrap request: %d, want %d", code, want)
			}
			return nil
		})
	}
	await(http.StatusUnauthorized)
	if err := os.Remove(f.cluster.CertFile); err != nil {
		t.Fatal(err)
	}
	await(http.StatusOK)
	if code := f.code(kubelet, "GET", "/api/v1/nodes"); code != http.StatusOK {
		t.Errorf("a request of the kubelet that runs: %d", code)
	}
	f.cluster.Rotate(t)
	await(http.StatusUnauthorized)
	if code := f.code(f.kubelet(), "GET", "/api/v1/nodes"); code != http.StatusOK {
		t.Errorf("a request with the new certificate: %d", code)
	}
}

func firstOf(values ...string) string {
	for _, value := range values {
		if value != "" {
			return value
		}
	}
	return ""
}

func TestConnections_StrangersDoNotKeepTheKubeletOut(t *testing.T) {
	t.Parallel()
	f := newFixture(t, http.HandlerFunc(echo))
	address := strings.TrimPrefix(f.url, "https://")
	kubelet := f.kubelet()
	if code := f.code(kubelet, "GET", "/"); code != http.StatusOK {
		t.Fatalf("before: %d", code)
	}
	var strangers []net.Conn
	defer func() {
		for _, conn := range strangers {
			conn.Close()
		}
	}()
	for range 2 * maxStrangers {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		strangers = append(strangers, conn)
	}
	for name, client := range map[string]*http.Client{"open connection": kubelet, "new connection": f.kubelet()} {
		if code := f.code(client, "GET", "/"); code != http.StatusOK {
			t.Errorf("%s: %d", name, code)
		}
	}
	if n, _ := f.conns.count(); n > maxStrangers {
		t.Errorf("%d connections of strangers, want %d at most", n, maxStrangers)
	}
	if _, n := f.conns.count(); n != 2 {
		t.Errorf("%d connections of the node, want 2", n)
	}
}

func TestCallers_FollowTheAuthority(t *testing.T) {
	t.Parallel()
	f := newFixture(t, http.HandlerFunc(echo))
	next := apiservertest.NewCluster(t, node)
	nextCertificate := next.Issue(t, certs.NodeLeaf(node))
	before, after := f.kubelet(), f.client(&nextCertificate, true)
	expect := func(client *http.Client, want int) {
		t.Helper()
		if code := f.code(client, "GET", "/"); code != want {
			t.Errorf("code %d, want %d", code, want)
		}
	}
	expect(before, http.StatusOK)
	expect(after, http.StatusUnauthorized)
	if err := f.callers.use(certs.Bundle(f.cluster.Authority, next.Authority)); err != nil {
		t.Fatal(err)
	}
	expect(before, http.StatusOK)
	expect(after, http.StatusOK)
	if err := f.callers.use(certs.Bundle(next.Authority)); err != nil {
		t.Fatal(err)
	}
	expect(before, http.StatusUnauthorized) // also on its open connection
	expect(after, http.StatusOK)
}

func TestCallers_CertificateEndsOnAnOpenConnection(t *testing.T) {
	f := newFixture(t, http.HandlerFunc(echo))
	pair, err := f.cluster.Authority.Issue(certs.NodeLeaf(node), 2*time.Second, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	client := f.client(&certificate, true)
	if code := f.code(client, "GET", "/"); code != http.StatusOK {
		t.Errorf("code %d", code)
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		if code := f.code(client, "GET", "/"); code != http.StatusUnauthorized {
			return fmt.Errorf("code %d after the end of the certificate", code)
		}
		return nil
	})
}

func TestNew_RefusesAnAddressThatIsNotLoopbackAndAKubeconfigThatLeadsBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	for listen, server := range map[string]string{
		"0.0.0.0:7604": "https://10.0.0.1:6443", "10.0.0.1:7604": "https://10.0.0.1:6443", "127.0.0.1": "https://10.0.0.1:6443",
		"127.0.0.1:7604": "https://localhost:7604", "localhost:7604": "https://127.0.0.1:7604",
	} {
		u, err := url.Parse(server)
		if err != nil {
			t.Fatal(err)
		}
		cfg := f.cfg
		cfg.Listener, cfg.Listen, cfg.Kubeconfig = nil, listen, kubeconfig.File{Server: u, CAFile: f.cluster.CAFile}
		if _, err := New(cfg); err == nil {
			t.Errorf("New() accepts %s with a kubeconfig for %s", listen, server)
		}
	}
}

func TestCollect_LabelsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, http.HandlerFunc(echo))
	client := f.kubelet()
	for i := range 20 {
		f.code(client, "GET", fmt.Sprintf("/apis/g%d/v1/kind%d", i, i))
		f.code(client, fmt.Sprintf("VERB%d", i), fmt.Sprintf("/api/v1/namespaces/a/pods/p%d/status", i))
		f.code(client, "GET", fmt.Sprintf("/path%d", i))
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(f.Endpoint)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if n := len(family.Metric); family.GetName() == "trivet_agent_endpoint_requests_total" && n != 3 {
			t.Errorf("%d series, want 3: %v", n, family)
		}
	}
	if err := f.Ready(); err != nil {
		t.Error(err)
	}
}
