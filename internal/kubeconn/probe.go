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
	// probeTimeout bounds one question to the apiserver. A slow answer is
	// better than none, so it may be longer than the period.
	probeTimeout = 5 * time.Second
	// probeBodyLimit bounds what is read of an answer, in bytes.
	probeBodyLimit = 64 << 10
)

// Probe asks the kube-apiserver's /readyz again and again and keeps the last
// answer. It is safe for concurrent use. It takes no part in the rate limit of
// any client made from the same config.
type Probe struct {
	config *rest.Config
	period time.Duration
	last   atomic.Pointer[answer] // nil until the first answer
}

// answer is how one question ended.
type answer struct {
	at  time.Time
	err error // nil when the apiserver is ready
}

// NewProbe returns a probe of the apiserver of cfg; it starts nothing. A
// period of 0 means 2 seconds.
func NewProbe(cfg *rest.Config, period time.Duration) *Probe {
	if period <= 0 {
		period = defaultProbePeriod
	}
	return &Probe{config: rest.CopyConfig(cfg), period: period}
}

// Run asks at once and then every period, until ctx ends; then it returns nil.
// An apiserver that cannot be reached does not end it.
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
			return nil // an answer cut off by the end says nothing
		}
		p.last.Store(&answer{at: time.Now(), err: err})
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Check returns nil when the last answer was that the apiserver is ready, else
// the reason why not, for people. It does not wait.
func (p *Probe) Check() error {
	last := p.last.Load()
	switch {
	case last == nil:
		return fmt.Errorf("kube-apiserver %s not contacted yet", p.config.Host)
	case last.err != nil:
		return fmt.Errorf("kube-apiserver %s not ready: %w; trying again every %s", p.config.Host, last.err, p.period)
	default:
		return nil
	}
}

// LastContact is when the last question was answered or given up; zero before
// that.
func (p *Probe) LastContact() time.Time {
	if last := p.last.Load(); last != nil {
		return last.at
	}
	return time.Time{}
}

// ask asks /readyz once.
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

// withoutURL takes away what Check says anyway, and says timeouts in words.
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

// verdict reads an answer of /readyz.
func verdict(status int, text string) error {
	failed := failedChecks(text)
	switch {
	case status == http.StatusOK:
		return nil
	case status == http.StatusUnauthorized:
		return errors.New("it does not accept our credentials (401); renew them in the kubeconfig or the service account")
	case status == http.StatusForbidden:
		return errors.New("it does not let us read /readyz (403); bind the ClusterRole system:public-info-viewer to our user")
	case len(failed) > 0:
		return fmt.Errorf("its own checks fail: %s", strings.Join(failed, ", "))
	default:
		return fmt.Errorf("it answered %d %s", status, http.StatusText(status))
	}
}

// failedChecks are the names in lines such as "[-]etcd failed: reason withheld".
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
