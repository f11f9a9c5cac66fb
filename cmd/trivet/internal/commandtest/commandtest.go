package commandtest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
)

var update = flag.Bool("update", false, "write the golden files anew")

// patience bounds a run that does not come to the end that a test waits for; the transcript then shows how far it came.
const patience = 10 * time.Second

// Terminal is where a command runs.
type Terminal struct {
	// Width and Height are its size; zeros mean that output goes into a pipe.
	Width, Height int
	// Typed is what a person types; empty where there is no person.
	Typed string
	// Env is its environment.
	Env map[string]string
	// Until ends the command, as Ctrl-C does, once standard output and standard error contain all of these texts.
	Until []string
}

// Transcript is what a run left behind.
type Transcript struct {
	Stdout, Stderr string
	Code           int
}

func (t Transcript) String() string {
	return fmt.Sprintf("%s-- stderr --\n%s-- exit code --\n%d\n", t.Stdout, t.Stderr, t.Code)
}

// Run executes a command as main does.
func Run(t testing.TB, where Terminal, command func(printer.Streams) *cobra.Command, args ...string) Transcript {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	seen := &witness{until: where.Until, cancel: cancel}
	streams := printer.Streams{
		Out: writer{seen, &seen.stdout}, Err: writer{seen, &seen.stderr},
		OutIsTerminal: where.Width > 0,
		In:            strings.NewReader(where.Typed), InIsTerminal: where.Typed != "",
		Env:  func(name string) string { return where.Env[name] },
		Size: func() (int, int) { return where.Width, where.Height },
	}
	executed := command(streams)
	executed.SetArgs(args)
	executed.SetOut(streams.Out)
	executed.SetErr(streams.Err)
	err := executed.ExecuteContext(ctx)
	exit.Report(streams.Err, err)
	return Transcript{Stdout: seen.stdout.String(), Stderr: seen.stderr.String(), Code: exit.CodeOf(err)}
}

// witness keeps both outputs and ends the command when all was seen.
type witness struct {
	mu             sync.Mutex // guards the outputs
	stdout, stderr strings.Builder
	until          []string
	cancel         context.CancelFunc
}

type writer struct {
	witness *witness
	text    *strings.Builder
}

func (w writer) Write(data []byte) (int, error) {
	w.witness.mu.Lock()
	defer w.witness.mu.Unlock()
	w.text.Write(data)
	seen := len(w.witness.until) > 0
	for _, text := range w.witness.until {
		seen = seen && (strings.Contains(w.witness.stdout.String(), text) || strings.Contains(w.witness.stderr.String(), text))
	}
	if seen {
		w.witness.cancel()
	}
	return len(data), nil
}

// Anonymous replaces addresses of gateways, which differ from run to run, by ADDRESS.
func Anonymous(text string) string {
	return regexp.MustCompile(`127\.0\.0\.1:[0-9]+`).ReplaceAllString(text, "ADDRESS")
}

// Golden compares with testdata/name, or writes it under -update; what is compared is [Anonymous].
func Golden(t testing.TB, name, got string) {
	t.Helper()
	got = Anonymous(got)
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatalf("make the folder: %v", err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatalf("write the golden file: %v", err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("read the golden file (go test -update writes it): %v", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}
