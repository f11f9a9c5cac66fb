package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// measureUp starts `trivet-lab up` with its default fleet, waits until it reports that all servers
// are ready, and stops it.
func measureUp(ctx context.Context, cfg config) ([]row, error) {
	command := exec.CommandContext(ctx, filepath.Join(cfg.binDir, "trivet-lab"), "up", "--free-ports")
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	command.Stderr = command.Stdout
	began := time.Now()
	if err := command.Start(); err != nil {
		return nil, err
	}
	var ready time.Duration
	var said []string
	for lines := bufio.NewScanner(output); lines.Scan(); {
		said = append(said, lines.Text())
		if ready == 0 && strings.Contains(lines.Text(), "✓ all services ready") {
			ready = time.Since(began)
			if err := command.Process.Signal(syscall.SIGINT); err != nil {
				return nil, err
			}
		}
	}
	stopped := time.Since(began) - ready
	err = command.Wait()
	if ready == 0 {
		return nil, errors.Join(fmt.Errorf("trivet-lab up never became ready:\n%s", strings.Join(said, "\n")), err)
	}
	return []row{
		{what: "`trivet-lab up`, 20 nodes, 10 services, 50 pods: until all servers are ready", figure: fmt.Sprintf("%.1f s", ready.Seconds())},
		{what: "the same: from Ctrl-C until nothing is left", figure: fmt.Sprintf("%.1f s", stopped.Seconds())},
	}, nil
}
