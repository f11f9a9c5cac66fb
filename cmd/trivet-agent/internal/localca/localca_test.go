package localca

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/certs"
)

func open(t *testing.T, dir string) *CA {
	t.Helper()
	c, err := Open(dir, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// trusted fails if a kubelet that reads the bundle now refuses the endpoint.
func trusted(t *testing.T, bundle []byte, serving *tls.Certificate, now time.Time) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	for _, name := range []string{"127.0.0.1", "localhost"} {
		if _, err := serving.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now}); err != nil {
			t.Errorf("at %v for %s: %v", now, name, err)
		}
	}
}

func (c *CA) state(t *testing.T) (bundle []byte, serving *tls.Certificate) {
	t.Helper()
	bundle, err := os.ReadFile(c.BundleFile())
	if err != nil {
		t.Fatal(err)
	}
	if serving, err = c.GetCertificate(nil); err != nil {
		t.Fatal(err)
	}
	return bundle, serving
}

func TestOpen_MakesOneAuthorityAndKeepsIt(t *testing.T) {
	dir := t.TempDir()
	opened := make([]*CA, 4)
	var group sync.WaitGroup
	for i := range opened {
		group.Go(func() { opened[i] = open(t, dir) })
	}
	group.Wait()
	bundle, _ := opened[0].state(t)
	for _, c := range slices.Concat(opened, []*CA{open(t, dir)}) {
		again, serving := c.state(t)
		if !bytes.Equal(bundle, again) {
			t.Error("another authority was made")
		}
		trusted(t, bundle, serving, time.Now())
	}
	info, err := os.Stat(filepath.Join(dir, keyFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key has mode %v (%v), want 0600", info.Mode(), err)
	}
}

func TestRotate_KubeletThatReadsTheBundleNowAndThenTrustsTheEndpoint(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir)
	first, _ := c.state(t)
	end := c.authorities.Signing.Certificate().NotAfter
	held := first
	changes := 0
	for now := time.Now(); now.Before(end.Add(365 * 24 * time.Hour)); now = now.Add(30 * 24 * time.Hour) {
		c.now = func() time.Time { return now }
		if err := c.Rotate(); err != nil {
			t.Fatal(err)
		}
		bundle, serving := c.state(t)
		trusted(t, held, serving, now) // the kubelet read the bundle a month ago
		if !bytes.Equal(bundle, held) {
			changes++
		}
		held = bundle
	}
	if changes < 2 {
		t.Errorf("the bundle changed %d times in eleven years, want a new authority and the end of the former", changes)
	}
}

func TestOpen_DamagedOrEndedAuthorityIsReplaced(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"damaged": func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, keyFile), []byte(`{"tls.crt":`), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"made before the clock was right": func(t *testing.T, dir string) {
			c := &CA{dir: dir, logger: slog.New(slog.DiscardHandler), now: func() time.Time { return time.Unix(0, 0).Add(certs.Backdate) }}
			if err := c.Rotate(); err != nil {
				t.Fatal(err)
			}
		},
		"made by a clock that was ahead": func(t *testing.T, dir string) {
			c := &CA{dir: dir, logger: slog.New(slog.DiscardHandler), now: func() time.Time { return time.Now().Add(50 * 365 * 24 * time.Hour) }}
			if err := c.Rotate(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			spoil(t, dir)
			bundle, serving := open(t, dir).state(t)
			trusted(t, bundle, serving, time.Now())
		})
	}
}

// Root runs the command kubeconfig before the agent, which is another user, has started.
func TestOpen_RootLeavesFilesThatTheAgentOpens(t *testing.T) {
	const agent = 65532
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	foreign := filepath.Join(t.TempDir(), "foreign")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, agent, agent); err != nil {
		t.Fatal(err)
	}
	ownerOf := func(path string) uint32 {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Uid
	}
	lock := filepath.Join(dir, lockFile)
	if err := os.Link(foreign, lock); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	if owner := ownerOf(foreign); owner != 0 {
		t.Errorf("the file of root to which the lock is a link has owner %d", owner)
	}
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	for _, earlier := range []bool{false, true} {
		if earlier { // as an earlier version left it
			if err := os.Chown(lock, 0, 0); err != nil {
				t.Fatal(err)
			}
		}
		open(t, dir)
		for _, name := range []string{lockFile, keyFile, bundleFile} {
			if owner := ownerOf(filepath.Join(dir, name)); owner != agent {
				t.Errorf("%s has owner %d, want %d", name, owner, agent)
			}
		}
	}
}

// A machine without a clock of its own starts with a wrong time. The endpoint does not wait for the
// next check of the authority's age when the time becomes right.
func TestGetCertificate_TheClockStepsWhileTheEndpointRuns(t *testing.T) {
	for name, wrong := range map[string]time.Duration{"ahead": 24 * time.Hour, "behind": -20 * 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			c := &CA{dir: t.TempDir(), logger: slog.New(slog.DiscardHandler), now: func() time.Time { return time.Now().Add(wrong) }}
			if err := c.Rotate(); err != nil {
				t.Fatal(err)
			}
			bundle, serving := c.state(t)
			trusted(t, bundle, serving, c.now())
			c.now = time.Now
			if _, err := c.GetCertificate(nil); err != nil {
				t.Fatal(err)
			}
			bundle, serving = c.state(t)
			trusted(t, bundle, serving, time.Now())
		})
	}
}
