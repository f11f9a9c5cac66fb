package robustness

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

// lostTime is how far a restore takes etcd back.
const lostTime = 5 * time.Second

// TestRestore takes etcd back by some seconds, as a restore from a snapshot of all members does,
// and restarts the kube-apiservers. Then all servers of Trivet are restarted, as docs/operations.md
// says. Every rule holds from then on, and each bound counts from then.
func TestRestore(t *testing.T) {
	if *restore == "" {
		t.Skip("-robustness.restore is empty; `make robustness-restore` restores etcd")
	}
	p := plan{seed: *first, calm: calm, profile: mixed, command: fmt.Sprintf("make robustness-restore FIRST=%d", *first)}
	w := newWorld(t, p)
	w.record.Begin = w.now()
	testkit.Pause(t.Context(), w.calm)
	w.awaitTraffic()
	used := newUsage()
	if err := w.restoreEtcd(*restore == "restart"); err != nil {
		t.Fatal(err)
	}
	t.Logf("etcd is restored after %v", w.now().Round(time.Millisecond))
	w.runStep(1, nil)
	cpu := used.cores()
	h := w.finish()
	w.keepRecord(h)
	run := judge(t, p, h, history.Floor{})
	run.World, run.Cores, run.Took = describe(p.profile), cpu, h.End
	if len(w.problems) == 0 && *restore == "restart" {
		ended := endedNow(run)
		save(t, ended)
		publish(t, []savedRun{ended})
	}
}

// restoreEtcd copies the data of etcd, and gives it back to all members after some time.
func (w *world) restoreEtcd(restartServers bool) error {
	copied := filepath.Join(w.dir, "etcd-copy")
	if err := w.cluster.CopyEtcd(copied); err != nil {
		return err
	}
	testkit.Pause(context.Background(), lostTime)
	window := history.Window{Fault: "etcd restored", From: w.now()}
	w.server(false)
	w.peer.Kill()
	if err := errors.Join(w.cluster.StopAPIServer(), w.cluster.RestoreEtcd(copied), w.recorder.restart(), w.cluster.StartAPIServer(), w.peer.Start()); err != nil {
		return err
	}
	w.server(true)
	if err := w.awaitAPIServers(); err != nil {
		return err
	}
	if restartServers {
		for _, s := range w.slots {
			w.down(s, 0)
			s.Kill()
		}
		for _, s := range w.slots {
			if err := s.Start(); err != nil {
				return err
			}
		}
	}
	window.To = w.now()
	window.Excused = window.To
	w.mu.Lock()
	defer w.mu.Unlock()
	w.record.Begin = window.To
	w.record.Windows = append(w.record.Windows, window)
	return nil
}
