package process

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/trivet-dev/trivet/internal/audit"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
)

// A person may paste a token into a URL, and a stranger may send a long one.
func TestRecordRefusal_NoTokenIsLogged(t *testing.T) {
	const token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJjYW5hcnkifQ.c2lnbmF0dXJl"
	var lines bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&lines, nil))
	log, err := audit.New(audit.Config{File: "-"}, logger, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	path := "/v1/nodes/" + token
	refused := authz.NotAuthorized(authn.User{Name: "ann"}, authz.Attributes{Verb: "get", Path: path}, "")
	recordRefusal(log, logger, httptest.NewRequestWithContext(ctx, "GET", path, nil), nil, refused)
	recordRefusal(log, logger, httptest.NewRequestWithContext(ctx, "GET", "/"+strings.Repeat("a", 10_000), nil), nil, errors.New("refused"))
	stopped, stop := context.WithCancel(ctx)
	stop()
	if err := log.Run(stopped); err != nil {
		t.Fatal(err)
	}
	text := lines.String()
	if strings.Contains(text, "eyJ") || !strings.Contains(text, "audit") || !strings.Contains(text, "refused HTTP request") {
		t.Errorf("the log has the token, or not the refusal:\n%s", text)
	}
	for line := range strings.Lines(text) {
		if len(line) > 2000 {
			t.Errorf("a line has %d bytes", len(line))
		}
	}
}
