package dashboard

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	"github.com/trivet-dev/trivet/test/lab/clustertest"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
)

const secret = "token-of-the-kubeconfig"

// page is a gateway's page with TLS. It records its requests.
type page struct {
	next chan string // lines of the stream /v1/watch
	old  bool        // has no keyFile

	mu       sync.Mutex // guards requests
	requests []string
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user := "none"
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		user = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	p.mu.Lock()
	p.requests = append(p.requests, fmt.Sprint(r.Proto, " ", user, " ", r.Method, " ", r.URL, " ", r.Header))
	p.mu.Unlock()
	if r.URL.Path == "/v1/watch" {
		w.Header().Set("Cache-Control", "no-store, no-transform")
		w.Header().Set("X-Accel-Buffering", "no")
		_ = http.NewResponseController(w).Flush()
		for line := range p.next {
			fmt.Fprintln(w, line)
			_ = http.NewResponseController(w).Flush()
		}
		return
	}
	if p.old && r.URL.Path == keyFile {
		http.NotFound(w, r)
		return
	}
	fmt.Fprintf(w, "the page for %s%s", user, r.Header.Get("Authorization"))
}

func (p *page) received() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.requests...)
}

// fixture is a cluster with a page.
type fixture struct {
	*clustertest.Cluster
	page             *page
	servers, clients *identitytest.Authority
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{
		Cluster: clustertest.New(t), page: &page{next: make(chan string)},
		servers: identitytest.NewAuthority(t, "servers"), clients: identitytest.NewAuthority(t, "clients"),
	}
	certificate, err := tls.X509KeyPair(f.servers.Issue(t, "gateway"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(identitytest.Bundle(f.clients))
	server := httptest.NewUnstartedServer(f.page)
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven}
	server.StartTLS()
	t.Cleanup(server.Close)
	f.SetAuthorities(identitytest.Bundle(f.servers))
	f.SetPod("gateway-1", true, map[string]string{"http": server.Listener.Addr().String()})
	return f
}

func (f *fixture) kubeconfig(t *testing.T) string {
	t.Helper()
	certificate, key := f.clients.Issue(t, "person")
	return f.Kubeconfig(t, &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key, Token: secret})
}

// running is a running `trivet dashboard`.
type running struct {
	url  *url.URL
	file string
	stop func() error
	text *strings.Builder // standard output, to be read after stop
}

// start runs the command until the browser would open.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	files := make(chan string, 1)
	command := func(streams printer.Streams) *cobra.Command {
		return newCommand(streams, func(_ context.Context, file string) error { files <- file; return nil })
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{text: &strings.Builder{}}
	done := make(chan error, 1)
	go func() { done <- commandtest.Execute(ctx, commandtest.Pipe(r.text, io.Discard), command, args...) }()
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = r.stop() })
	select {
	case r.file = <-files:
	case err := <-done:
		done <- err
		t.Fatalf("trivet dashboard: %v", err)
	}
	text, err := os.ReadFile(r.file)
	if err != nil {
		t.Fatal(err)
	}
	if r.url, err = url.Parse(html.UnescapeString(regexp.MustCompile(`url=([^"]+)"`).FindStringSubmatch(string(text))[1])); err != nil {
		t.Fatal(err)
	}
	return r
}

// at returns the address of a path of the page.
func (r *running) at(path string) string { return "http://" + r.url.Host + path }

func (r *running) key() string { return strings.TrimPrefix(r.url.Fragment, "key=") }

// person returns a client that sends the key, as the page does.
func (r *running) person() *http.Client {
	return &http.Client{Transport: roundTrip(func(request *http.Request) (*http.Response, error) {
		request = request.Clone(request.Context())
		request.Header.Set(keyHeader, r.key())
		return http.DefaultTransport.RoundTrip(request)
	})}
}

// ask returns the status and the body of an answer.
func ask(t *testing.T, client *http.Client, request *http.Request) (int, string) {
	t.Helper()
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func request(t *testing.T, method, address string, headers ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, address, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		if r.Header.Set(name, value); name == "Host" {
			r.Host = value
		}
	}
	return r
}

