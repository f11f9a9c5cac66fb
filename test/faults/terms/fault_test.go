package terms

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/test/faults/terms/internal/history"
	"github.com/trivet-dev/trivet/test/faults/terms/internal/schedule"
)

// strike lets all faults happen, each at its time, and returns when the last is over.
func (s *scene) strike(faults []schedule.Fault) error {
	began := time.Now()
	results := make([]error, len(faults))
	var striking sync.WaitGroup
	for i, f := range faults {
		striking.Go(func() {
			pause(context.Background(), f.At-time.Since(began))
			if err := s.inject(f); err != nil {
				results[i] = fmt.Errorf("%v: %w", f, err)
			}
		})
	}
	striking.Wait()
	return errors.Join(results...)
}

// inject does one fault and undoes it after its time.
func (s *scene) inject(f schedule.Fault) error {
	s.mu.Lock()
	p := s.places[f.Replica]
	id, process, from := p.settings.ID, p.process, clock()
	s.mu.Unlock()
	kind := history.Other
	switch f.Kind {
	case schedule.Outage, schedule.OutageLong:
		return s.outage(f.Lasts)
	case schedule.Kill:
		process.kill()
		s.struck(kind, id, from)
		return s.occupy(f.Replica)
	case schedule.Freeze, schedule.FreezeLong:
		if err := process.signal(syscall.SIGSTOP); err != nil {
			return err
		}
		pause(context.Background(), f.Lasts)
		if err := process.signal(syscall.SIGCONT); err != nil {
			return err
		}
	case schedule.Deaf, schedule.DeafLong:
		p.relay.fromEtcd.hold(f.Lasts)
	case schedule.Mute, schedule.MuteLong:
		p.relay.toEtcd.hold(f.Lasts)
	case schedule.Revoke:
		if err := s.revoke(id); err != nil {
			return err
		}
		kind = history.Revocation
	case schedule.Compact:
		if err := s.compact(p, f.Lasts); err != nil {
			return err
		}
	default:
		return errors.New("no such fault")
	}
	s.struck(kind, id, from)
	return nil
}

// hold keeps the gate shut for a while.
func (g *gate) hold(d time.Duration) {
	g.set(false)
	pause(context.Background(), d)
	g.set(true)
}

func (s *scene) outage(lasts time.Duration) error {
	s.onEtcd.Lock()
	defer s.onEtcd.Unlock()
	from := clock()
	s.etcd[0].kill()
	pause(context.Background(), lasts)
	if err := s.etcd[0].start(); err != nil {
		return err
	}
	err := s.etcd[0].ready(context.Background())
	s.struck(history.Outage, "", from)
	return err
}

// revoke takes the lease of a replica away. One that has none just then has lost it to an earlier fault.
func (s *scene) revoke(id string) error {
	s.onEtcd.Lock()
	defer s.onEtcd.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	answer, err := s.client.Get(ctx, memberKey(id))
	if err != nil {
		return err
	}
	for _, entry := range answer.Kvs {
		if _, err := s.client.Revoke(ctx, clientv3.LeaseID(entry.Lease)); err != nil {
			return err
		}
	}
	return nil
}

// compact drops etcd's history up to now while a replica is cut off, so that its watch finds the place gone where it was.
func (s *scene) compact(p *place, lasts time.Duration) error {
	s.onEtcd.Lock()
	defer s.onEtcd.Unlock()
	p.relay.sever(true)
	defer p.relay.sever(false)
	revision, err := s.noise()
	if err != nil {
		return err
	}
	err = s.eventually(requestTimeout, func() error {
		if s.witness.seen() < revision {
			return errors.New("the witness does not follow")
		}
		return nil
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	if _, err := s.client.Compact(ctx, revision); err != nil {
		return err
	}
	pause(ctx, lasts)
	return nil
}
