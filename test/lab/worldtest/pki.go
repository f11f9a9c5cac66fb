package worldtest

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/rpcclient"
)

// PKI is the authority of all links, and the certificates of the programs at their ends. Each
// program has files of its own, as in a volume of its Pod. The methods are safe for concurrent use.
type PKI struct {
	dir string

	mu        sync.Mutex // guards the following fields
	authority *certs.Authority
	// trusted are the authorities in the files.
	trusted []*certs.Authority
	holders map[string]*holder
}

// holder is a program with a certificate.
type holder struct {
	files identity.Files
	leaf  certs.Leaf
}

// NewPKI returns an authority that keeps files below a directory. All files trust it and others.
func NewPKI(dir, name string, others ...*certs.Authority) (*PKI, error) {
	authority, err := certs.NewAuthority(name, certs.LeafLifetime, time.Now())
	if err != nil {
		return nil, err
	}
	return &PKI{dir: dir, authority: authority, trusted: append([]*certs.Authority{authority}, others...), holders: map[string]*holder{}}, nil
}

// Files returns the files of a program, which it issues at the first call.
func (p *PKI) Files(name string, leaf certs.Leaf) (identity.Files, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.files(name, leaf, p.authority)
}

// FilesFrom is Files with a certificate of another authority.
func (p *PKI) FilesFrom(authority *certs.Authority, name string, leaf certs.Leaf) (identity.Files, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.files(name, leaf, authority)
}

// files is FilesFrom. The caller holds mu.
func (p *PKI) files(name string, leaf certs.Leaf, authority *certs.Authority) (identity.Files, error) {
	if h := p.holders[name]; h != nil {
		return h.files, nil
	}
	at := func(file string) string { return filepath.Join(p.dir, name, file) }
	h := &holder{leaf: leaf, files: identity.Files{CertFile: at("tls.crt"), KeyFile: at("tls.key"), CAFile: at("ca.crt")}}
	if err := os.MkdirAll(filepath.Join(p.dir, name), 0o700); err != nil {
		return h.files, err
	}
	p.holders[name] = h
	return h.files, errors.Join(p.trust(h), h.renew(authority, certs.LeafLifetime, time.Now()))
}

// trust writes the authorities of a program. The caller holds mu.
func (p *PKI) trust(h *holder) error { return replaceFile(h.files.CAFile, certs.Bundle(p.trusted...)) }

// renew issues a certificate. The caller holds mu.
func (h *holder) renew(authority *certs.Authority, lifetime time.Duration, now time.Time) error {
	pair, err := authority.Issue(h.leaf, lifetime, now)
	if err != nil {
		return err
	}
	return errors.Join(replaceFile(h.files.KeyFile, pair.KeyPEM), replaceFile(h.files.CertFile, pair.CertPEM))
}

// RenewAll renews the certificates of all programs.
func (p *PKI) RenewAll() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []error
	for _, h := range p.holders {
		all = append(all, h.renew(p.authority, certs.LeafLifetime, time.Now()))
	}
	return errors.Join(all...)
}

// TrustAll replaces the authorities that all programs trust.
func (p *PKI) TrustAll(authorities ...*certs.Authority) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trusted = authorities
	var all []error
	for _, h := range p.holders {
		all = append(all, p.trust(h))
	}
	return errors.Join(all...)
}

// SetLifetime renews the certificate of one program. One with a negative lifetime has expired.
func (p *PKI) SetLifetime(name string, lifetime time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.holders[name]
	if h == nil {
		return fmt.Errorf("%s has no certificate", name)
	}
	now := time.Now()
	if lifetime < 0 { // The validity begins before it ends.
		return h.renew(p.authority, time.Second, now.Add(lifetime))
	}
	return h.renew(p.authority, lifetime, now)
}

// Trusts returns the authorities that all programs trust.
func (p *PKI) Trusts() []*certs.Authority {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.trusted)
}

// SignBy replaces the authority of the next certificates.
func (p *PKI) SignBy(authority *certs.Authority) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.authority = authority
}

// Authority issues the certificates.
func (p *PKI) Authority() *certs.Authority {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.authority
}

// Dial returns a connection of a program to a server, with Trivet's client and its retries.
func (p *PKI) Dial(target, service, name string, leaf certs.Leaf) (*grpc.ClientConn, error) {
	files, err := p.Files(name, leaf)
	if err != nil {
		return nil, err
	}
	return rpcclient.Dial(target, rpcclient.Config{TLS: files, ServerName: service}, slog.New(slog.DiscardHandler))
}

// replaceFile puts a file in place at once, as the volumes of Pods do.
func replaceFile(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
