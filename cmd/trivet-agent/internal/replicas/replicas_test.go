package replicas

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeSource returns what a test sets, and counts its lookups.
type fakeSource struct {
	mu      sync.Mutex
	found   []string
	err     error
	lookups int
	hang    bool
}

func (s *fakeSource) String() string { return "fake" }

func (s *fakeSource) Lookup(ctx context.Context) ([]string, error) {
	s.mu.Lock()
	s.lookups++
	found, err, hang := slices.Clone(s.found), s.err, s.hang
	s.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return found, err
}

func (s *fakeSource) set(found []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found, s.err = found, err
}

func (s *fakeSource) takeLookups() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.lookups
	s.lookups = 0
	return n
}

func sorted(addresses []string) []string { return slices.Sorted(slices.Values(addresses)) }

func start(t *testing.T, cfg Config) *Finder {
	t.Helper()
	f := New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return f
}

func TestFinder_KeepsTheLastListWhileItsSourceFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &fakeSource{err: errors.New("no such host")}
		f := start(t, Config{Source: source})
		synctest.Wait()
		if status := f.Status(); status.Addresses != nil || status.Err == nil {
			t.Fatalf("status %+v", status)
		}
		source.set([]string{"10.0.0.2:1", "10.0.0.1:1", "10.0.0.2:1"}, nil)
		time.Sleep(2 * urgentPeriod)
		want := []string{"10.0.0.1:1", "10.0.0.2:1"}
		if diff := cmp.Diff(want, sorted(f.Addresses())); diff != "" {
			t.Errorf("found (-want +got):\n%s", diff)
		}
		for _, wrong := range []struct {
			found []string
			err   error
		}{{err: errors.New("timeout")}, {found: nil}} {
			source.set(wrong.found, wrong.err)
			time.Sleep(2 * settledPeriod)
			if diff := cmp.Diff(want, sorted(f.Addresses())); diff != "" || f.Status().Err == nil {
				t.Errorf("kept after %+v, error %v (-want +got):\n%s", wrong, f.Status().Err, diff)
			}
		}
		source.mu.Lock()
		source.hang = true
		source.mu.Unlock()
		time.Sleep(2 * settledPeriod)
		if !strings.Contains(f.Status().Err.Error(), "no answer within") {
			t.Errorf("error of a source that hangs: %v", f.Status().Err)
		}
	})
}

func TestFinder_LooksUpOftenOnlyWhileTheReplicasDoNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		settled := true
		source := &fakeSource{found: []string{"10.0.0.1:1"}}
		f := start(t, Config{Source: source, Settled: func() bool { mu.Lock(); defer mu.Unlock(); return settled }})
		time.Sleep(10 * time.Minute)
		if n := source.takeLookups(); n < 7 || n > 14 {
			t.Errorf("%d lookups in ten minutes, while the replicas answer", n)
		}
		mu.Lock()
		settled = false
		mu.Unlock()
		source.set([]string{"10.0.0.2:1"}, nil)
		time.Sleep(3 * urgentPeriod)
		if got := f.Addresses(); !slices.Equal(got, []string{"10.0.0.2:1"}) {
			t.Errorf("a wholly stale list is still in use after %v: %v", 3*urgentPeriod, got)
		}
		source.takeLookups()
		time.Sleep(time.Minute)
		if n := source.takeLookups(); n < 9 || n > 16 {
			t.Errorf("%d lookups in a minute, while no replica answers", n)
		}
	})
}

func TestFinder_StoresTheListForItsNextRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "leasesvc.json")
	synctest.Test(t, func(t *testing.T) {
		start(t, Config{Source: &fakeSource{found: []string{"10.0.0.1:1", "[fd00::1]:1"}}, StateFile: file})
		synctest.Wait()
	})
	info, err := os.Stat(file)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("state file: %v, %v", info, err)
	}
	left, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(left) != 1 {
		t.Errorf("files beside it: %v, %v", left, err)
	}
	after := New(Config{Source: &fakeSource{err: errors.New("away")}, StateFile: file})
	if diff := cmp.Diff([]string{"10.0.0.1:1", "[fd00::1]:1"}, sorted(after.Addresses())); diff != "" {
		t.Errorf("after a restart (-want +got):\n%s", diff)
	}
	if other := New(Config{Source: Names{"a:1"}, StateFile: file}); other.Addresses() != nil {
		t.Errorf("the list of another source is used: %v", other.Addresses())
	}
}

