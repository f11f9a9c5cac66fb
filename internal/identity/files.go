package identity

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
)

// Files are the PEM files of a process: its certificate and key, and the authorities of its peers.
type Files struct {
	// CertFile is the certificate, leaf first, followed by intermediates.
	CertFile string
	// KeyFile is the private key of the leaf.
	KeyFile string
	// CAFile has one or more authorities of peer certificates.
	CAFile string
}

// ServerTLS returns a configuration that presents CertFile and requires a client certificate of an
// authority in CAFile. All three files are required and read at once, so a broken file is an error
// here. Later changes are reloaded. Do not remove GetConfigForClient: without it the configuration
// presents no certificate.
func (f Files) ServerTLS(logger *slog.Logger) (*tls.Config, error) {
	if f.CertFile == "" || f.KeyFile == "" || f.CAFile == "" {
		return nil, errors.New("a TLS server needs a certificate file, a key file and a client CA file")
	}
	source, err := newSource(f, logger)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequireAndVerifyClientCert,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return source.current().server(), nil
		},
	}, nil
}

// ClientTLS returns a configuration that presents CertFile (empty: no certificate) and verifies
// servers by CAFile (empty: the system's roots). The next handshake uses a changed CertFile. The
// authorities do not change, because crypto/tls reads them from the configuration; for long-lived
// clients use [Files.Client].
func (f Files) ClientTLS(logger *slog.Logger) (*tls.Config, error) {
	client, err := f.Client(logger)
	if err != nil {
		return nil, err
	}
	return client.TLS(), nil
}

// Client reads the files and returns a client identity with a current configuration for each
// handshake.
func (f Files) Client(logger *slog.Logger) (*Client, error) {
	if (f.CertFile == "") != (f.KeyFile == "") {
		return nil, errors.New("a certificate file and its key file are given together or not at all")
	}
	source, err := newSource(f, logger)
	if err != nil {
		return nil, err
	}
	return &Client{source: source}, nil
}

// Client is a TLS client's identity. It is safe for concurrent use.
type Client struct {
	source *source
}

// TLS returns a configuration for one handshake, with the current certificate and authorities.
func (c *Client) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    c.source.current().authorities,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return c.source.current().certificate, nil
		},
	}
}

// material is the content of the files at one time. It is immutable.
type material struct {
	// certificate is never nil. Without a CertFile it is empty, and crypto/tls presents no
	// certificate.
	certificate *tls.Certificate
	// authorities is nil without a CAFile.
	authorities *x509.CertPool
}

func (m *material) server() *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{*m.certificate},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    m.authorities,
	}
}

func (f Files) read() (*material, error) {
	read := &material{certificate: &tls.Certificate{}}
	if f.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read certificate %q with key %q: %w", f.CertFile, f.KeyFile, err)
		}
		read.certificate = &pair
	}
	if f.CAFile != "" {
		pool, err := readAuthorities(f.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read authorities %q: %w", f.CAFile, err)
		}
		read.authorities = pool
	}
	return read, nil
}

// readAuthorities refuses a bundle with any unreadable block. x509.CertPool.AppendCertsFromPEM
// would skip the block, and an incomplete file would lose an authority silently.
func readAuthorities(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool, found := x509.NewCertPool(), 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		found++
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("block %d is %q; only CERTIFICATE is allowed", found, block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", found, err)
		}
		pool.AddCert(certificate)
	}
	if found == 0 {
		return nil, errors.New("no certificate found")
	}
	if begun := bytes.Count(text, []byte("-----BEGIN ")); begun != found {
		return nil, fmt.Errorf("%d of %d blocks are cut off or damaged", begun-found, begun)
	}
	return pool, nil
}
