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
	"net/http/cookiejar"
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
		_ = http.NewResponseController(w).Flush()
		for line := range p.next {
			fmt.Fprintln(w, line)
			_ = http.NewResponseController(w).Flush()
		}
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

// browser returns a client that keeps cookies.
func browser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Jar: jar}
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
	person := browser(t)
	if code, _ := ask(t, person, request(t, "GET", d.url.String(), "Sec-Fetch-Site: cross-site")); code != http.StatusOK { // from the file
		t.Fatalf("the URL with the key: %d", code)
	}
	forged := request(t, "GET", d.at("/"), "Authorization: Bearer of-the-page", "X-Remote-User: boss", "Grpc-Metadata-X-Remote-User: boss")
	if code, body := ask(t, person, forged); code != http.StatusOK || body != "the page for person" {
		t.Errorf("the page: %d %q", code, body)
	}

	stream, err := person.Do(request(t, "GET", d.at("/v1/watch")))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
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
		for _, hidden := range []string{secret, "of-the-page", "boss", d.url.Query().Get("key"), "Cookie"} {
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
	person := browser(t)
	ask(t, person, request(t, "GET", d.url.String()))
	if code, body := ask(t, person, request(t, "GET", d.at("/"))); code != http.StatusOK || body != "the page for noneBearer token-1" {
		t.Errorf("the page: %d %q", code, body)
	}
}

func TestDashboard_AnswersOnlyTheBrowserWithTheKey(t *testing.T) {
	f := newFixture(t)
	d := start(t, "--kubeconfig", f.kubeconfig(t))
	person := browser(t)
	ask(t, person, request(t, "GET", d.url.String()))
	asked := len(f.page.received()) // by the probe
	for name, c := range map[string]struct {
		client  *http.Client
		request *http.Request
		want    int
	}{
		"another user":                   {client: browser(t), request: request(t, "GET", d.at("/")), want: http.StatusForbidden},
		"another user, API":              {client: browser(t), request: request(t, "POST", d.at("/v1/repairs")), want: http.StatusForbidden},
		"a guessed key":                  {client: browser(t), request: request(t, "GET", d.at("/?key=guess")), want: http.StatusForbidden},
		"a guessed cookie":               {client: browser(t), request: request(t, "GET", d.at("/"), "Cookie: trivet-dashboard-"+d.url.Port()+"=guess"), want: http.StatusForbidden},
		"the key elsewhere":              {client: browser(t), request: request(t, "GET", d.at("/v1/status?"+d.url.RawQuery)), want: http.StatusForbidden},
		"a website's name":               {client: person, request: request(t, "GET", d.at("/"), "Host: evil.example:"+d.url.Port()), want: http.StatusMisdirectedRequest},
		"a website's name with the key":  {client: browser(t), request: request(t, "GET", d.url.String(), "Host: evil.example:"+d.url.Port()), want: http.StatusMisdirectedRequest},
		"another port as the host":       {client: person, request: request(t, "GET", d.at("/"), "Host: localhost:1"), want: http.StatusMisdirectedRequest},
		"a page of another port":         {client: person, request: request(t, "GET", d.at("/"), "Sec-Fetch-Site: same-site"), want: http.StatusForbidden},
		"a website":                      {client: person, request: request(t, "POST", d.at("/v1/repairs"), "Sec-Fetch-Site: cross-site"), want: http.StatusForbidden},
		"a page of another port, Origin": {client: person, request: request(t, "POST", d.at("/v1/repairs"), "Origin: http://127.0.0.1:1"), want: http.StatusForbidden},
		"a sandboxed page":               {client: person, request: request(t, "POST", d.at("/v1/repairs"), "Origin: null"), want: http.StatusForbidden},
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

func TestDashboard_KeepsTheKeyFromOtherUsersAndLeavesNothing(t *testing.T) {
	f := newFixture(t)
	d := start(t, "--kubeconfig", f.kubeconfig(t))
	if info, err := os.Stat(d.file); err != nil || info.Mode().Perm() != 0o600 || strings.Contains(d.file, d.url.Query().Get("key")) {
		t.Errorf("the file for the browser: %v, %v, want mode 0600 and no key in its name", info, err)
	}
	other := start(t, "--kubeconfig", f.kubeconfig(t))
	if d.url.RawQuery == other.url.RawQuery {
		t.Errorf("two dashboards have one key %q", d.url.RawQuery)
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
	got = commandtest.Run(t, commandtest.Terminal{}, NewCommand, "--port=70000", "--as=boss", "x")
	if got.Code != exit.Usage || strings.Count(got.Stderr, "error: ") != 3 {
		t.Errorf("trivet dashboard --port=70000 --as=boss x: %s", got)
	}
}

func TestDashboard_ALostGatewayIsAnAnswer(t *testing.T) {
	f := newFixture(t)
	d := start(t, "--kubeconfig", f.kubeconfig(t))
	person := browser(t)
	ask(t, person, request(t, "GET", d.url.String()))
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
