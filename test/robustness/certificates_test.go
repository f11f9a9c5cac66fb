package robustness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/roles"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/robustness/internal/schedule"
)

// connectionAge is the age at which a replica asks a connection to go, so that handshakes never
// end. From then on gRPC sends no pings, so it is longer than slow watches need to be dropped.
const connectionAge = time.Minute

// administrator calls for the test.
const administrator = "administrator"

// pki is the authority of all links, and the certificates of the programs at their ends. Each
// program has files of its own, as in a volume of its pod.
type pki struct {
	dir string

	mu        sync.Mutex // guards the following fields
	authority *certs.Authority
	// trusted are the authorities in the files.
	trusted []*certs.Authority
	holders map[string]*certificateHolder
}

// certificateHolder is a program with a certificate.
type certificateHolder struct {
	files identity.Files
	leaf  certs.Leaf
}

func newPKI(dir string) (*pki, error) {
	authority, err := certs.NewAuthority("robustness", certs.LeafLifetime, time.Now())
	if err != nil {
		return nil, err
	}
	return &pki{
		dir: filepath.Join(dir, "certificates"), authority: authority, trusted: []*certs.Authority{authority}, holders: map[string]*certificateHolder{},
	}, nil
}

// of returns the files of a program, which it issues at the first call.
func (p *pki) of(name string, leaf certs.Leaf) (identity.Files, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.holders[name]; h != nil {
		return h.files, nil
	}
	at := func(file string) string { return filepath.Join(p.dir, name, file) }
	h := &certificateHolder{leaf: leaf, files: identity.Files{CertFile: at("tls.crt"), KeyFile: at("tls.key"), CAFile: at("ca.crt")}}
	if err := os.MkdirAll(filepath.Join(p.dir, name), 0o700); err != nil {
		return h.files, err
	}
	p.holders[name] = h
	return h.files, errors.Join(p.trust(h), p.renew(h, certs.LeafLifetime, time.Now()))
}

// trust writes the authorities of a program. The caller holds mu.
func (p *pki) trust(h *certificateHolder) error {
	return replaceFile(h.files.CAFile, certs.Bundle(p.trusted...))
}

// renew issues a certificate. The caller holds mu.
func (p *pki) renew(h *certificateHolder, lifetime time.Duration, now time.Time) error {
	pair, err := p.authority.Issue(h.leaf, lifetime, now)
	if err != nil {
		return err
	}
	return errors.Join(replaceFile(h.files.CertFile, pair.CertPEM), replaceFile(h.files.KeyFile, pair.KeyPEM))
}

// renewAll renews the certificates of all programs.
func (p *pki) renewAll() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []error
	for _, h := range p.holders {
		all = append(all, p.renew(h, certs.LeafLifetime, time.Now()))
	}
	return errors.Join(all...)
}

// trustAll replaces the authorities that all programs trust.
func (p *pki) trustAll(authorities ...*certs.Authority) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trusted = authorities
	var all []error
	for _, h := range p.holders {
		all = append(all, p.trust(h))
	}
	return errors.Join(all...)
}

// setLifetime renews the certificate of one program. One with a negative lifetime has expired.
func (p *pki) setLifetime(name string, lifetime time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.holders[name]
	if h == nil {
		return fmt.Errorf("%s has no certificate", name)
	}
	now := time.Now()
	if lifetime < 0 { // The validity begins before it ends.
		return p.renew(h, time.Second, now.Add(lifetime))
	}
	return p.renew(h, lifetime, now)
}

// replaceFile puts a file in place at once, as the volumes of pods do.
func replaceFile(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// flags returns the flags of a server with a certificate.
func (p *pki) flags(name, service string) ([]string, error) {
	files, err := p.of(name, certs.ServerLeaf(service, roles.Namespace, "cluster.local"))
	return []string{
		"--tls-cert-file=" + files.CertFile, "--tls-key-file=" + files.KeyFile, "--client-ca-file=" + files.CAFile,
		"--authorization-mode=AlwaysAllow", "--max-connection-age=" + connectionAge.String(),
	}, err
}

// dial returns a connection of a program to a service, with Trivet's client and its retries.
func (p *pki) dial(target, service, name string, leaf certs.Leaf) (*grpc.ClientConn, error) {
	files, err := p.of(name, leaf)
	if err != nil {
		return nil, err
	}
	return rpcclient.Dial(target, rpcclient.Config{TLS: files, ServerName: service}, slog.New(slog.DiscardHandler))
}

// dialAsAdministrator is dial for the test itself.
func (p *pki) dialAsAdministrator(target, service string) (*grpc.ClientConn, error) {
	return p.dial(target, service, administrator, administratorLeaf())
}

func administratorLeaf() certs.Leaf { return certs.ClientLeaf(administrator, "system:masters") }

// httpClient returns a client of the admin servers. It does not verify them: it reads metrics also
// while a server's certificate has expired. Each request has a connection of its own.
func (p *pki) httpClient() (*http.Client, error) {
	files, err := p.of(administrator, administratorLeaf())
	if err != nil {
		return nil, err
	}
	client, err := files.Client(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	config := client.TLS()
	config.InsecureSkipVerify = true
	return &http.Client{Timeout: requestTimeout, Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}, nil
}

// renewCertificates replaces all certificates. Streams that are open go on, and new connections
// succeed at each moment.
func (w *world) renewCertificates(_ *slot, f schedule.Fault) error {
	streams, err := w.holdStreams()
	if err != nil {
		return err
	}
	defer streams.end()
	pause(context.Background(), f.Duration/4)
	if err := w.pki.renewAll(); err != nil {
		return err
	}
	pause(context.Background(), 3*f.Duration/4)
	return nil
}

// rotateAuthority changes the authority with an overlap, as `trivet certs` does. Each step lasts
// longer than the second after which a process reads its files again.
func (w *world) rotateAuthority(_ *slot, f schedule.Fault) error {
	streams, err := w.holdStreams()
	if err != nil {
		return err
	}
	defer streams.end()
	next, err := certs.NewAuthority("robustness", certs.LeafLifetime, time.Now())
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return w.pki.trustAll(append(w.pki.trusts(), next)...) },
		func() error { w.pki.signBy(next); return w.pki.renewAll() },
		func() error { return w.pki.trustAll(next) },
	} {
		if err := step(); err != nil {
			return err
		}
		pause(context.Background(), f.Duration/3)
	}
	return nil
}