func TestDashboard_RelaysThePageWithTheIdentityOfThePerson(t *testing.T) {
	f := newFixture(t)
	d := start(t, "--kubeconfig", f.kubeconfig(t))
	person := d.person()
	if code, body := ask(t, http.DefaultClient, request(t, "GET", d.url.String(), "Sec-Fetch-Site: cross-site")); code != http.StatusOK || body != "the page for person" { // from the file
		t.Fatalf("the URL with the key: %d %q", code, body)
	}
	forged := request(t, "GET", d.at("/v1/status"), "Authorization: Bearer of-the-page", "X-Remote-User: boss", "Grpc-Metadata-X-Remote-User: boss")
	if code, body := ask(t, person, forged); code != http.StatusOK || body != "the page for person" {
		t.Errorf("the page: %d %q", code, body)
	}

	stream, err := person.Do(request(t, "GET", d.at("/v1/watch")))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	if cache, buffer := stream.Header.Values("Cache-Control"), stream.Header.Get("X-Accel-Buffering"); len(cache) != 1 || cache[0] != "no-store, no-transform" || buffer != "no" {
		t.Errorf("the stream has Cache-Control %q and X-Accel-Buffering %q, want those of the gateway", cache, buffer)
	}
	lines := bufio.NewScanner(stream.Body)
	for _, line := range []string{"first", "second"} {
		f.page.next <- line // the next one only after this one has arrived
		if !lines.Scan() || lines.Text() != line {
			t.Fatalf("the stream gave %q, %v, want %q", lines.Text(), lines.Err(), line)
		}
	}
	close(f.page.next)

	for _, received := range f.page.received() {
		if !strings.HasPrefix(received, "HTTP/2.0 person GET") {
			t.Errorf("the page received %s", received)
		}
		for _, hidden := range []string{secret, "of-the-page", "boss", d.key(), "Cookie"} {
			if strings.Contains(received, hidden) {
				t.Errorf("the page received %q: %s", hidden, received)
			}
		}
	}
	if forwards := f.Upgrades(); len(forwards) != 1 {
		t.Errorf("port-forwards: %q, want one for all requests", forwards)
	}
}

func TestDashboard_SendsTheTokenOfAServiceAccount(t *testing.T) {
	f := newFixture(t)
	d := start(t, "--kubeconfig", f.kubeconfig(t), "--as-serviceaccount", "ci/robot")
	if code, body := ask(t, d.person(), request(t, "GET", d.at("/v1/status"))); code != http.StatusOK || body != "the page for noneBearer token-1" {
		t.Errorf("the page: %d %q", code, body)
	}
}

func TestDashboard_AnswersOnlyThePageWithTheKey(t *testing.T) {
	f := newFixture(t)
	d := start(t, "--kubeconfig", f.kubeconfig(t))
	person, another := d.person(), http.DefaultClient
	asked := len(f.page.received()) // by the probe
	for name, c := range map[string]struct {
		client  *http.Client
		request *http.Request
		want    int
	}{
		"another user":                    {client: another, request: request(t, "GET", d.at("/v1/status")), want: http.StatusForbidden},
		"another user, a change":          {client: another, request: request(t, "POST", d.at("/v1/repairs")), want: http.StatusForbidden},
		"another user, not a file":        {client: another, request: request(t, "GET", d.at("/assets/../v1/status")), want: http.StatusForbidden},
		"another user, not a file either": {client: another, request: request(t, "GET", d.at("/assets/%2e%2e%2fv1/status")), want: http.StatusForbidden},
		"another user, a file's change":   {client: another, request: request(t, "POST", d.at("/")), want: http.StatusForbidden},
		"a guessed key":                   {client: another, request: request(t, "GET", d.at("/v1/status"), keyHeader+": guess"), want: http.StatusForbidden},
		"the key in the URL":              {client: another, request: request(t, "GET", d.at("/v1/status?key="+d.key())), want: http.StatusForbidden},
		"the key in a cookie":             {client: another, request: request(t, "GET", d.at("/v1/status"), "Cookie: "+keyHeader+"="+d.key()), want: http.StatusForbidden},
		"a website's name":                {client: person, request: request(t, "GET", d.at("/"), "Host: evil.example:"+d.url.Port()), want: http.StatusMisdirectedRequest},
		"another port as the host":        {client: person, request: request(t, "GET", d.at("/"), "Host: localhost:1"), want: http.StatusMisdirectedRequest},
		"a page of another port":          {client: person, request: request(t, "GET", d.at("/v1/status"), "Sec-Fetch-Site: same-site"), want: http.StatusForbidden},
		"a website":                       {client: person, request: request(t, "POST", d.at("/v1/repairs"), "Sec-Fetch-Site: cross-site"), want: http.StatusForbidden},
		"a page of another port, Origin":  {client: person, request: request(t, "POST", d.at("/v1/repairs"), "Origin: http://127.0.0.1:1"), want: http.StatusForbidden},
		"a sandboxed page":                {client: person, request: request(t, "POST", d.at("/v1/repairs"), "Origin: null"), want: http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			if code, body := ask(t, c.client, c.request); code != c.want || strings.Contains(body, "the page for") {
				t.Errorf("%d %q, want %d", code, body, c.want)
			}
			if got := f.page.received(); len(got) != asked {
				t.Errorf("the gateway received %q", got[asked:])
			}
		})
	}
	if code, body := ask(t, person, request(t, "POST", d.at("/v1/repairs"), "Sec-Fetch-Site: same-origin", "Origin: http://"+d.url.Host)); code != http.StatusOK {
		t.Errorf("the page itself: %d %q", code, body)
	}
}

