// Package commandtest runs commands of trivet against a fake gateway on the real gRPC server, and
// compares transcripts: standard output, standard error with the error as main prints it, and the
// exit code.
package commandtest

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
)

var update = flag.Bool("update", false, "write the golden files")

// runTimeout limits a run that does not reach its end; the transcript then shows how far it came.
const runTimeout = time.Minute

// Terminal is the environment of a command.
type Terminal struct {
	// Width and Height are the size of the terminal; zeros mean that the output is a pipe.
	Width, Height int
	// Typed is the input of a person; empty means that the input is not a terminal.
	Typed string
	// Env has the environment variables.
	Env map[string]string
	// Until interrupts the command, as Ctrl-C does, when its outputs contain all of these texts.
	Until []string
}

// Transcript is the result of a run.
type Transcript struct {
	Stdout, Stderr string
	Code           int
}

func (t Transcript) String() string {
	return fmt.Sprintf("%s-- stderr --\n%s-- exit code --\n%d\n", t.Stdout, t.Stderr, t.Code)
}

// NewCommand is the constructor of a command.
type NewCommand = func(printer.Streams) *cobra.Command

// Run runs a command as main does.
func Run(t testing.TB, terminal Terminal, newCommand NewCommand, args ...string) Transcript {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	outputs := &recorder{until: terminal.Until, cancel: cancel}
	streams := printer.Streams{
		Out: writer{outputs, &outputs.stdout}, Err: writer{outputs, &outputs.stderr},
		OutIsTerminal: terminal.Width > 0,
		In:            strings.NewReader(terminal.Typed), InIsTerminal: terminal.Typed != "",
		Env:  func(name string) string { return terminal.Env[name] },
		Size: func() (int, int) { return terminal.Width, terminal.Height },

		ProgressDelay: runTimeout, // a loaded machine changes no transcript
	}
	err := Execute(ctx, streams, newCommand, args...)
	exit.Report(streams.Err, err)
	return Transcript{Stdout: outputs.stdout.String(), Stderr: outputs.stderr.String(), Code: exit.CodeOf(err)}
}

// Complete runs a completion until its standard output is as wanted. A completion gives up after a
// second, which may be too short for a gateway on a busy machine.
func Complete(t testing.TB, newCommand NewCommand, want string, args ...string) {
	t.Helper()
	for began := time.Now(); ; {
		got := Run(t, Terminal{}, newCommand, append([]string{"__complete"}, args...)...)
		if got.Stdout == want {
			return
		}
		if time.Since(began) > runTimeout {
			t.Errorf("%q: stdout = %q, want %q\n%s", args, got.Stdout, want, got.Stderr)
			return
		}
	}
}

// Execute runs a command as main does, but does not print its error.
func Execute(ctx context.Context, streams printer.Streams, newCommand NewCommand, args ...string) error {
	command := newCommand(streams)
	command.SilenceUsage, command.SilenceErrors = true, true
	command.SetArgs(append([]string{}, args...)) // with nil it would take those of the test binary
	command.SetOut(streams.Out)
	command.SetErr(streams.Err)
	return exit.Execute(ctx, command)
}

// Pipe returns streams that are not terminals, without an environment.
func Pipe(stdout, stderr io.Writer) printer.Streams {
	return printer.Streams{Out: stdout, Err: stderr, Env: func(string) string { return "" }, ProgressDelay: runTimeout}
}

// recorder keeps both outputs. It interrupts the command when they contain all texts.
type recorder struct {
	mu             sync.Mutex // guards the outputs
	stdout, stderr strings.Builder
	until          []string
	cancel         context.CancelFunc
}

type writer struct {
	recorder *recorder
	output   *strings.Builder
}

func (w writer) Write(data []byte) (int, error) {
	r := w.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	w.output.Write(data)
	complete := len(r.until) > 0
	for _, text := range r.until {
		complete = complete && (strings.Contains(r.stdout.String(), text) || strings.Contains(r.stderr.String(), text))
	}
	if complete {
		r.cancel()
	}
	return len(data), nil
}

// Ago returns a time in the past, half a minute earlier than d, so that ages in hours do not depend
// on the duration of a test.
func Ago(d time.Duration) *timestamppb.Timestamp {
	return timestamppb.New(time.Now().Add(-d - 30*time.Second))
}

// Ahead returns a time in the future, half a minute later than d.
func Ahead(d time.Duration) *timestamppb.Timestamp {
	return timestamppb.New(time.Now().Add(d + 30*time.Second))
}

// HideAddresses replaces the addresses of gateways, which differ between runs, by ADDRESS.
func HideAddresses(text string) string {
	return regexp.MustCompile(`127\.0\.0\.1:[0-9]+`).ReplaceAllString(text, "ADDRESS")
}

// Updating reports whether tests write their expected files.
func Updating() bool { return *update }

// Golden compares a text after [HideAddresses] with testdata/name; -update writes the file.
func Golden(t testing.TB, name, got string) {
	t.Helper()
	got = HideAddresses(got)
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
