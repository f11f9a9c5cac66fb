package apiserverscontroller

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
)

// bodyLimit bounds the part of an answer that is read, in bytes. A full /readyz has about 4 KiB.
const bodyLimit = 16 << 10

var errSilent = errors.New("/readyz did not answer in time")

// Prober probes one kube-apiserver. It is safe for concurrent use.
type Prober struct {
	config *rest.Config
	url    string
}

// NewProber returns a prober of the kube-apiserver at server, an https URL, with the credentials
// and the TLS settings of config. It makes no connection.
func NewProber(config *rest.Config, server *url.URL) *Prober {
	own := rest.CopyConfig(config)
	own.Host = server.String()
	return &Prober{config: own, url: server.JoinPath("readyz").String()}
}

// serviceHost is a name that the certificate of every kube-apiserver has, because pods verify it.
const serviceHost = "kubernetes.default.svc"

// NewPeerProber returns a prober of a kube-apiserver on another machine. The certificate must be
// one that pods accept. It need not name the machine.
func NewPeerProber(config *rest.Config, server *url.URL) *Prober {
	p := NewProber(config, server)
	if !p.config.Insecure {
		p.config.ServerName = serviceHost
	}
	return p
}

// Probe probes once and blocks until the server answers or ctx ends. The result always has a time
// and a detail.
func (p *Prober) Probe(ctx context.Context) apiservers.ProbeResult {
	err := p.get(ctx)
	result := apiservers.ProbeResult{Time: time.Now(), OK: err == nil, Detail: "ok"}
	if err != nil {
		result.Detail = err.Error()
		result.Silent = errors.Is(err, errSilent)
		result.Unverified = errors.As(err, new(*tls.CertificateVerificationError))
	}
	return result
}

func (p *Prober) get(ctx context.Context) error {
	transport, closeConnections, err := p.transport()
	if err != nil {
		return err
	}
	defer closeConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, http.NoBody)
	if err != nil {
		return err
	}
	// A round trip follows no redirect: the readiness of another server proves nothing.
	response, err := transport.RoundTrip(request)
	if err != nil {
		return orSilent(ctx, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, bodyLimit))
	// An answer may arrive while the connection is closed at the deadline. It is too late.
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return orSilent(ctx, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz answered %s%s", response.Status, failedChecks(string(body)))
	}
	return nil
}

func (p *Prober) transport() (http.RoundTripper, func(), error) {
	tlsConfig, err := rest.TLSConfigFor(p.config)
	if err != nil {
		return nil, nil, fmt.Errorf("read certificates: %w", err)
	}
	direct := &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true}
	authenticated, err := rest.HTTPWrappersForConfig(p.config, direct)
	if err != nil {
		return nil, nil, fmt.Errorf("read credentials: %w", err)
	}
	return authenticated, direct.CloseIdleConnections, nil
}

// orSilent replaces an error that the deadline of ctx caused.
func orSilent(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errSilent
	}
	return err
}

// failedChecks returns the names in lines such as "[-]etcd failed: reason withheld".
func failedChecks(body string) string {
	var failed []string
	for line := range strings.Lines(body) {
		if check, found := strings.CutPrefix(line, "[-]"); found {
			name, _, _ := strings.Cut(check, " ")
			failed = append(failed, strings.TrimSpace(name))
		}
	}
	if len(failed) == 0 {
		return ""
	}
	return ", failed checks: " + strings.Join(failed, ", ")
}