func TestReadState_BadContentIsIgnored(t *testing.T) {
	for name, content := range map[string]string{
		"empty":         "",
		"cut":           `{"source":"fake","addresses":["10.0.0.1:1"`,
		"unknown field": `{"source":"fake","addresses":["10.0.0.1:1"],"more":1}`,
		"a name":        `{"source":"fake","addresses":["evil.example:1"]}`,
		"no port":       `{"source":"fake","addresses":["10.0.0.1"]}`,
		"port 0":        `{"source":"fake","addresses":["10.0.0.1:0"]}`,
		"too many":      fmt.Sprintf(`{"source":"fake","addresses":[%s"10.0.0.1:1"]}`, strings.Repeat(`"10.0.0.1:1",`, maxAddresses)),
		"too long":      strings.Repeat(" ", maxStateBytes+1),
	} {
		file := filepath.Join(t.TempDir(), "leasesvc.json")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if addresses, err := readState(file, "fake"); err == nil || addresses != nil {
			t.Errorf("%s: read %v, error %v", name, addresses, err)
		}
		if f := New(Config{Source: &fakeSource{}, StateFile: file}); f.Addresses() != nil {
			t.Errorf("%s: used %v", name, f.Addresses())
		}
	}
	if _, err := readState(t.TempDir(), "fake"); err == nil {
		t.Error("a directory is read")
	}
}

func TestNames_StandForAllTheirAddresses(t *testing.T) {
	previous := resolve
	t.Cleanup(func() { resolve = previous })
	resolve = func(_ context.Context, _, host string) ([]netip.Addr, error) {
		if host == "leasesvc.trivet-system.svc" {
			return []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:10.0.0.2"), netip.MustParseAddr("fd00::1")}, nil
		}
		return nil, errors.New("no such host")
	}
	got, err := Names{"leasesvc.trivet-system.svc:7601", "192.0.2.1:2", "gone:3"}.Lookup(t.Context())
	if diff := cmp.Diff([]string{"10.0.0.1:7601", "10.0.0.2:7601", "[fd00::1]:7601", "192.0.2.1:2"}, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	if _, err := (Names{"gone:1", "away:2"}).Lookup(t.Context()); err == nil || !strings.Contains(err.Error(), "gone") || !strings.Contains(err.Error(), "away") {
		t.Errorf("error %v; want both names", err)
	}
}

func TestEndpointSlices_AreReadyEndpointsOrElseAll(t *testing.T) {
	slice := func(kind, ports, endpoints string) string {
		return fmt.Sprintf(`{"addressType":%q,"ports":%s,"endpoints":[%s]}`, kind, ports, endpoints)
	}
	const grpc, other = `[{"name":"grpc","port":7601},{"name":"admin","port":7611}]`, `[{"name":"admin","port":7611},{"name":"web","port":80}]`
	const ready, unknown, unready = `{"addresses":["10.0.0.1"],"conditions":{"ready":true}}`, `{"addresses":["10.0.0.2"]}`, `{"addresses":["10.0.0.3"],"conditions":{"ready":false}}`
	for name, test := range map[string]struct {
		answer func(http.ResponseWriter)
		want   []string
		err    string
	}{
		"ready":         {items(slice("IPv4", grpc, ready+","+unknown+","+unready)), []string{"10.0.0.1:7601", "10.0.0.2:7601"}, ""},
		"none is ready": {items(slice("IPv4", grpc, unready)), []string{"10.0.0.3:7601"}, ""},
		"IPv6":          {items(slice("IPv6", `[{"port":1}]`, `{"addresses":["fd00::1"]}`)), []string{"[fd00::1]:1"}, ""},
		"other ports":   {items(slice("IPv4", other, ready)), nil, "no endpoints"},
		"names":         {items(slice("FQDN", grpc, `{"addresses":["evil.example"]}`), slice("IPv4", grpc, `{"addresses":["evil.example"]}`)), nil, "no endpoints"},
		"none":          {items(), nil, "no endpoints"},
		"forbidden":     {func(w http.ResponseWriter) { http.Error(w, "system:node:a cannot list", http.StatusForbidden) }, nil, "403 Forbidden"},
		"cut":           {func(w http.ResponseWriter) { _, _ = w.Write([]byte(`{"items":[`)) }, nil, "decode"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/apis/discovery.k8s.io/v1/namespaces/trivet-system/endpointslices" || r.URL.Query().Get("labelSelector") != "kubernetes.io/service-name=leasesvc" {
					t.Errorf("request %s", r.URL)
				}
				test.answer(w)
			}))
			defer server.Close()
			target, err := url.Parse(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			got, err := EndpointSlices{Namespace: "trivet-system", Service: "leasesvc", Client: server.Client(), Server: target}.Lookup(t.Context())
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
		})
	}
}

func items(slices ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { _, _ = fmt.Fprintf(w, `{"items":[%s]}`, strings.Join(slices, ",")) }
}
