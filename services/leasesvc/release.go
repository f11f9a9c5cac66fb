package leasesvc

import (
	"context"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writebackcontroller"
)

// release deletes the object before it forgets the session: a failure in between leaves something to try again with.
func (s *server) release(ctx context.Context, k *sessioncontroller.Controller, holder session.Holder, shard int) error {
	hold, err := k.BeginRelease(ctx, holder, shard)
	if err != nil {
		return err
	}
	if hold == nil {
		return s.releaseUnknown(ctx, k, holder.Key, shard)
	}
	deleted := false
	defer func() {
		if deleted {
			k.CompleteRelease(hold)
		} else {
			k.AbortRelease(hold)
		}
	}()
	err = s.deleteUnder(ctx, hold, shard, func(ctx context.Context) error {
		return s.deleter.Delete(ctx, hold.Namespace, hold.Name)
	})
	deleted = err == nil
	return err
}

// releaseUnknown deletes the object of a holder without a session, which may have been lost with a replica. The object is read
// before it is found that there is no session: should one begin now, it writes the object, and what was read is not deleted.
func (s *server) releaseUnknown(ctx context.Context, k *sessioncontroller.Controller, key session.Key, shard int) error {
	read, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	own, err := s.deleter.Own(read, s.catalog.classes[key.Class].Namespace, key.Name)
	switch {
	case ctx.Err() != nil:
		return endOf(ctx)
	case err != nil:
		return notDeletedError{cause: err}
	}
	held, err := k.CheckAbsent(ctx, key, shard, 0)
	if err != nil || held == nil || own == nil {
		return err
	}
	return s.deleteUnder(ctx, held, shard, func(ctx context.Context) error { return s.deleter.DeleteUnchanged(ctx, own) })
}

// licence is what a delete is made under: a hold or a tenure.
type licence interface {
	BeginWrite() (ctx context.Context, end func(), ok bool)
}

// deleteUnder deletes with the term's context, bounded by the caller's end and by a limit of its own.
func (s *server) deleteUnder(ctx context.Context, l licence, shard int, call func(context.Context) error) error {
	held, end, ok := l.BeginWrite()
	if !ok {
		return sessioncontroller.NotHeldError{Shard: shard}
	}
	defer end()
	write, cancel := context.WithTimeout(held, writeTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	err := call(write)
	s.service.writes.Deleted(writebackcontroller.Released, err)
	switch {
	case err == nil:
		return nil
	case held.Err() != nil:
		return sessioncontroller.NotHeldError{Shard: shard}
	case ctx.Err() != nil:
		return endOf(ctx)
	}
	return notDeletedError{cause: err}
}
