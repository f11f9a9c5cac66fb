package main

import (
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

func TestRun_ReturnsTheExitCodeOfTheCommand(t *testing.T) {
	t.Setenv(devcluster.RunVariable, "") // which run sets
	failed := new(exec.ExitError)
	err := run(t.Context(), []string{"sh", "-c", `test -S "$` + devcluster.RunVariable + `/socket" && exit 7`})
	if !errors.As(err, &failed) || failed.ExitCode() != 7 {
		t.Errorf("run = %v, want exit code 7 of a command that finds the socket", err)
	}
	if err := run(t.Context(), []string{"true"}); err != nil {
		t.Errorf("run = %v, want success", err)
	}
}

func TestRun_EndsTheCommandWithItsContext(t *testing.T) {
	t.Setenv(devcluster.RunVariable, "")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := run(ctx, []string{"sleep", "600"}); err == nil {
		t.Error("run succeeded although its command was ended")
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
