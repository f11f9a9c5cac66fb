package faultproxy

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// KubeProxy is an HTTP proxy before a kube-apiserver. It disturbs nothing until a rule is added.
type KubeProxy struct {
	server *httptest.Server

	mu      sync.Mutex // guards the following fields
	rules   map[*rule]bool
	watches map[*watchBody]bool
	record  func(Change)
}

// rule disturbs the requests that match selects.
type rule struct {
	match     Match
	delay     time.Duration
	status    *metav1.Status
	hang      bool
	stopped   chan struct{}
	ofWatches bool // the rule is about the events of watches, not about requests
	onlyOpen  bool // the rule leaves the watches alone that open after it
}

// NewKube starts a proxy that authenticates to kube-apiserver as config says.
func NewKube(t testing.TB, config *rest.Config) *KubeProxy {
	t.Helper()
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	p := &KubeProxy{rules: map[*rule]bool{}, watches: map[*watchBody]bool{}}
	forward := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:      transport,
		FlushInterval:  -1,
		ErrorLog:       slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ModifyResponse: p.track,
	}
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(context.WithValue(r.Context(), receivedKey{}, time.Now()))
		if p.disturb(w, r) {
			forward.ServeHTTP(promptHeader{w}, r)
		}
	}))
	t.Cleanup(func() {
		p.stopAll()
		p.server.CloseClientConnections()
		p.server.Close()
	})
	return p
}

// promptHeader sends the header at once, so that a watch without events opens.
type promptHeader struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w promptHeader) WriteHeader(code int) {
	w.ResponseWriter.WriteHeader(code)
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (w promptHeader) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// RESTConfig returns a new configuration of clients of the proxy, without a client-side rate limit.
func (p *KubeProxy) RESTConfig() *rest.Config { return &rest.Config{Host: p.server.URL, QPS: -1} }

// Addr returns the host and port of the proxy.
func (p *KubeProxy) Addr() string { return p.server.Listener.Addr().String() }

// Kubeconfig writes a kubeconfig of the proxy, for a process under test, and returns its path.
func (p *KubeProxy) Kubeconfig(t testing.TB) string {
	t.Helper()
	return p.KubeconfigThrough(t, p.Addr())
}

// KubeconfigThrough is Kubeconfig for a process that reaches the proxy through a relay at an
// address.
func (p *KubeProxy) KubeconfigThrough(t testing.TB, address string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"proxy": {Server: "http://" + address}},
		Contexts:       map[string]*clientcmdapi.Context{"proxy": {Cluster: "proxy"}},
		CurrentContext: "proxy",
	}, path); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Delay makes each selected request wait before it is forwarded, until stop is called.
func (p *KubeProxy) Delay(match Match, delay time.Duration) (stop func()) {
	return p.add(&rule{match: match, delay: delay})
}

// Refuse answers each selected request with code and reason, until stop is called.
func (p *KubeProxy) Refuse(match Match, code int, reason metav1.StatusReason) (stop func()) {
	return p.add(&rule{match: match, status: &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Message:  fmt.Sprintf("the proxy of the test refuses this request: %s", reason),
		Reason:   reason,
		Code:     int32(code),
	}})
}

// Hang lets each selected request wait until stop is called or its client leaves. At stop it is
// forwarded.
func (p *KubeProxy) Hang(match Match) (stop func()) {
	return p.add(&rule{match: match, hang: true})
}

// HoldEvents keeps the selected watches open, those that open later too, and delivers nothing. At
// stop, what was held is delivered in order.
func (p *KubeProxy) HoldEvents(match Match) (stop func()) {
	return p.add(&rule{match: match, hang: true, ofWatches: true})
}

// HoldOpenWatches is HoldEvents for the watches that are open now. A watch that opens later
// delivers.
func (p *KubeProxy) HoldOpenWatches(match Match) (stop func()) {
	return p.add(&rule{match: match, hang: true, ofWatches: true, onlyOpen: true})
}

// DelayEvents delivers the events of the selected watches late, in order, until stop is called.
func (p *KubeProxy) DelayEvents(match Match, delay time.Duration) (stop func()) {
	return p.add(&rule{match: match, delay: delay, ofWatches: true})
}

// OpenWatches returns how many selected watches are open.
func (p *KubeProxy) OpenWatches(match Match) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	open := 0
	for watch := range p.watches {
		if match(watch.request) {
			open++
		}
	}
	return open
}

func (p *KubeProxy) add(added *rule) (stop func()) {
	added.stopped = make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules[added] = true
	if added.ofWatches {
		for watch := range p.watches {
			watch.addIfSelected(added)
		}
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stop(added)
	})
}

// stop ends a rule once. The caller holds mu.
func (p *KubeProxy) stop(ended *rule) {
	if p.rules[ended] {
		delete(p.rules, ended)
		close(ended.stopped)
	}
}

func (p *KubeProxy) stopAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for each := range p.rules {
		p.stop(each)
	}
}

func (p *KubeProxy) selected(request Request, ofWatches bool) []*rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*rule
	for each := range p.rules {
		if each.ofWatches == ofWatches && each.match(request) {
			out = append(out, each)
		}
	}
	return out
}

// disturb applies the rules of requests. It returns false if it answered or the client left.
func (p *KubeProxy) disturb(w http.ResponseWriter, r *http.Request) bool {
	for _, each := range p.selected(parse(r), false) {
		if !each.wait(r.Context()) {
			return false
		}
		if each.status != nil {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(int(each.status.Code))
			_ = json.NewEncoder(w).Encode(each.status)
			return false
		}
	}
	return true
}

// wait returns false if the client left.
func (r *rule) wait(ctx context.Context) bool {
	var late <-chan time.Time
	switch {
	case r.hang:
	case r.delay > 0:
		late = time.After(r.delay)
	default:
		return true
	}
	select {
	case <-late:
	case <-r.stopped:
	case <-ctx.Done():
		return false
	}
	return true
}

// track puts a watchBody around the body of a watch.
func (p *KubeProxy) track(response *http.Response) error {
	request := parse(response.Request)
	if err := p.recordChange(request, response); err != nil {
		return err
	}
	if request.Verb != "watch" || response.StatusCode != http.StatusOK {
		return nil
	}
	watch := newWatchBody(request, response.Body)
	p.mu.Lock()
	defer p.mu.Unlock()
	for each := range p.rules {
		if !each.onlyOpen {
			watch.addIfSelected(each)
		}
	}
	p.watches[watch] = true
	watch.closed = func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.watches, watch)
	}
	response.Body = watch
	return nil
}
