package endpoint

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	nodeUserPrefix = "system:node:"
	nodesGroup     = "system:nodes"
	// authoritiesPeriod is the time between two reads of the clients' authorities.
	authoritiesPeriod = 10 * time.Second
)

// callers decides which certificates are the node's.
type callers struct {
	user   string
	file   string // empty if the authorities are fixed
	logger *slog.Logger

	roots atomic.Pointer[roots]

	mu sync.Mutex // guards verified
	// verified are the last certificates that were found to be the node's: those before and after a
	// rotation.
	verified [2]verified
}

type roots struct {
	text []byte
	pool *x509.CertPool
}

// verified is a certificate that was verified against roots.
type verified struct {
	leaf  []byte
	roots *roots
}

func newCallers(cfg Config) (*callers, error) {
	c := &callers{user: nodeUserPrefix + cfg.Node, logger: cfg.Logger}
	text := cfg.Kubeconfig.CAData
	if cfg.ClientCAFile != "" || len(text) == 0 {
		c.file = cmp.Or(cfg.ClientCAFile, cfg.Kubeconfig.CAFile)
		var err error
		if text, err = os.ReadFile(c.file); err != nil {
			return nil, fmt.Errorf("authority of the kubelet's certificate: %w", err)
		}
	}
	return c, c.use(text)
}

func (c *callers) use(text []byte) error {
	if now := c.roots.Load(); now != nil && bytes.Equal(now.text, text) {
		return nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return errors.New("authority of the kubelet's certificate: no certificate found")
	}
	c.roots.Store(&roots{text: text, pool: pool})
	return nil
}

// run follows the file of the authorities.
func (c *callers) run(ctx context.Context) {
	tick := time.NewTicker(authoritiesPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if c.file == "" {
			continue
		}
		text, err := os.ReadFile(c.file)
		if err == nil {
			err = c.use(text)
		}
		if err != nil {
			c.logger.Warn("cannot load the authority of the kubelet's certificate; the one in use stays", "error", err)
		}
	}
}

// refuse returns why the caller is not the node; empty if it is. It verifies the certificate with
// each request, because a certificate ends and an authority leaves while a connection goes on.
func (c *callers) refuse(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return "no client certificate"
	}
	chain, now := r.TLS.PeerCertificates, time.Now()
	leaf, trusted := chain[0], c.roots.Load()
	if now.After(leaf.NotAfter) {
		return "the client certificate has ended"
	}
	if c.known(leaf.Raw, trusted) {
		return ""
	}
	if leaf.Subject.CommonName != c.user || !slices.Contains(leaf.Subject.Organization, nodesGroup) {
		return "the client certificate is not that of this node"
	}
	intermediates := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		intermediates.AddCert(certificate)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: trusted.pool, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return "the client certificate is not of the cluster's authority"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.verified[0], c.verified[1] = verified{leaf.Raw, trusted}, c.verified[0]
	return ""
}

func (c *callers) known(leaf []byte, trusted *roots) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.verified[:], func(v verified) bool { return v.roots == trusted && bytes.Equal(v.leaf, leaf) })
}