func (p *pki) trusts() []*certs.Authority {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.trusted)
}

func (p *pki) signBy(authority *certs.Authority) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.authority = authority
}

const (
	// expired is the age of the end of an expired certificate.
	expired = -time.Minute
	// lateClient is a client that does not renew its certificate.
	lateClient = "late-client"
	// reread is longer than a process needs to read a renewed certificate.
	reread = 5 * time.Second
)

// expireCertificate lets the certificate of one replica expire, and closes its connections. Nothing
// trusts the replica, the replica trusts no client whose certificate has expired, and a renewal is
// enough for both.
func (w *world) expireCertificate(target *slot, f schedule.Fault) error {
	process := target.processName()
	if err := w.pki.setLifetime(target.name, expired); err != nil {
		return err
	}
	defer func() { _ = w.pki.setLifetime(target.name, certs.LeafLifetime) }() // again; the renewal below reports its failure
	if _, err := w.pki.of(lateClient, certs.ClientLeaf(lateClient, "system:masters")); err != nil {
		return err
	}
	if err := w.pki.setLifetime(lateClient, expired); err != nil {
		return err
	}
	target.calls.Disconnect(true)
	target.calls.Disconnect(false)
	pause(context.Background(), f.Duration/2) // The replica has read the file by then.

	accepted := 0.0
	for range 3 {
		for _, client := range []string{administrator, lateClient} {
			if err := w.callOnce(target, client); err == nil {
				accepted++
			}
		}
	}
	if !w.disturbed(target, process) {
		w.level(target, "calls to a replica whose certificate has expired, accepted", accepted, 0, 0)
	}
	if err := w.checkFailures(target, process, "refused_by_peer"); err != nil {
		return err
	}
	pause(context.Background(), f.Duration/2)
	if err := w.pki.setLifetime(target.name, certs.LeafLifetime); err != nil {
		return err
	}
	return w.checkLateClient(target, process)
}

// checkLateClient measures how calls succeed after a renewal, and that a client with an expired
// certificate is refused until its own is renewed.
func (w *world) checkLateClient(target *slot, process string) error {
	renewed := time.Now()
	for time.Since(renewed) < 2*reread && w.callOnce(target, administrator) != nil {
		pause(context.Background(), 100*time.Millisecond)
	}
	if !w.disturbed(target, process) {
		w.level(target, "seconds until calls succeed after the renewal", time.Since(renewed).Seconds(), 0, reread.Seconds())
	}
	accepted := 0.0
	for range 3 {
		if w.callOnce(target, lateClient) == nil {
			accepted++
		}
	}
	if !w.disturbed(target, process) {
		w.level(target, "calls of a client whose certificate has expired, accepted", accepted, 0, 0)
	}
	if err := w.checkFailures(target, process, "expired"); err != nil {
		return err
	}
	if err := w.pki.setLifetime(lateClient, certs.LeafLifetime); err != nil {
		return err
	}
	if err := w.callOnce(target, lateClient); !w.disturbed(target, process) {
		w.level(target, fmt.Sprintf("calls of the client with a renewed certificate, refused (%v)", err), oneIf(err != nil), 0, 0)
	}
	return nil
}

// checkFailures measures that a replica counts failed handshakes of a reason.
func (w *world) checkFailures(target *slot, process, reason string) error {
	failed, err := w.metric(context.Background(), target, "trivet_tls_handshakes_failed_total", fmt.Sprintf("reason=%q", reason))
	if err != nil || w.disturbed(target, process) {
		return w.unlessDisturbed(target, process, err)
	}
	w.level(target, "failed handshakes that it counts, reason "+reason, failed, 1, unlimited)
	return nil
}

func oneIf(condition bool) float64 {
	if condition {
		return 1
	}
	return 0
}

// callOnce calls a replica behind its proxies over a new connection. Each replica has the method.
func (w *world) callOnce(target *slot, client string) error {
	conn, err := w.pki.dial(target.listen, target.service, client, certs.ClientLeaf(client, "system:masters"))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	_, err = statusv1.NewStatusServiceClient(conn).GetStatus(ctx, &statusv1.GetStatusRequest{})
	return err
}
