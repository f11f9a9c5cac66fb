package devcluster

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// script is a server in shell. It is ready after it has created the file "serving".
func script(t *testing.T, lines ...string) *server {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+strings.Join(lines, "\n")+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := &server{
		name:   "script",
		path:   path,
		dir:    dir,
		field:  "Config.ScriptPort",
		args:   func(int) []string { return nil },
		ready:  func(context.Context, int) error { return exists(filepath.Join(dir, "serving")) },
		grace:  100 * time.Millisecond,
		logger: slog.New(slog.DiscardHandler),
	}
	t.Cleanup(s.stop)
	return s
}

const (
	losesFirstPort = `if [ ! -e tried ]; then : > tried; echo "bind: address already in use" >&2; exit 1; fi`
	serves         = `: > serving; exec /bin/sleep 1000`
)

func TestServer_TriesAnotherPortIfOneIsTaken(t *testing.T) {
	s := script(t, losesFirstPort, serves)
	if err := s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.port < firstPort || s.port > lastPort {
		t.Errorf("port is %d, want one from %d to %d", s.port, firstPort, lastPort)
	}
}

func TestServer_GivenPortIsNeverChanged(t *testing.T) {
	s := script(t, losesFirstPort, serves)
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	s.port, s.pinned = port, true
	err = s.start(t.Context())
	taken := new(PortTakenError)
	if !errors.As(err, &taken) || taken.Port != port || s.port != port {
		t.Errorf("start with a given port that is lost: %v on port %d, want a PortTakenError for %d", err, s.port, port)
	}
}

func TestServer_StopKillsProcessThatIgnoresSIGTERM(t *testing.T) {
	s := script(t, "trap '' TERM", ": > serving", "while :; do /bin/sleep 0.01; done")
	if err := s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := s.child.PID()
	s.stop()
	if err := gone(pid); err != nil {
		t.Error(err)
	}
}

func TestServer_DeathAtStartQuotesTheLog(t *testing.T) {
	s := script(t, "echo the disk is on fire", "exit 3")
	err := s.start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "the disk is on fire") {
		t.Errorf("error %v, want exit status and last words", err)
	}
}

func TestServer_UnreadyServerIsStoppedWithItsReason(t *testing.T) {
	s := script(t, "exec /bin/sleep 1000")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Second, errors.New("tired of waiting"))
	defer cancel()
	err := s.start(ctx)
	if err == nil || !strings.Contains(err.Error(), "tired of waiting") || !strings.Contains(err.Error(), "no file like") {
		t.Errorf("error %v, want the cause and the last answer", err)
	}
	requireNoChild(t)
}

func TestServer_ErrorOmitsLogOfEarlierDeath(t *testing.T) {
	s := script(t, losesFirstPort, "echo the disk is on fire", "exit 3")
	err := s.start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "the disk is on fire") || strings.Contains(err.Error(), "address already in use") {
		t.Errorf("error %v, want the last words of the second attempt only", err)
	}
}

func TestFailing_ReturnsFailedChecks(t *testing.T) {
	for answer, want := range map[string]string{
		"[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n": "[-]etcd failed: reason withheld",
		"not found\n": "not found",
	} {
		if got := strings.Join(failing(answer), "|"); got != want {
			t.Errorf("failing(%q) = %q, want %q", answer, got, want)
		}
	}
}
