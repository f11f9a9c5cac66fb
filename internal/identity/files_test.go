package identity_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pause is longer than the time between two checks of the files.
const pause = 1100 * time.Millisecond

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestServerTLS_BrokenFilesAreErrorsAtTheStart(t *testing.T) {
	authority := identitytest.NewAuthority(t, "authority")
	good := func() identity.Files { return authority.Files(t, "server", authority) }
	for name, c := range map[string]struct {
		spoil func(*identity.Files)
		want  string
	}{
		"no certificate":  {spoil: func(f *identity.Files) { f.CertFile = "" }, want: "needs a certificate file, a key file and a client CA file"},
		"no authorities":  {spoil: func(f *identity.Files) { f.CAFile = "" }, want: "needs a certificate file, a key file and a client CA file"},
		"missing file":    {spoil: func(f *identity.Files) { f.KeyFile += "x" }, want: "no such file"},
		"key of another":  {spoil: func(f *identity.Files) { f.KeyFile = good().KeyFile }, want: "private key does not match"},
		"key as CA":       {spoil: func(f *identity.Files) { f.CAFile = f.KeyFile }, want: `block 1 is "PRIVATE KEY"`},
		"empty CA":        {spoil: func(f *identity.Files) { identitytest.Replace(t, f.CAFile, nil) }, want: "no certificate found"},
		"CA half written": {spoil: func(f *identity.Files) { cutCA(t, f.CAFile, authority) }, want: "1 of 2 blocks are cut off"},
	} {
		t.Run(name, func(t *testing.T) {
			files := good()
			c.spoil(&files)
			_, err := files.ServerTLS(quiet())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("ServerTLS() error = %v, want one that says %q", err, c.want)
			}
		})
	}
}

func cutCA(t *testing.T, path string, authority *identitytest.Authority) {
	t.Helper()
	bundle := identitytest.Bundle(authority, authority)
	identitytest.Replace(t, path, bundle[:len(bundle)-40])
}

func TestClient_CertificateAndKeyComeTogether(t *testing.T) {
	authority := identitytest.NewAuthority(t, "authority")
	files := authority.Files(t, "client", authority)
	files.KeyFile = ""
	if _, err := files.Client(quiet()); err == nil {
		t.Error("Client() took a certificate without its key")
	}
}

func TestTLS_PeersVerifyEachOther(t *testing.T) {
	ours, theirs := identitytest.NewAuthority(t, "ours"), identitytest.NewAuthority(t, "theirs")
	for name, c := range map[string]struct {
		client                 identity.Files
		clientFails, serverErr bool
	}{
		"same authority":            {client: ours.Files(t, "client", ours)},
		"client of another":         {client: theirs.Files(t, "client", ours), serverErr: true},
		"client shows none":         {client: identity.Files{CAFile: ours.Files(t, "client", ours).CAFile}},
		"client trusts another":     {client: ours.Files(t, "client", theirs), clientFails: true, serverErr: true},
		"client trusts system only": {client: identity.Files{}, clientFails: true, serverErr: true},
	} {
		t.Run(name, func(t *testing.T) {
			server, err := ours.Files(t, "server", ours).ServerTLS(quiet())
			if err != nil {
				t.Fatal(err)
			}
			clientIdentity, err := c.client.Client(quiet())
			if err != nil {
				t.Fatal(err)
			}
			client := clientIdentity.TLS()
			_, serverErr, clientErr := handshake(t, server, client)
			if (serverErr != nil) != c.serverErr || (clientErr != nil) != c.clientFails {
				t.Errorf("handshake: server says %v, client says %v", serverErr, clientErr)
			}
		})
	}
}

func TestServerTLS_ChangedFilesAreReloadedUnlessBroken(t *testing.T) {
	authority := identitytest.NewAuthority(t, "authority")
	files := authority.Files(t, "first", authority)
	clientFiles := authority.Files(t, "client", authority)
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		server, err := files.ServerTLS(slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		clientIdentity, err := clientFiles.Client(quiet())
		if err != nil {
			t.Fatal(err)
		}
		client := clientIdentity.TLS()
		wantName := func(want string) {
			t.Helper()
			for range 2 { // the second handshake must neither flap nor log again
				time.Sleep(pause)
				if got, serverErr, clientErr := handshake(t, server, client); got != want {
					t.Errorf("server presents %q (server: %v, client: %v), want %q", got, serverErr, clientErr, want)
				}
			}
		}
		wantName("first")

		certificate, key := authority.Issue(t, "second")
		identitytest.Replace(t, files.CertFile, certificate)
		wantName("first") // certificate and key do not match yet
		identitytest.Replace(t, files.KeyFile, key)
		wantName("second")

		if err := os.Remove(files.CAFile); err != nil {
			t.Fatal(err)
		}
		wantName("second")
		if got := strings.Count(log.String(), "keeping the certificates in use"); got != 2 {
			t.Errorf("%d complaints for two bad states, want one for each:\n%s", got, &log)
		}
	})
}

