// Command testrun runs a command that runs tests, and lends its test binaries control planes, which
// they would start themselves otherwise. It prints how many control planes the tests started.
//
//	testrun go test -p 3 ./...
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/trivet-dev/trivet/test/lab/clusterpool"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/workdir"
)

func main() {
	if len(os.Args) < 2 {
		logf("usage: testrun command [argument ...]")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		logf("%v", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func logf(format string, args ...any) { fmt.Fprintf(os.Stderr, "testrun: "+format+"\n", args...) }

// run returns the exit code of the command, 1 after a signal. The error says what else has failed.
func run(ctx context.Context, command []string) (code int, err error) {
	dir, err := workdir.Open("", "trivet-testrun-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	// The control planes of the pool are recorded as those of the tests are.
	if err := os.Setenv(devcluster.RunVariable, dir.Path()); err != nil {
		return 0, fmt.Errorf("set the environment of the tests: %w", err)
	}
	listener, err := net.Listen("unix", clusterpool.Socket(dir.Path()))
	if err != nil {
		return 0, fmt.Errorf("listen for test binaries: %w", err)
	}
	serving, end := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- clusterpool.New(logf).Serve(serving, listener) }()

	tests := exec.CommandContext(ctx, command[0], command[1:]...)
	tests.Stdin, tests.Stdout, tests.Stderr = os.Stdin, os.Stdout, os.Stderr
	tests.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	tests.Cancel = func() error { return syscall.Kill(-tests.Process.Pid, syscall.SIGINT) }
	tests.WaitDelay = 10 * time.Second
	err = tests.Run()
	if tests.Process != nil {
		_ = syscall.Kill(-tests.Process.Pid, syscall.SIGKILL) // an error means that no process remains
	}
	end()
	if failed := new(exec.ExitError); errors.As(err, &failed) {
		code, err = max(failed.ExitCode(), 1), nil // -1 after a signal
	}
	return code, errors.Join(err, <-served, printStarts(dir.File(devcluster.StartsFile)))
}

// printStarts prints what Start of devcluster has recorded.
func printStarts(path string) error {
	starts, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("count the control planes: %w", err)
	}
	logf("%s", summary(string(starts)))
	return nil
}

// summary counts the lines of each program.
func summary(starts string) string {
	counts := make(map[string]int)
	for line := range strings.Lines(starts) {
		counts[strings.TrimSpace(line)]++
	}
	text, total := "", 0
	for _, program := range slices.Sorted(maps.Keys(counts)) {
		text += fmt.Sprintf("\n  %3d by %s", counts[program], program)
		total += counts[program]
	}
	return fmt.Sprintf("%d control planes were started%s", total, text)
}
