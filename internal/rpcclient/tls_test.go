package rpcclient_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
)

// reload is longer than certificates go without being looked at and reconnects are put off.
const reload = 10 * time.Second

func answering() *leases {
	return &leases{get: func(context.Context, int64) error { return nil }}
}

// secure connects with certificates. Connections get old within a second, so that each later call
// shakes hands again.
func secure(t *testing.T, server, client identity.Files) *connected {
	t.Helper()
	cfg := rpcserver.DefaultConfig("127.0.0.1:0")
	cfg.TLS = server
	cfg.MaxConnectionAge = time.Second
	return connect(t, answering(), cfg, rpcclient.Config{TLS: client})
}

func TestTLS_OnlyPeersOfTheAuthorityTalk(t *testing.T) {
	ours, theirs := identitytest.NewAuthority(t, "ours"), identitytest.NewAuthority(t, "theirs")
	for name, c := range map[string]struct {
		client identity.Files
		want   codes.Code
	}{
		"same authority":        {client: ours.Files(t, "client", ours), want: codes.OK},
		"client of another":     {client: theirs.Files(t, "client", ours), want: codes.Unavailable},
		"client shows none":     {client: identity.Files{CAFile: ours.Files(t, "client", ours).CAFile}, want: codes.Unauthenticated},
		"client trusts another": {client: ours.Files(t, "client", theirs), want: codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if _, err := secure(t, ours.Files(t, "server", ours), c.client).GetLease(t.Context(), request()); status.Code(err) != c.want {
					t.Errorf("GetLease() = %v, want %v", err, c.want)
				}
			})
		})
	}
}

func TestTLS_CertificateOfAnotherNameIsRefused(t *testing.T) {
	authority := identitytest.NewAuthority(t, "authority")
	synctest.Test(t, func(t *testing.T) {
		cfg := rpcserver.DefaultConfig("127.0.0.1:0")
		cfg.TLS = authority.Files(t, "server", authority)
		client := connectAs(t, "passthrough:///127.0.0.2:7601", answering(), cfg, rpcclient.Config{TLS: authority.Files(t, "client", authority)})
		_, err := client.GetLease(t.Context(), request())
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "127.0.0.2") {
			t.Errorf("GetLease() from a server of another address = %v, want %v with the address", err, codes.Unavailable)
		}
	})
}

func TestTLS_ServerIsKnownByTheNameOfItsService(t *testing.T) {
	authority := identitytest.NewAuthority(t, "authority")
	for name, want := range map[string]codes.Code{"leasesvc": codes.OK, "slicesvc": codes.Unavailable} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := rpcserver.DefaultConfig("127.0.0.1:0")
				cfg.TLS = authority.Files(t, "leasesvc", authority)
				client := connectAs(t, "passthrough:///10.244.0.7:7601", answering(), cfg,
					rpcclient.Config{TLS: authority.Files(t, "gateway", authority), ServerName: name})
				if _, err := client.GetLease(t.Context(), request()); status.Code(err) != want {
					t.Errorf("GetLease() from leasesvc at an address in no certificate = %v, want %v", err, want)
				}
			})
		})
	}
}

func TestTLS_WholeAuthorityRotatesUnderTheConnection(t *testing.T) {
	before, after := identitytest.NewAuthority(t, "before"), identitytest.NewAuthority(t, "after")
	serverFiles, clientFiles := before.Files(t, "server", before), before.Files(t, "client", before)
	synctest.Test(t, func(t *testing.T) {
		client := secure(t, serverFiles, clientFiles)
		call := func(when string) {
			t.Helper()
			shaken := client.dials.Load()
			time.Sleep(reload)
			if _, err := client.GetLease(t.Context(), request()); err != nil {
				t.Errorf("%s: %v", when, err)
			}
			if client.dials.Load() == shaken {
				t.Errorf("%s: no new handshake, so the call proves nothing", when)
			}
		}
		call("before the rotation")
		identitytest.Replace(t, serverFiles.CAFile, identitytest.Bundle(before, after))
		identitytest.Replace(t, clientFiles.CAFile, identitytest.Bundle(before, after))
		call("with both authorities trusted")
		reissue(t, after, serverFiles)
		call("with a new server certificate")
		reissue(t, after, clientFiles)
		call("with a new client certificate")
		identitytest.Replace(t, serverFiles.CAFile, identitytest.Bundle(after))
		identitytest.Replace(t, clientFiles.CAFile, identitytest.Bundle(after))
		call("with the old authority gone")

		identitytest.Replace(t, serverFiles.KeyFile, []byte("broken"))
		if err := os.Remove(clientFiles.CAFile); err != nil {
			t.Fatal(err)
		}
		call("with broken files on both sides")
	})
}

func reissue(t *testing.T, authority *identitytest.Authority, files identity.Files) {
	t.Helper()
	certificate, key := authority.Issue(t, "renewed")
	identitytest.Replace(t, files.CertFile, certificate)
	identitytest.Replace(t, files.KeyFile, key)
}
