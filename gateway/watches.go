package gateway

import (
	"context"
	"errors"
	"strings"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// within wants what is in a namespace by its resource name, or all.
func within[T merge.Item](parent string) func(T) bool {
	if parent == "" || parent == "namespaces/-" {
		return func(T) bool { return true }
	}
	prefix := parent + "/"
	return func(item T) bool { return strings.HasPrefix(item.GetName(), prefix) }
}

// tell is a step for follow: it waits for what the reader has to tell and hands it on.
func tell[T merge.Item](reader *fanin.Reader[T], event func(merge.Kind, T) error, bookmark func(missing []*gatewayv1.SourceStatus) error) func(context.Context) error {
	return func(ctx context.Context) error {
		taken, err := reader.Next(ctx)
		if err != nil {
			return err
		}
		for _, e := range taken.Events {
			if err := event(e.Kind, e.Item); err != nil {
				return err
			}
		}
		if !taken.Bookmark {
			return nil
		}
		return bookmark(taken.Missing)
	}
}

// follow repeats step until it fails, and says what that means to the caller.
func (s *replicas) follow(ctx context.Context, step func(context.Context) error) error {
	var err error
	for err == nil {
		err = step(ctx)
	}
	var none fanin.NoSourceError
	switch {
	case errors.Is(err, fanin.ErrStopped):
		return rpcerror.ShuttingDown()
	case ctx.Err() != nil:
		return context.Cause(ctx) // SHUTTING_DOWN when the server ends its streams
	case errors.As(err, &none):
		return s.noneTells(none.Failures)
	}
	return err
}
