package terms

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/test/faults/terms/internal/history"
	"github.com/trivet-dev/trivet/test/faults/terms/internal/schedule"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// injectAll injects each fault at its time and returns after the end of the last one.
func (fx *fixture) injectAll(faults []schedule.Fault) error {
	began := time.Now()
	results := make([]error, len(faults))
	var injecting sync.WaitGroup
	for i, f := range faults {
		injecting.Go(func() {
			testkit.Pause(context.Background(), f.Start-time.Since(began))
			if err := fx.inject(f); err != nil {
				results[i] = fmt.Errorf("%v: %w", f, err)
			}
		})
	}
	injecting.Wait()
	return errors.Join(results...)
}

// inject injects one fault and reverts it after its duration.
func (fx *fixture) inject(f schedule.Fault) error {
	fx.mu.Lock()
	s := fx.slots[f.Replica]
	id, process, from := s.settings.ID, s.process, clock()
	fx.mu.Unlock()
	kind := history.Other
	switch f.Kind {
	case schedule.Outage, schedule.OutageLong:
		return fx.outage(f.Duration)
	case schedule.Kill:
		process.Kill()
		fx.recordFault(kind, id, from)
		return fx.startReplica(f.Replica)
	case schedule.Freeze, schedule.FreezeLong:
		if err := process.Freeze(); err != nil {
			return err
		}
		testkit.Pause(context.Background(), f.Duration)
		if err := process.Thaw(); err != nil {
			return err
		}
	case schedule.BlockReceive, schedule.BlockReceiveLong:
		hold(s.relay.BlockFromTarget, f.Duration)
	case schedule.BlockSend, schedule.BlockSendLong:
		hold(s.relay.BlockToTarget, f.Duration)
	case schedule.Revoke:
		if err := fx.revoke(id); err != nil {
			return err
		}
		kind = history.Revocation
	case schedule.Compact:
		if err := fx.compact(s, f.Duration); err != nil {
			return err
		}
	default:
		return errors.New("unknown kind of fault")
	}
	fx.recordFault(kind, id, from)
	return nil
}

// hold blocks a direction of a relay for a duration.
func hold(block func(bool), d time.Duration) {
	block(true)
	testkit.Pause(context.Background(), d)
	block(false)
}

func (fx *fixture) outage(duration time.Duration) error {
	fx.etcdFaults.Lock()
	defer fx.etcdFaults.Unlock()
	from := clock()
	fx.etcd.KillEtcdMember(0)
	testkit.Pause(context.Background(), duration)
	err := fx.etcd.StartEtcd()
	fx.recordFault(history.Outage, "", from)
	return err
}

// revoke revokes the lease of a replica. It does nothing if an earlier fault has cost the replica
// its lease.
func (fx *fixture) revoke(id string) error {
	fx.etcdFaults.Lock()
	defer fx.etcdFaults.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	answer, err := fx.client.Get(ctx, memberKey(id))
	if err != nil {
		return err
	}
	for _, entry := range answer.Kvs {
		if _, err := fx.client.Revoke(ctx, clientv3.LeaseID(entry.Lease)); err != nil {
			return err
		}
	}
	return nil
}

// compact compacts etcd's history while a replica is disconnected, so that its watch cannot resume.
func (fx *fixture) compact(s *slot, duration time.Duration) error {
	fx.etcdFaults.Lock()
	defer fx.etcdFaults.Unlock()
	s.relay.Disconnect(true)
	defer s.relay.Disconnect(false)
	revision, err := fx.writeMarker()
	if err != nil {
		return err
	}
	err = fx.eventually(requestTimeout, func() error {
		if fx.recorder.lastRevision() < revision {
			return errors.New("the recorder is not current")
		}
		return nil
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	if _, err := fx.client.Compact(ctx, revision); err != nil {
		return err
	}
	testkit.Pause(ctx, duration)
	return nil
}
