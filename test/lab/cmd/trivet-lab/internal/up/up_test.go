package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// newInstance returns an instance without a reachable gateway and with one server, which ends with
// err if it is not nil.
func newInstance(t *testing.T, err error) *instance {
	t.Helper()
	client, dialErr := rpcclient.Dial("127.0.0.1:1", rpcclient.Config{Insecure: true}, slog.New(slog.DiscardHandler))
	if dialErr != nil {
		t.Fatal(dialErr)
	}
	u := &instance{
		opts: DefaultOptions(), progress: newProgress(io.Discard),
		control: &controlPlane{}, servers: &servers{tasks: newTasks(), client: client},
	}
	u.servers.tasks.start("gateway", func(ctx context.Context) error {
		if err == nil {
			<-ctx.Done()
		}
		return err
	})
	t.Cleanup(func() {
		u.servers.tasks.stop()
		client.Close()
	})
	return u
}

func TestAwaitReady_ReturnsWhenAServerEnds(t *testing.T) {
	u := newInstance(t, fmt.Errorf("listen: %w", syscall.EADDRINUSE))
	began := time.Now()
	_, err := u.awaitReady(t.Context())
	if took := time.Since(began); took > u.opts.ReadyTimeout/2 {
		t.Errorf("gave up after %s", took)
	}
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "gateway") || !strings.Contains(err.Error(), "--free-ports") {
		t.Errorf("awaitReady = %v, want the server, the cause and the hint", err)
	}
}

func TestAwaitReady_TimeoutNamesTheProblem(t *testing.T) {
	u := newInstance(t, nil)
	u.opts.ReadyTimeout = 300 * time.Millisecond
	_, err := u.awaitReady(t.Context())
	if err == nil || !strings.Contains(err.Error(), "--ready-timeout") || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("awaitReady = %v, want the flag and the address of the gateway", err)
	}
}

func TestAwaitReady_InterruptIsNotAnError(t *testing.T) {
	u := newInstance(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := u.awaitReady(ctx); ignoreCanceled(ctx, err) != nil {
		t.Errorf("awaitReady = %v after Ctrl-C, want context.Canceled", err)
	}
}

func TestLastWarnings_ReturnsEachTextOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trivet.log")
	log := `time=1 level=INFO msg=starting
time=2 level=WARN msg="not joined" error=a
time=3 level=WARN msg="not joined" error=a
time=4 level=ERROR msg=broken
time=5 level=WARN msg="not joined" error=b
`
	if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{`level=ERROR msg=broken`, `level=WARN msg="not joined" error=b`}
	if diff := cmp.Diff(want, lastWarnings(path, 2)); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	if got := lastWarnings(filepath.Join(t.TempDir(), "absent"), 2); got != nil {
		t.Errorf("lastWarnings() without a log = %q", got)
	}
}
