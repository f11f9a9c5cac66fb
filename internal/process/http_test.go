package process

import (
	"bytes"
	"context"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/time/rate"

	"github.com/trivet-dev/trivet/internal/audit"
	"github.com/trivet-dev/trivet/internal/authn"
)

// A person may put a token into a path, and a stranger may send many requests.
func TestRefusals_WriteNoTokenAndFewLines(t *testing.T) {
	const token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"
	cfg := audit.DefaultConfig()
	cfg.File = filepath.Join(t.TempDir(), "audit.log")
	to, err := audit.New(cfg, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	refused := &refusals{to: to, logger: slog.New(slog.NewTextHandler(&lines, nil)), lines: rate.NewLimiter(refusalsPerSecond, refusalBurst)}
	for range 10_000 {
		refused.record(httptest.NewRequestWithContext(t.Context(), "GET", "/"+token+"/"+strings.Repeat("x", 10_000), nil), nil, authn.NotAuthenticated("/"+token))
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := to.Run(ended); err != nil {
		t.Fatal(err)
	}
	recorded, err := os.ReadFile(cfg.File)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(lines.String(), "\n"); n < refusalBurst || n > 5*refusalBurst {
		t.Errorf("%d lines, want some more than %d", n, refusalBurst)
	}
	for line := range strings.Lines(lines.String()) {
		if len(line) > 1000 {
			t.Fatalf("a line has %d bytes", len(line))
		}
	}
	for name, text := range map[string]string{"log": lines.String(), "audit log": string(recorded)} {
		if strings.Contains(text, token) || !strings.Contains(text, "<token>") {
			t.Errorf("the %s has the token, or not the request", name)
		}
	}
}