// A browser sends what it keeps for 127.0.0.1 to each port there, also to the server of another
// user to which a website leads it. So this server gives it nothing to keep, and no request shows
// the key before the page sends it.
func TestDashboard_ABrowserSendsNothingToAnotherPort(t *testing.T) {
	f := newFixture(t)
	d := start(t, "--kubeconfig", f.kubeconfig(t))
	for _, path := range []string{"/", "/assets/key.js", "/v1/status"} {
		response, err := d.person().Do(request(t, "GET", d.at(path)))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if cookies := response.Cookies(); len(cookies) > 0 {
			t.Errorf("%s: cookies %v", path, cookies)
		}
	}
	if sent := d.url.RequestURI(); sent != "/" || d.key() == "" {
		t.Errorf("the URL %s makes a browser request %q, want / without the key", d.url, sent)
	}
}

func TestDashboard_KeepsTheKeyFromOtherUsersAndLeavesNothing(t *testing.T) {
	f := newFixture(t)
	d := start(t, "--kubeconfig", f.kubeconfig(t))
	if info, err := os.Stat(d.file); err != nil || info.Mode().Perm() != 0o600 || strings.Contains(d.file, d.key()) {
		t.Errorf("the file for the browser: %v, %v, want mode 0600 and no key in its name", info, err)
	}
	other := start(t, "--kubeconfig", f.kubeconfig(t))
	if d.key() == other.key() {
		t.Errorf("two dashboards have one key %q", d.key())
	}
	if err := d.stop(); err != nil {
		t.Errorf("trivet dashboard, interrupted: %v", err)
	}
	if got := strings.TrimSpace(d.text.String()); got != d.url.String() {
		t.Errorf("standard output %q, want %q", got, d.url)
	}
	if _, err := os.Stat(d.file); !os.IsNotExist(err) {
		t.Errorf("the file for the browser: %v, want it removed", err)
	}
}

func TestDashboard_AnUnreachedPageIsAnError(t *testing.T) {
	f := newFixture(t)
	f.SetAuthorities(nil)
	got := commandtest.Run(t, commandtest.Terminal{}, NewCommand, "--kubeconfig", f.kubeconfig(t), "--no-open")
	if got.Code != exit.Undetermined || !strings.Contains(got.Stderr, "no page from the gateway in namespace trivet-system of context test") ||
		!strings.Contains(got.Stderr, "trivet certs") {
		t.Errorf("trivet dashboard: %s", got)
	}
	f = newFixture(t)
	f.page.old = true
	got = commandtest.Run(t, commandtest.Terminal{}, NewCommand, "--kubeconfig", f.kubeconfig(t), "--no-open")
	if got.Code != exit.Undetermined || !strings.Contains(got.Stderr, "its page is older than this program") {
		t.Errorf("trivet dashboard with an older gateway: %s", got)
	}
	got = commandtest.Run(t, commandtest.Terminal{}, NewCommand, "--port=70000", "--as=boss", "x")
	if got.Code != exit.Usage || strings.Count(got.Stderr, "error: ") != 3 {
		t.Errorf("trivet dashboard --port=70000 --as=boss x: %s", got)
	}
}

func TestDashboard_ALostGatewayIsAnAnswer(t *testing.T) {
	f := newFixture(t)
	d := start(t, "--kubeconfig", f.kubeconfig(t))
	person := d.person()
	f.DeletePod("gateway-1")
	code, body := ask(t, person, request(t, "GET", d.at("/")))
	for code == http.StatusOK { // the connection may outlive the Pod for a moment
		code, body = ask(t, person, request(t, "GET", d.at("/")))
	}
	for code == http.StatusBadGateway && !strings.Contains(body, "there is no gateway in namespace") {
		code, body = ask(t, person, request(t, "GET", d.at("/"))) // the first failure is that of the old connection
	}
	if code != http.StatusBadGateway {
		t.Errorf("%d %q", code, body)
	}
}
