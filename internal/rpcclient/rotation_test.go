package rpcclient_test

import (
	"context"
	"crypto/x509"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
)

// secret is a directory as a kubelet mounts a Secret: each file is a link into the directory to
// which ..data points, and a new version replaces that link.
type secret struct {
	dir      string
	versions int
}

func newSecret(t *testing.T) *secret {
	t.Helper()
	s := &secret{dir: t.TempDir()}
	for _, name := range []string{"tls.crt", "tls.key", "ca.crt"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(s.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *secret) files() identity.Files {
	return identity.Files{
		CertFile: filepath.Join(s.dir, "tls.crt"), KeyFile: filepath.Join(s.dir, "tls.key"), CAFile: filepath.Join(s.dir, "ca.crt"),
	}
}

// content is one version of a secret. A nil file is missing.
type content struct{ certificate, key, authorities []byte }

// swap puts a version in place as a kubelet does.
func (s *secret) swap(t *testing.T, version content) {
	t.Helper()
	s.versions++
	name := "..version" + strconv.Itoa(s.versions)
	if err := os.Mkdir(filepath.Join(s.dir, name), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string][]byte{"tls.crt": version.certificate, "tls.key": version.key, "ca.crt": version.authorities} {
		if text == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(s.dir, name, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(s.dir, "..data_tmp")
	if err := os.Symlink(name, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link, filepath.Join(s.dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

func issued(t *testing.T, issuer *identitytest.Authority, name string, peers ...*identitytest.Authority) content {
	t.Helper()
	certificate, key := issuer.Issue(t, name)
	return content{certificate: certificate, key: key, authorities: identitytest.Bundle(peers...)}
}

// half is a text whose writer has not finished.
func half(text []byte) []byte { return text[:len(text)/2] }

func TestTLS_NoCallFailsWhileBothSidesRotateUnderLoad(t *testing.T) {
	before, after := identitytest.NewAuthority(t, "before"), identitytest.NewAuthority(t, "after")
	server, client := newSecret(t), newSecret(t)
	server.swap(t, issued(t, before, "server 1", before))
	client.swap(t, issued(t, before, "client 1", before))
	synctest.Test(t, func(t *testing.T) {
		load := startLoad(t, server.files(), client.files())
		step := func(s *secret, version content) {
			t.Helper()
			s.swap(t, version)
			time.Sleep(5 * time.Second) // each client shakes hands more than once
		}
		// Authorities first, then the certificates; the client's version is broken in each way in
		// between.
		step(server, issued(t, before, "server 2", before, after))
		step(client, issued(t, before, "client 2", before, after))
		third := issued(t, after, "server 3", before, after)
		step(server, content{certificate: third.certificate, key: half(third.key), authorities: third.authorities})
		step(server, content{certificate: third.certificate, authorities: third.authorities})
		step(server, content{certificate: third.certificate, key: third.key, authorities: half(third.authorities)})
		step(server, third)
		next := issued(t, after, "client 3", before, after)
		step(client, content{certificate: []byte{}, key: []byte{}, authorities: []byte{}})
		step(client, content{certificate: half(next.certificate), key: next.key, authorities: next.authorities})
		step(client, content{})
		step(client, next)
		// The certificate first, then the authorities.
		last := issued(t, after, "server 4", after)
		step(server, content{certificate: last.certificate, key: last.key, authorities: identitytest.Bundle(before, after)})
		step(server, last)
		step(client, issued(t, after, "client 4", after))
		load.stop()
		if load.calls.Load() < 1000 || load.handshakes() < 4*60/2 {
			t.Errorf("%d calls and %d handshakes are too few to prove anything", load.calls.Load(), load.handshakes())
		}
		if got := load.server.Load(); got == nil || got.Subject.CommonName != "server 4" {
			t.Errorf("the last call saw the certificate %v, want that of server 4", got)
		}
	})
}

// load is four clients that call all the time; their connections live for about a second.
type load struct {
	clients []*connected
	calls   atomic.Int64
	server  atomic.Pointer[x509.Certificate] // as seen by the last call
	stop    func()
}

func startLoad(t *testing.T, server, client identity.Files) *load {
	l := &load{}
	ctx, cancel := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	l.stop = func() {
		cancel()
		workers.Wait()
	}
	for range 4 {
		c := secure(t, server, client)
		l.clients = append(l.clients, c)
		workers.Go(func() { l.call(ctx, t, c) })
	}
	return l
}

func (l *load) call(ctx context.Context, t *testing.T, c *connected) {
	for ctx.Err() == nil {
		var from peer.Peer
		if _, err := c.GetLease(context.WithoutCancel(ctx), request(), grpc.Peer(&from)); err != nil {
			t.Errorf("call %d failed: %v", l.calls.Load(), err)
		} else if info, ok := from.AuthInfo.(credentials.TLSInfo); ok {
			l.server.Store(info.State.PeerCertificates[0])
		}
		l.calls.Add(1)
		time.Sleep(50 * time.Millisecond)
	}
}

func (l *load) handshakes() int64 {
	var total int64
	for _, c := range l.clients {
		total += c.dials.Load()
	}
	return total
}
