package robustness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
	"github.com/trivet-dev/trivet/test/robustness/internal/schedule"
)

// restartPause is the time until a killed process is replaced.
const restartPause = 2 * time.Second

// inject injects the faults of a step at their times, and returns after the end of the last one.
func (w *world) inject(number int, step schedule.Step) error {
	began := time.Now()
	w.present.Store(&step)
	results := make([]error, len(step))
	var injecting sync.WaitGroup
	for i, f := range step {
		injecting.Go(func() {
			testkit.Pause(context.Background(), f.Start-time.Since(began))
			targets := []*slot{w.leader(f.Service)}
			if f.Kind == schedule.CallsCutInTurn {
				targets = w.replicasOf(f.Service)
				f.Duration /= time.Duration(len(targets))
			}
			for _, target := range targets {
				if err := w.injectInto(target, number, f); err != nil {
					results[i] = fmt.Errorf("%v: %w", f, err)
				}
			}
		})
	}
	injecting.Wait()
	return errors.Join(results...)
}

// injectInto injects one fault and records its window.
func (w *world) injectInto(target *slot, number int, f schedule.Fault) error {
	entry := schedule.EntryOf(f.Kind)
	window := history.Window{Fault: string(f.Kind), Step: number, Service: f.Service, From: w.now()}
	if entry.Unreached {
		window.Unreached = target.Name + "#"
	}
	err := w.injectOne(target, f)
	if window.To = window.From; f.Duration > 0 {
		window.To = w.now()
	}
	entry.Judge(&window)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.record.Windows = append(w.record.Windows, window)
	return err
}

// injectOne injects one fault and reverts it after its duration. A fault of one replica is in the
// target; that is nil for a fault that concerns all services.
func (w *world) injectOne(target *slot, f schedule.Fault) error {
	if inject := programInjections()[f.Kind]; inject != nil {
		return inject(w, target, f)
	}
	switch f.Kind {
	case schedule.Kill:
		w.down(target, 0)
		target.Kill()
		testkit.Pause(context.Background(), restartPause)
		return target.Start()
	case schedule.Freeze:
		if err := target.signal((*childprocess.Child).Freeze); err != nil {
			return err
		}
		w.down(target, f.Duration)
		testkit.Pause(context.Background(), f.Duration)
		return target.signal((*childprocess.Child).Thaw)
	case schedule.Revoke:
		return w.revoke(target)
	case schedule.CutBoth:
		hold(f.Duration, target.ToEtcd.BlockToTarget, target.ToEtcd.BlockFromTarget)
	case schedule.CutTwice:
		hold(f.Duration/3, target.ToEtcd.BlockToTarget, target.ToEtcd.BlockFromTarget)
		testkit.Pause(context.Background(), f.Duration/3)
		hold(f.Duration/3, target.ToEtcd.BlockToTarget, target.ToEtcd.BlockFromTarget)
	case schedule.CutToEtcd:
		hold(f.Duration, target.ToEtcd.BlockToTarget)
	case schedule.CutFromEtcd:
		hold(f.Duration, target.ToEtcd.BlockFromTarget)
	case schedule.EtcdFrozen:
		var blocks []func(bool)
		for _, s := range w.slots {
			blocks = append(blocks, s.ToEtcd.BlockToTarget, s.ToEtcd.BlockFromTarget)
		}
		hold(f.Duration, blocks...)
	case schedule.Compact:
		return w.compact(target, f.Duration)
	case schedule.CallsCut, schedule.CallsCutLong, schedule.CallsCutInTurn:
		hold(f.Duration, target.Calls.BlockToTarget)
	case schedule.HalfOfCallsCut:
		hold(f.Duration, target.Calls.BlockHalfToTarget)
	case schedule.CallsSlow:
		target.Calls.SetDelay(200 * time.Millisecond)
		testkit.Pause(context.Background(), f.Duration)
		target.Calls.SetDelay(0)
	case schedule.EtcdStopped:
		return w.stopEtcd(f.Duration)
	case schedule.Herd:
		for _, s := range w.slots {
			s.Calls.Disconnect(true)
			s.Calls.Disconnect(false)
		}
	case schedule.Starved:
		return starve(target, f.Duration)
	case schedule.AddressFreed:
		return w.freeAddressInUse()
	case schedule.APIServerKilled:
		return w.killAPIServer(f.Duration)
	default:
		if inject := etcdInjections()[f.Kind]; inject != nil {
			return inject(w, f)
		}
		return w.disturbKube(f)
	}
	return nil
}

// down records that the process of a slot does not run for a time from now on, or for ever.
func (w *world) down(target *slot, duration time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := history.Down{Process: target.ProcessName(), From: w.now()}
	if duration > 0 {
		d.To = d.From + duration
	}
	w.record.Downs = append(w.record.Downs, d)
}

