package devcluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// RunVariable is the environment variable with the directory of a test run. Start appends a line to
// the file StartsFile in it, so that the run knows how many control planes it started.
const (
	RunVariable = "TRIVET_TEST_RUN"
	StartsFile  = "starts"
)

// RunDir returns the directory of the test run, or "" outside of one. It does not use os.Getenv,
// because `go test` would then reuse no result of a run with another directory.
func RunDir() string {
	dir, _ := syscall.Getenv(RunVariable)
	return dir
}

func recordStart(cfg Config) error {
	dir := RunDir()
	if dir == "" {
		return nil
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("record the start: %w", err)
	}
	what := filepath.Base(program)
	if cfg.EtcdOnly {
		what += " (etcd only)"
	}
	starts, err := os.OpenFile(filepath.Join(dir, StartsFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("record the start: %w", err)
	}
	_, err = starts.WriteString(what + "\n")
	if err := errors.Join(err, starts.Close()); err != nil {
		return fmt.Errorf("record the start: %w", err)
	}
	return nil
}
