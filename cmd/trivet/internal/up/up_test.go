package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// absentGateway is a house whose gateway nobody can reach, with one server that ends with err.
func absentGateway(t *testing.T, err error) *house {
	t.Helper()
	client, dialErr := rpcclient.Dial("127.0.0.1:1", rpcclient.Config{Insecure: true}, slog.New(slog.DiscardHandler))
	if dialErr != nil {
		t.Fatal(dialErr)
	}
	h := &house{
		opts: DefaultOptions(), progress: newProgress(io.Discard),
		control: &controlPlane{}, servers: &servers{tasks: newTasks(), client: client},
	}
	h.servers.tasks.start("gateway", func(ctx context.Context) error {
		if err == nil {
			<-ctx.Done()
		}
		return err
	})
	t.Cleanup(func() {
		h.servers.tasks.stop()
		client.Close()
	})
	return h
}

func TestAwaitHealthy_AServerThatEndsIsNotWaitedFor(t *testing.T) {
	h := absentGateway(t, fmt.Errorf("listen: %w", syscall.EADDRINUSE))
	began := time.Now()
	_, err := h.awaitHealthy(t.Context())
	if took := time.Since(began); took > h.opts.ReadyTimeout/2 {
		t.Errorf("gave up after %s", took)
	}
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "gateway") || !strings.Contains(err.Error(), "--free-ports") {
		t.Errorf("awaitHealthy = %v, want which server ended, why, and what to do", err)
	}
}

func TestAwaitHealthy_SaysWhatIsMissingWhenTimeIsUp(t *testing.T) {
	h := absentGateway(t, nil)
	h.opts.ReadyTimeout = 300 * time.Millisecond
	_, err := h.awaitHealthy(t.Context())
	if err == nil || !strings.Contains(err.Error(), "--ready-timeout") || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("awaitHealthy = %v, want the flag and what the gateway's address answered", err)
	}
}

func TestAwaitHealthy_AnEndThatWasAskedForIsNoFailure(t *testing.T) {
	h := absentGateway(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.awaitHealthy(ctx); asked(ctx, err) != nil {
		t.Errorf("awaitHealthy = %v after Ctrl-C, want no more than context.Canceled", err)
	}
}
