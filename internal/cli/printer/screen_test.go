package printer_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/cli/printer"
)

func TestScreen_CutsToTheTerminal(t *testing.T) {
	const text = "headline\n\x1b[31mrot und größer\x1b[0m ende\nshort\nfour\nfive\n"
	tests := []struct {
		name          string
		width, height int
		want          []string
	}{
		{name: "unknown size", want: []string{"headline", "\x1b[31mrot und größer\x1b[0m ende", "short", "four", "five"}},
		{name: "everything fits", width: 19, height: 6, want: []string{"headline", "\x1b[31mrot und größer\x1b[0m ende", "short", "four", "five"}},
		{name: "narrow", width: 13, height: 6, want: []string{"headline", "\x1b[31mrot und größ…\x1b[0m", "short", "four", "five"}},
		{name: "narrower than a word", width: 1, height: 6, want: []string{"…", "…", "…", "…", "…"}},
		{name: "low", width: 80, height: 4, want: []string{"headline", "\x1b[31mrot und größer\x1b[0m ende", "… and 3 more lines"}},
		{name: "one line for the cursor, one for the text", width: 80, height: 2, want: []string{"… and 5 more lines"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got strings.Builder
			screen := printer.NewScreen(printer.Streams{Out: &got, OutIsTerminal: true, Size: func() (int, int) { return test.width, test.height }})
			defer screen.Close()
			if err := screen.Show(text); err != nil {
				t.Fatalf("Show() = %v", err)
			}
			want := "\x1b[?1049h\x1b[H" + strings.Join(test.want, "\x1b[K\n") + "\x1b[K\n\x1b[J"
			if got.String() != want {
				t.Errorf("Show() wrote\n%q, want\n%q", got.String(), want)
			}
		})
	}
}

func TestScreen_UsesTheAlternateScreenUntilItIsClosed(t *testing.T) {
	var got strings.Builder
	screen := printer.NewScreen(printer.Streams{Out: &got})
	if err := screen.Close(); err != nil || got.Len() > 0 {
		t.Fatalf("Close() before the first text wrote %q, %v", got.String(), err)
	}
	for _, text := range []string{"one\n", "two\nlines\n"} {
		if err := screen.Show(text); err != nil {
			t.Fatalf("Show() = %v", err)
		}
	}
	for range 2 {
		if err := screen.Close(); err != nil {
			t.Fatalf("Close() = %v", err)
		}
	}
	want := "\x1b[?1049h\x1b[Hone\x1b[K\n\x1b[J\x1b[Htwo\x1b[K\nlines\x1b[K\n\x1b[J\x1b[?1049ltwo\nlines\n"
	if got.String() != want {
		t.Errorf("wrote %q, want %q", got.String(), want)
	}
}

// The test runs itself as a process that shows a text, and stops it as Ctrl-Z does.
func TestScreen_AStoppedProcessLeavesTheAlternateScreen(t *testing.T) {
	if os.Getenv("TRIVET_TEST_SCREEN") != "" {
		screen := printer.NewScreen(printer.Streams{Out: os.Stdout})
		if err := screen.Show("text\n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), "TRIVET_TEST_SCREEN=1")
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	const shown = "\x1b[?1049h\x1b[Htext\x1b[K\n\x1b[J"
	reads := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(output, got); err != nil || string(got) != want {
			t.Fatalf("the process wrote %q, %v; want %q", got, err, want)
		}
	}
	reads(shown)
	signal := func(number syscall.Signal) {
		t.Helper()
		if err := child.Process.Signal(number); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGTSTP)
	reads("\x1b[?1049l")
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(child.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the process has not stopped: %v, %v", status, err)
	}
	signal(syscall.SIGCONT)
	reads(shown)
}