// A process checks its files for ever. What has not changed is neither logged nor another pool.
func TestFiles_UnchangedFilesAreNotReloaded(t *testing.T) {
	authority := identitytest.NewAuthority(t, "authority")
	whole := authority.Files(t, "client", authority)
	for name, files := range map[string]identity.Files{
		"all files": whole, "authorities only": {CAFile: whole.CAFile},
		"certificate only": {CertFile: whole.CertFile, KeyFile: whole.KeyFile}, "no files": {},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			client, err := files.Client(slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			before := client.Authorities()
			for range 5 {
				time.Sleep(pause)
				if err := client.Check(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if log.Len() > 0 || client.Authorities() != before {
				t.Errorf("%s: nothing has changed, and the log has:\n%s", name, &log)
			}
		})
	}
}

func TestServerTLS_FilesAreCheckedOnceASecond(t *testing.T) {
	authority := identitytest.NewAuthority(t, "authority")
	files := authority.Files(t, "first", authority)
	clientFiles := authority.Files(t, "client", authority)
	synctest.Test(t, func(t *testing.T) {
		server, err := files.ServerTLS(quiet())
		if err != nil {
			t.Fatal(err)
		}
		clientIdentity, err := clientFiles.Client(quiet())
		if err != nil {
			t.Fatal(err)
		}
		client := clientIdentity.TLS()
		certificate, key := authority.Issue(t, "second")
		identitytest.Replace(t, files.CertFile, certificate)
		identitytest.Replace(t, files.KeyFile, key)
		if got, _, _ := handshake(t, server, client); got != "first" {
			t.Errorf("server presents %q within the second, want %q", got, "first")
		}
		time.Sleep(pause)
		if got, _, _ := handshake(t, server, client); got != "second" {
			t.Errorf("server presents %q after the second, want %q", got, "second")
		}
	})
}

func TestServerTLS_ReplacedSecretDirectoryIsReloaded(t *testing.T) {
	authority := identitytest.NewAuthority(t, "authority")
	dir := t.TempDir()
	link := filepath.Join(dir, "data")
	pointTo := func(files identity.Files) {
		if err := os.Symlink(filepath.Dir(files.CertFile), link+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link+".new", link); err != nil {
			t.Fatal(err)
		}
	}
	first, second := authority.Files(t, "first", authority), authority.Files(t, "second", authority)
	clientFiles := authority.Files(t, "client", authority)
	// Nothing but the identity of the files tells one state from the other.
	makeAlike(t, first)
	makeAlike(t, second)
	pointTo(first)
	synctest.Test(t, func(t *testing.T) {
		server, err := identity.Files{
			CertFile: filepath.Join(link, "tls.crt"), KeyFile: filepath.Join(link, "tls.key"), CAFile: filepath.Join(link, "ca.crt"),
		}.ServerTLS(quiet())
		if err != nil {
			t.Fatal(err)
		}
		clientIdentity, err := clientFiles.Client(quiet())
		if err != nil {
			t.Fatal(err)
		}
		client := clientIdentity.TLS()
		pointTo(second)
		time.Sleep(pause)
		if got, _, _ := handshake(t, server, client); got != "second" {
			t.Errorf("server presents %q after the swap, want %q", got, "second")
		}
	})
}

// makeAlike gives the files the same size and time as other files after makeAlike.
func makeAlike(t *testing.T, files identity.Files) {
	t.Helper()
	for _, path := range []string{files.CertFile, files.KeyFile, files.CAFile} {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		content = append(content, bytes.Repeat([]byte("\n"), 4096-len(content))...)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestClient_AuthoritiesAreReloaded(t *testing.T) {
	before, after := identitytest.NewAuthority(t, "before"), identitytest.NewAuthority(t, "after")
	serverFiles := after.Files(t, "server", before)
	files := before.Files(t, "client", before)
	synctest.Test(t, func(t *testing.T) {
		server, err := serverFiles.ServerTLS(quiet())
		if err != nil {
			t.Fatal(err)
		}
		client, err := files.Client(quiet())
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = handshake(t, server, client.TLS())
		var unknown x509.UnknownAuthorityError
		if !errors.As(err, &unknown) {
			t.Errorf("client says %v of a server from a new authority, want %T", err, unknown)
		}
		identitytest.Replace(t, files.CAFile, identitytest.Bundle(before, after))
		time.Sleep(pause)
		if _, serverErr, clientErr := handshake(t, server, client.TLS()); serverErr != nil || clientErr != nil {
			t.Errorf("handshake after the new authority was added: server says %v, client says %v", serverErr, clientErr)
		}
	})
}

// A process without a handshake during the overlap of two authorities reads only what is left. Its
// next handshake succeeds, and a later one does not trust the former authority.
func TestTLS_OverlapWithoutAHandshakeIsNotNeeded(t *testing.T) {
	before, after := identitytest.NewAuthority(t, "before"), identitytest.NewAuthority(t, "after")
	serverFiles, clientFiles := before.Files(t, "server", before), before.Files(t, "client", before)
	former := before.Files(t, "former", after)
	synctest.Test(t, func(t *testing.T) {
		server, err := serverFiles.ServerTLS(quiet())
		if err != nil {
			t.Fatal(err)
		}
		client, err := clientFiles.Client(quiet())
		if err != nil {
			t.Fatal(err)
		}
		for name, files := range map[string]identity.Files{"server": serverFiles, "client": clientFiles} {
			certificate, key := after.Issue(t, name)
			identitytest.Replace(t, files.CertFile, certificate)
			identitytest.Replace(t, files.KeyFile, key)
			identitytest.Replace(t, files.CAFile, identitytest.Bundle(after))
		}
		time.Sleep(time.Hour)
		if _, serverErr, clientErr := handshake(t, server, client.TLS()); serverErr != nil || clientErr != nil {
			t.Errorf("the first handshake after the overlap: server says %v, client says %v", serverErr, clientErr)
		}
		time.Sleep(pause)
		late, err := former.Client(quiet())
		if err != nil {
			t.Fatal(err)
		}
		if _, serverErr, _ := handshake(t, server, late.TLS()); serverErr == nil {
			t.Error("a second read has not ended the trust in the former authority")
		}
		if _, serverErr, clientErr := handshake(t, server, client.TLS()); serverErr != nil || clientErr != nil {
			t.Errorf("a later handshake: server says %v, client says %v", serverErr, clientErr)
		}
	})
}

// In TLS 1.3 the refusal of a client certificate follows the handshake, and a write may meet the
// closed connection before the refusal is read.
func TestCredentials_AWriteTellsThatTheCertificateIsRefused(t *testing.T) {
	own, other := identitytest.NewAuthority(t, "own"), identitytest.NewAuthority(t, "other")
	server, err := own.Files(t, "server", own).ServerTLS(quiet())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	refused := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			_, _, err = credentials.NewTLS(server).ServerHandshake(conn)
			_ = conn.Close()
		}
		refused <- err
	}()
	client, err := other.Files(t, "client", own).Client(quiet())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	conn, _, err := client.Credentials().ClientHandshake(t.Context(), listener.Addr().String(), raw)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-refused; err == nil {
		t.Fatal("the server accepts a certificate of another authority")
	}
	for err == nil {
		_, err = conn.Write(make([]byte, 1<<10))
	}
	if !strings.Contains(err.Error(), "remote error: tls: ") {
		t.Errorf("Write() = %v, want the alert of the server", err)
	}
}

// handshake returns the common name of the server's certificate and the errors of both sides.
func handshake(t *testing.T, server, client *tls.Config) (name string, serverErr, clientErr error) {
	t.Helper()
	client = client.Clone()
	client.ServerName = "127.0.0.1"
	clientEnd, serverEnd := pipe(t)
	done := make(chan error, 1)
	go func() {
		err := tls.Server(serverEnd, server).Handshake()
		serverEnd.Close()
		done <- err
	}()
	conn := tls.Client(clientEnd, client)
	clientErr = conn.Handshake()
	if clientErr == nil {
		name = conn.ConnectionState().PeerCertificates[0].Subject.CommonName
		// Reading waits until the server has made up its mind about the client.
		_, _ = conn.Read(make([]byte, 1))
	}
	clientEnd.Close()
	return name, <-done, clientErr
}

// pipe is buffered. On net.Pipe, a side that fails during a write of the peer would block for ever.
func pipe(t *testing.T) (client, server net.Conn) {
	t.Helper()
	listener := bufconn.Listen(64 << 10)
	defer listener.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			close(accepted)
			return
		}
		accepted <- conn
	}()
	client, err := listener.Dial()
	if err != nil {
		t.Fatal(err)
	}
	return client, <-accepted
}

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "127.0.0.1": true, "127.8.0.1": true, "::1": true, "::ffff:127.0.0.1": true,
		"": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "::ffff:10.0.0.1": false, "localhost.": false, "LOCALHOST": false,
		"localhost.example": false, "127.0.0.1.example": false, "127.1": false, "0127.0.0.1": false, "[::1]": false,
	} {
		if got := identity.IsLoopback(host); got != want {
			t.Errorf("IsLoopback(%q) = %t, want %t", host, got, want)
		}
	}
}