// disturbKube disturbs the requests of all replicas of a service to kube-apiserver.
func (w *world) disturbKube(f schedule.Fault) error {
	for _, s := range w.replicasOf(f.Service) {
		var stop func()
		switch f.Kind {
		case schedule.SlowAPIServer:
			stop = s.ToKube.Delay(everything, time.Second)
		case schedule.Throttled:
			stop = s.ToKube.Refuse(func(r faultproxy.Request) bool { return r.Resource != "" && r.Verb != "watch" }, 429, metav1.StatusReasonTooManyRequests)
		case schedule.Conflicts:
			stop = s.ToKube.Refuse(func(r faultproxy.Request) bool { return r.Verb == "update" || r.Verb == "patch" }, 409, metav1.StatusReasonConflict)
		case schedule.StalledWatches:
			stop = s.ToKube.HoldOpenWatches(everything)
		case schedule.LateWatches:
			stop = s.ToKube.DelayEvents(everything, 2*time.Second)
		default:
			return fmt.Errorf("fault %q has no injection", f.Kind)
		}
		defer stop()
	}
	testkit.Pause(context.Background(), f.Duration)
	return nil
}

func everything(faultproxy.Request) bool { return true }

// hold blocks directions of relays for a duration.
func hold(duration time.Duration, blocks ...func(bool)) {
	for _, block := range blocks {
		block(true)
	}
	testkit.Pause(context.Background(), duration)
	for _, block := range blocks {
		block(false)
	}
}

// leader returns the slot whose process holds the most shards of a service.
func (w *world) leader(service string) *slot {
	held := w.recorder.holders(service)
	var best *slot
	for _, s := range w.replicasOf(service) {
		if best == nil || held[s.ProcessName()] > held[best.ProcessName()] {
			best = s
		}
	}
	return best
}

// replicaID returns the id of the present process of a slot.
func (w *world) replicaID(s *slot) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(w.recorder.processes)) {
		if w.recorder.processes[id] == s.ProcessName() {
			return id, nil
		}
	}
	return "", fmt.Errorf("%s has not registered", s.ProcessName())
}

// revoke revokes the etcd lease of a replica.
func (w *world) revoke(target *slot) error {
	id, err := w.replicaID(target)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	answer, err := w.etcd.Get(ctx, etcdconn.KeyPrefix(clusterName)+"members/"+target.Service+"/"+id)
	if err != nil {
		return err
	}
	for _, entry := range answer.Kvs {
		if _, err := w.etcd.Revoke(ctx, clientv3.LeaseID(entry.Lease)); err != nil {
			return err
		}
	}
	return nil
}

// compact compacts etcd's history while a replica is disconnected.
func (w *world) compact(target *slot, duration time.Duration) error {
	target.ToEtcd.Disconnect(true)
	defer target.ToEtcd.Disconnect(false)
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout+duration)
	defer cancel()
	marker, err := w.etcd.Put(ctx, markerKey, "")
	if err != nil {
		return err
	}
	for w.recorder.lastRevision() < marker.Header.Revision && ctx.Err() == nil {
		testkit.Pause(ctx, 20*time.Millisecond)
	}
	if _, err := w.etcd.Compact(ctx, marker.Header.Revision); err != nil {
		return err
	}
	testkit.Pause(ctx, duration)
	return nil
}

// markerKey has no meaning but its revision.
const markerKey = "/robustness/marker"

// killAPIServer kills the second kube-apiserver and restarts it.
func (w *world) killAPIServer(duration time.Duration) error {
	w.server(false)
	w.peer.Kill()
	testkit.Pause(context.Background(), duration)
	if err := w.peer.Start(); err != nil {
		return err
	}
	w.server(true)
	return nil
}

// stopEtcd stops etcd for a duration, and returns when both kube-apiservers answer again.
func (w *world) stopEtcd(duration time.Duration) error {
	if err := w.cluster.StopEtcd(); err != nil {
		return err
	}
	testkit.Pause(context.Background(), duration)
	if err := w.cluster.StartEtcd(); err != nil {
		return err
	}
	return w.awaitAPIServers()
}

// starve lets a process run a tenth of the time.
func starve(target *slot, duration time.Duration) error {
	const turn = 100 * time.Millisecond
	for end := time.Now().Add(duration); time.Now().Before(end); {
		if err := target.signal((*childprocess.Child).Freeze); err != nil {
			return err
		}
		testkit.Pause(context.Background(), turn*9/10)
		if err := target.signal((*childprocess.Child).Thaw); err != nil {
			return err
		}
		testkit.Pause(context.Background(), turn/10)
	}
	return nil
}

// server records that the second kube-apiserver runs or does not run from now on.
func (w *world) server(running bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	address := advertised()[1]
	for i := range w.record.Servers {
		if s := &w.record.Servers[i]; s.Address == address && s.To == 0 {
			s.To = w.now()
		}
	}
	w.record.Servers = append(w.record.Servers, history.Server{Address: address, Running: running, From: w.now()})
}
