package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

func (n *node) probeMode(ctx context.Context) ([]row, error) {
	a, err := n.startAgent(ctx, nil, func() error { return nil })
	if err != nil {
		return nil, err
	}
	defer a.Stop()
	if err := pause(ctx, a, settling); err != nil {
		return nil, err
	}
	return n.rest(ctx, a, "probe mode")
}

// rest measures an agent at rest.
func (n *node) rest(ctx context.Context, a *agent, mode string) ([]row, error) {
	spent, err := childprocess.Spent(func() error { return pause(ctx, a, n.cfg.rest) }, a.PID())
	if err != nil {
		return nil, err
	}
	memory, err := memoryRows(a.PID(), mode, mostMiB)
	millicores := spent.Seconds() / n.cfg.rest.Seconds() * 1000
	return append(memory, row{mode + ": CPU time", millicores, mostMillicores, "millicores"}), err
}

func (n *node) endpointMode(ctx context.Context) ([]row, error) {
	endpoint, err := devcluster.FreeAddress()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(n.dir, "endpoint.conf")
	if err := n.printKubeconfig(ctx, endpoint, path); err != nil {
		return nil, err
	}
	k, err := newKubelet(n, path)
	if err != nil {
		return nil, err
	}
	a, err := n.startAgent(ctx, []string{"--kubelet-endpoint=" + endpoint}, func() error { return k.start(ctx) })
	defer k.stop()
	if err != nil {
		return nil, err
	}
	defer a.Stop()
	if err := pause(ctx, a, settling); err != nil {
		return nil, err
	}
	mode := fmt.Sprintf("endpoint mode, a kubelet with %d watches", n.cfg.watches)
	rows, err := n.rest(ctx, a, mode)
	if err != nil {
		return rows, err
	}
	if err := k.burst(ctx); err != nil {
		return rows, err
	}
	what := fmt.Sprintf("%s, after %d parallel reads", mode, n.cfg.burst)
	after, err := memoryRows(a.PID(), what, 0)
	if err != nil {
		return rows, err
	}
	if err := pause(ctx, a, n.cfg.rest); err != nil {
		return rows, err
	}
	later, err := memoryRows(a.PID(), fmt.Sprintf("%s, %v later", what, n.cfg.rest), mostMiB)
	if err == nil {
		err = k.failure()
	}
	return append(append(rows, after...), later...), err
}

// pause waits, and fails if the agent ends.
func pause(ctx context.Context, a *agent, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-a.Exited():
		return a.Death()
	case <-timer.C:
		return nil
	}
}

// memoryRows returns the resident memory of a process, and its parts.
func memoryRows(pid int, mode string, target float64) ([]row, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	mib := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		if len(fields) != 2 || fields[1] != "kB" {
			continue
		}
		size, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			return nil, fmt.Errorf("status of process %d: %s: %w", pid, name, err)
		}
		mib[name] = size / 1024
	}
	for _, name := range []string{"VmRSS", "RssFile", "RssAnon"} {
		if mib[name] == 0 {
			return nil, fmt.Errorf("status of process %d has no %s", pid, name)
		}
	}
	return []row{
		{mode + ": resident memory", mib["VmRSS"], target, "MiB"},
		{mode + ": pages of the program's file in it", mib["RssFile"], 0, "MiB"},
		{mode + ": all other pages in it", mib["RssAnon"], 0, "MiB"},
	}, nil
}
