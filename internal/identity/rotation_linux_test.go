package identity_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/test/lab/identitytest"
)

// otherUser is a user of a thread that may not read the files of root.
const otherUser = 65534

// asOtherUser calls f on a thread that accesses files as otherUser. The thread ends with the call.
func asOtherUser(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can change the user of a thread")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // no unlock: the runtime ends the thread
		err := syscall.Setfsuid(otherUser)
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A writer creates the new key with mode 0600 under its own user and gives it away later, which
// changes neither size nor time nor inode.
func TestServerTLS_FileThatWasGivenAwayLaterIsUsed(t *testing.T) {
	authority := identitytest.NewAuthority(t, "authority")
	files := authority.Files(t, "first", authority)
	letTraverse(t, filepath.Dir(files.CertFile))
	for _, path := range []string{files.CertFile, files.KeyFile, files.CAFile} {
		if err := os.Chown(path, otherUser, otherUser); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		server, err := files.ServerTLS(slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		wantPresented := func(want string) {
			t.Helper()
			time.Sleep(pause)
			var got string
			asOtherUser(t, func() { got = presented(t, server) })
			if got != want {
				t.Errorf("server presents %q, want %q; log:\n%s", got, want, &log)
			}
		}
		wantPresented("first")
		certificate, key := authority.Issue(t, "second")
		identitytest.Replace(t, files.CertFile, certificate)
		identitytest.Replace(t, files.KeyFile, key)
		for _, path := range []string{files.CertFile, files.KeyFile} {
			if err := os.Chmod(path, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		wantPresented("first")
		if !strings.Contains(log.String(), "permission denied") {
			t.Errorf("the log does not tell the cause:\n%s", &log)
		}
		for _, path := range []string{files.CertFile, files.KeyFile} {
			if err := os.Chown(path, otherUser, otherUser); err != nil {
				t.Fatal(err)
			}
		}
		wantPresented("second")
	})
}

// letTraverse lets every user reach the files of a temporary directory.
func letTraverse(t *testing.T, dir string) {
	t.Helper()
	for _, path := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// presented returns the common name of the certificate for the next handshake.
func presented(t *testing.T, server *tls.Config) string {
	t.Helper()
	config, err := server.GetConfigForClient(&tls.ClientHelloInfo{})
	if err != nil {
		t.Error(err)
		return ""
	}
	leaf, err := x509.ParseCertificate(config.Certificates[0].Certificate[0])
	if err != nil {
		t.Error(err)
		return ""
	}
	return leaf.Subject.CommonName
}

// A tool such as rsync --inplace --times writes into the same inode and keeps the time.
func TestServerTLS_ContentDecidesNotTimeOrSize(t *testing.T) {
	authority := identitytest.NewAuthority(t, "authority")
	files, second := authority.Files(t, "first", authority), authority.Files(t, "second", authority)
	makeAlike(t, files)
	makeAlike(t, second)
	synctest.Test(t, func(t *testing.T) {
		server, err := files.ServerTLS(quiet())
		if err != nil {
			t.Fatal(err)
		}
		copyInPlace(t, second.CertFile, files.CertFile) // no match yet
		time.Sleep(pause)
		if got := presented(t, server); got != "first" {
			t.Errorf("server presents %q before the key is there, want %q", got, "first")
		}
		copyInPlace(t, second.KeyFile, files.KeyFile)
		time.Sleep(pause)
		if got := presented(t, server); got != "second" {
			t.Errorf("server presents %q after both files were replaced in place, want %q", got, "second")
		}
	})
}

// copyInPlace writes the content of a file into another one and keeps its size and time.
func copyInPlace(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(to, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
}

func TestServerTLS_BrokenAuthoritiesDoNotKeepANewCertificateFromUse(t *testing.T) {
	authority, next := identitytest.NewAuthority(t, "authority"), identitytest.NewAuthority(t, "next")
	files := authority.Files(t, "first", authority, next)
	synctest.Test(t, func(t *testing.T) {
		server, err := files.ServerTLS(quiet())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(files.CAFile); err != nil {
			t.Fatal(err)
		}
		certificate, key := authority.Issue(t, "second")
		identitytest.Replace(t, files.CertFile, certificate)
		identitytest.Replace(t, files.KeyFile, key)
		time.Sleep(pause)
		if got := presented(t, server); got != "second" {
			t.Errorf("server presents %q while the authorities are missing, want %q", got, "second")
		}
	})
}

// A writer that does not replace a bundle in one step has written whole certificates for a moment.
func TestServerTLS_AuthorityThatIsMissingInOneReadIsKept(t *testing.T) {
	first, second := identitytest.NewAuthority(t, "first"), identitytest.NewAuthority(t, "second")
	files := first.Files(t, "server", first, second)
	clientFiles := second.Files(t, "client", first)
	synctest.Test(t, func(t *testing.T) {
		server, err := files.ServerTLS(quiet())
		if err != nil {
			t.Fatal(err)
		}
		client, err := clientFiles.Client(quiet())
		if err != nil {
			t.Fatal(err)
		}
		wantAccepted := func(want bool) {
			t.Helper()
			time.Sleep(pause)
			if _, serverErr, _ := handshake(t, server, client.TLS()); (serverErr == nil) != want {
				t.Errorf("handshake with a client of the second authority: %v, want accepted: %t", serverErr, want)
			}
		}
		identitytest.Replace(t, files.CAFile, identitytest.Bundle(first))
		wantAccepted(true)
		identitytest.Replace(t, files.CAFile, identitytest.Bundle(first, second))
		wantAccepted(true)
		identitytest.Replace(t, files.CAFile, identitytest.Bundle(first))
		wantAccepted(true)
		wantAccepted(false) // found twice: the authority was removed
	})
}

func TestServerTLS_WarningIsRepeatedWhileFilesAreBroken(t *testing.T) {
	authority := identitytest.NewAuthority(t, "authority")
	files := authority.Files(t, "first", authority)
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		server, err := files.ServerTLS(slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		identitytest.Replace(t, files.CertFile, nil)
		for range 130 { // seconds
			time.Sleep(pause)
			presented(t, server)
		}
		if got := strings.Count(log.String(), "level=WARN"); got != 3 {
			t.Errorf("%d warnings in 143 s, want one a minute:\n%s", got, &log)
		}
		if !strings.Contains(log.String(), "failed to find any PEM data") {
			t.Errorf("the warning does not tell the cause:\n%s", &log)
		}
	})
}
