package kubeconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// defaultProbePeriod is used where none is given.
	defaultProbePeriod = 2 * time.Second
	// probeTimeout bounds one request. It may be longer than the period, because a slow answer is
	// useful.
	probeTimeout = 5 * time.Second
	// probeBodyLimit bounds the bytes read from a response.
	probeBodyLimit = 64 << 10
)

// Probe requests the kube-apiserver's /readyz periodically and keeps the last result. It is safe
// for concurrent use. Its requests do not count against the rate limits of clients.
type Probe struct {
	config *rest.Config
	period time.Duration
	last   atomic.Pointer[answer] // nil until the first result
}

// answer is the result of one request.
type answer struct {
	at  time.Time
	err error // nil if the apiserver is ready
}

// NewProbe returns a probe of the apiserver of cfg. It starts nothing. A period of 0 means 2
// seconds.
func NewProbe(cfg *rest.Config, period time.Duration) *Probe {
	if period <= 0 {
		period = defaultProbePeriod
	}
	return &Probe{config: rest.CopyConfig(cfg), period: period}
}

// Run sends a request at once and then every period, until ctx ends; then it returns nil. An
// unreachable apiserver does not end it.
func (p *Probe) Run(ctx context.Context) error {
	ticker := time.NewTicker(p.period)
	defer ticker.Stop()
	var client *http.Client
	for {
		var err error
		if client == nil { // a certificate file may be missing at first
			client, err = rest.HTTPClientFor(p.config)
		}
		if err == nil {
			err = p.ask(ctx, client)
		}
		if ctx.Err() != nil {
			return nil // the request was cancelled
		}
		p.last.Store(&answer{at: time.Now(), err: err})
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Check returns nil if the apiserver was ready at the last request, else the reason. It does not
// block.
func (p *Probe) Check() error {
	last := p.last.Load()
	switch {
	case last == nil:
		return fmt.Errorf("kube-apiserver %s not contacted yet", p.config.Host)
	case last.err != nil:
		return fmt.Errorf("kube-apiserver %s not ready: %w; retrying every %s", p.config.Host, last.err, p.period)
	default:
		return nil
	}
}

// LastContact returns when the last request ended; zero before the first.
func (p *Probe) LastContact() time.Time {
	if last := p.last.Load(); last != nil {
		return last.at
	}
	return time.Time{}
}

// ask requests /readyz once.
func (p *Probe) ask(ctx context.Context, client *http.Client) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	base, _, err := rest.DefaultServerUrlFor(p.config)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("readyz").String(), nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return withoutURL(ctx, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, probeBodyLimit))
	if err != nil {
		return withoutURL(ctx, err)
	}
	return verdict(resp.StatusCode, string(text))
}

// withoutURL removes the URL, which Check adds, and replaces the error of a timeout.
func withoutURL(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %s", probeTimeout)
	}
	var outer *url.Error
	if errors.As(err, &outer) {
		return outer.Err
	}
	return err
}

// verdict returns the error that a response of /readyz means.
func verdict(status int, text string) error {
	failed := failedChecks(text)
	switch {
	case status == http.StatusOK:
		return nil
	case status == http.StatusUnauthorized:
		return errors.New("the credentials are not accepted (401); renew them in the kubeconfig or the service account")
	case status == http.StatusForbidden:
		return errors.New("reading /readyz is forbidden (403); bind the ClusterRole system:public-info-viewer to this user")
	case len(failed) > 0:
		return fmt.Errorf("failed checks: %s", strings.Join(failed, ", "))
	default:
		return fmt.Errorf("the response was %d %s", status, http.StatusText(status))
	}
}

// failedChecks returns the names in lines such as "[-]etcd failed: reason withheld".
func failedChecks(text string) []string {
	var names []string
	for line := range strings.Lines(text) {
		if after, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ := strings.Cut(strings.TrimSpace(after), " ")
			names = append(names, name)
		}
	}
	return names
}
