package upstream

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/kubeconfig"
)

// nodeUserPrefix and the node's name make the user of a kubelet.
const nodeUserPrefix = "system:node:"

// credentials are the certificate of the kubelet and the authorities of kube-apiserver. They follow
// their files. A file that cannot be read leaves what is in use.
type credentials struct {
	file   kubeconfig.File
	node   string
	logger *slog.Logger

	mu          sync.Mutex // guards the fields below
	certificate *tls.Certificate
	pairText    []byte
	// deleted says that the files of the certificate do not exist, any more or yet.
	deleted   bool
	roots     *x509.CertPool
	rootsText []byte
	warned    string
}

// refresh reads the files and reports whether their content has changed.
func (c *credentials) refresh() (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	certificateChanged, certificateErr := c.readCertificate()
	rootsChanged, rootsErr := c.readRoots()
	cause := ""
	if err := errors.Join(certificateErr, rootsErr); err != nil {
		cause = err.Error()
	}
	if cause != "" && cause != c.warned {
		c.logger.Warn("cannot load the credentials for kube-apiserver; those in use stay", "error", cause)
	}
	c.warned = cause
	return certificateChanged || rootsChanged
}

func (c *credentials) readCertificate() (changed bool, err error) {
	certText, err := textOf(c.file.CertData, c.file.CertFile)
	if c.deleted = errors.Is(err, os.ErrNotExist); err != nil {
		return false, fmt.Errorf("client certificate: %w", err)
	}
	keyText, err := textOf(c.file.KeyData, c.file.KeyFile)
	if c.deleted = errors.Is(err, os.ErrNotExist); err != nil {
		return false, fmt.Errorf("key of the client certificate: %w", err)
	}
	text := append(bytes.Clone(certText), keyText...)
	if bytes.Equal(text, c.pairText) {
		return false, nil
	}
	pair, err := tls.X509KeyPair(certText, keyText)
	if err != nil {
		return false, fmt.Errorf("client certificate: %w", err)
	}
	if user := pair.Leaf.Subject.CommonName; user != nodeUserPrefix+c.node {
		return false, fmt.Errorf("client certificate: its user is %q, want %q", user, nodeUserPrefix+c.node)
	}
	c.pairText, c.certificate = text, &pair
	return true, nil
}

func (c *credentials) readRoots() (changed bool, err error) {
	if len(c.file.CAData) == 0 && c.file.CAFile == "" {
		return false, nil // the roots of the system
	}
	text, err := textOf(c.file.CAData, c.file.CAFile)
	if err != nil {
		return false, fmt.Errorf("authority of kube-apiserver: %w", err)
	}
	if c.roots != nil && bytes.Equal(text, c.rootsText) {
		return false, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return false, errors.New("authority of kube-apiserver: no certificate found")
	}
	c.rootsText, c.roots = text, pool
	return true, nil
}

func textOf(data []byte, path string) ([]byte, error) {
	if len(data) > 0 {
		return data, nil
	}
	if path == "" {
		return nil, errors.New("none is configured")
	}
	return os.ReadFile(path)
}

// tls returns the configuration of new connections. Without the certificate a request is anonymous.
func (c *credentials) tls(serverName string, withCertificate bool) *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.roots, ServerName: serverName}
	if withCertificate && c.certificate != nil {
		config.Certificates = []tls.Certificate{*c.certificate}
	}
	return config
}

// valid reports whether there is a certificate that has not ended.
func (c *credentials) valid(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.certificate != nil && now.Before(c.certificate.Leaf.NotAfter)
}

// stored reports whether the certificate is valid and its files exist. A kubelet looks there when
// it starts.
func (c *credentials) stored(now time.Time) bool {
	c.mu.Lock()
	deleted := c.deleted
	c.mu.Unlock()
	return !deleted && c.valid(now)
}

// present reports whether there is a certificate, also one that has ended by the clock of this
// node: kube-apiserver decides by its own.
func (c *credentials) present() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.certificate != nil
}
