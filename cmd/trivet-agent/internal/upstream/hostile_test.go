package upstream

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/apiservertest"
)

var errBroken = errors.New("the body breaks off")

// brokenBody is the body of a caller that goes while it sends.
type brokenBody struct{ io.Reader }

func (b brokenBody) Read(p []byte) (int, error) {
	if n, err := b.Reader.Read(p); err == nil {
		return n, nil
	}
	return 0, errBroken
}

func TestRoundTrip_ABodyThatBreaksOffIsNoFaultOfTheServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 2)
	current := f.current(t)
	for _, length := range []int64{-1, 2} { // sent as it comes, and kept
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://any/version", brokenBody{bytes.NewReader([]byte("{"))})
		if err != nil {
			t.Fatal(err)
		}
		request.ContentLength = length
		if response, err := f.RoundTrip(request); err == nil {
			_ = response.Body.Close()
			t.Fatal("half a body was accepted")
		}
	}
	for _, h := range f.Snapshot() {
		if !h.Ready || !h.Reachable {
			t.Errorf("%s counts as failed: %s", h.Address, h.Error)
		}
	}
	if f.current(t) != current {
		t.Error("later requests go to another server")
	}
}

// The stored list may have been written by an earlier process, or by hand, since this one read it.
func TestDiscover_AListThatIsStoredAlreadyIsUsed(t *testing.T) {
	t.Parallel()
	cluster := apiservertest.NewCluster(t, node)
	f := &fixture{cluster: cluster, servers: []*apiservertest.Server{cluster.Serve(t, named("0"))}}
	f.Pool = f.open(t, t.TempDir(), nil)
	defer f.connectionsClose()
	f.cfg.Discover = true // nothing runs yet
	addresses := []string{"127.0.0.1:1"}
	if err := os.WriteFile(filepath.Join(f.cfg.StateDir, endpointsFile), []byte(`["127.0.0.1:1"]`), 0o600); err != nil {
		t.Fatal(err)
	}
	f.use(addresses)
	if !slices.ContainsFunc(f.Snapshot(), func(h Health) bool { return h.Address == addresses[0] }) {
		t.Errorf("servers %+v lack %q", f.Snapshot(), addresses)
	}
}
