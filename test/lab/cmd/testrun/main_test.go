package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

func TestRun_ReturnsTheExitCodeOfTheCommand(t *testing.T) {
	t.Setenv(devcluster.RunVariable, "") // which run sets
	code, err := run(t.Context(), []string{"sh", "-c", `test -S "$` + devcluster.RunVariable + `/socket" && exit 7`})
	if code != 7 || err != nil {
		t.Errorf("run = %d, %v, want exit code 7 of a command that finds the socket", code, err)
	}
	if code, err := run(t.Context(), []string{"true"}); code != 0 || err != nil {
		t.Errorf("run = %d, %v, want success", code, err)
	}
	code, err = run(t.Context(), []string{"sh", "-c", `mkdir "$` + devcluster.RunVariable + "/" + devcluster.StartsFile + `"; exit 7`})
	if code != 7 || err == nil {
		t.Errorf("run = %d, %v, want exit code 7 and that the starts cannot be counted", code, err)
	}
}

// The shell starts sleep with SIGINT ignored.
func TestRun_EndsAllProcessesOfTheCommandWithItsContext(t *testing.T) {
	t.Setenv(devcluster.RunVariable, "")
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	opened := make(chan *os.File, 1)
	go func() {
		defer cancel()
		pipe, err := os.Open(path) // returns when sleep has it
		if err != nil {
			t.Error(err)
		}
		opened <- pipe
	}()
	if code, err := run(ctx, []string{"sh", "-c", `sleep 600 >"$0" & wait`, path}); code == 0 && err == nil {
		t.Error("run succeeded although its command was ended")
	}
	pipe := <-opened
	defer pipe.Close()
	if err := pipe.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := pipe.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read from the child of the shell: %v, want no such process", err)
	}
}

func TestSummary_CountsTheStartsOfEachProgram(t *testing.T) {
	for starts, want := range map[string]string{
		"": "0 control planes were started",
		"testrun\nterm.test (etcd only)\ntestrun\n": "3 control planes were started\n    1 by term.test (etcd only)\n    2 by testrun",
	} {
		if got := summary(starts); got != want {
			t.Errorf("summary(%q) = %q, want %q", starts, got, want)
		}
	}
}
