package rpcserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
)

// cutTimeout is how long handlers get to notice that their calls were cut. One that has not by then ignores its context.
const cutTimeout = time.Second

// Serve answers calls that arrive at l until ctx ends, then stops as the package documentation says and returns nil. It
// blocks, closes l, and returns after its goroutines have, except for handlers that go on although their call was cut: those
// are an error. Other errors: rules that do not compile, a name in Deps.Unvalidated that is no method, serving in the
// clear beyond loopback, a broken listener, and a second Serve.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if err := s.prepare(l.Addr()); err != nil {
		return errors.Join(err, l.Close())
	}
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(l) }()
	select {
	case err := <-served:
		return errors.Join(broken(l, err), s.drain())
	case <-ctx.Done():
		err := s.drain()
		return errors.Join(broken(l, <-served), err)
	}
}

// broken explains why gRPC no longer accepts connections; nil after a stop. A stop that overtakes the start makes gRPC
// complain that it was stopped, which is what happened.
func broken(l net.Listener, err error) error {
	if err == nil || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return fmt.Errorf("serve gRPC on %s: %w", l.Addr(), err)
}

func (s *Server) prepare(address net.Addr) error {
	if s.served.Swap(true) {
		return fmt.Errorf("serve gRPC on %s: this server has served before; make a new one", address)
	}
	if err := s.checkExposure(address); err != nil {
		return err
	}
	return s.rules.compile(s.services)
}

// drain returns when no call is left, or an error when some would not go.
func (s *Server) drain() error {
	// From here on SetServing has no effect, so nobody can call a stopping server serving.
	s.health.Shutdown()
	s.stop()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.grpc.GracefulStop()
	}()
	if closedWithin(drained, s.cfg.DrainTimeout) {
		return nil
	}
	s.logger.Warn("calls did not finish in time and are cut", "drain_timeout", s.cfg.DrainTimeout)
	s.grpc.Stop()
	if closedWithin(drained, cutTimeout) {
		return nil
	}
	return fmt.Errorf("stop gRPC: handlers still run %v after their calls were cut; they ignore their context", cutTimeout)
}

func closedWithin(done <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
