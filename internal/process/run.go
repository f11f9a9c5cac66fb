package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// readinessPeriod is how often gRPC health and the candidate follow the checks.
const readinessPeriod = 250 * time.Millisecond

// Run serves until ctx ends or a part of the process fails, then stops all parts in order. It
// returns that failure, or nil if ctx ended. Call it once.
func (p *Process) Run(ctx context.Context) error {
	defer p.close()
	p.logger.Info("starting", "version", p.member.Version, "grpc", p.member.GRPCAddress, "admin", p.member.AdminAddress)

	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	admin := newStage("admin server", p.logger, fail)
	work := newStage("service", p.logger, fail)
	serve := newStage("gRPC server", p.logger, fail)

	admin.start(func(ctx context.Context) error { return p.admin.Serve(ctx, p.adminAt) })
	if p.access.audit != nil { // ends last, so that it has the records of calls that end
		admin.start(p.access.audit.Run)
	}
	admin.start(p.tracing.Run) // ends after the service, so that it has the last spans
	p.startWork(work)
	serve.start(func(ctx context.Context) error { return p.rpc.Serve(ctx, p.rpcAt) })
	serve.start(p.followChecks)

	<-ctx.Done()
	p.logger.Info("stopping", "cause", context.Cause(ctx))
	serve.stop()
	work.stop()
	admin.stop()
	p.logger.Info("stopped")
	return failureOf(context.Cause(ctx))
}

func (p *Process) startWork(work *stage) {
	if p.probe != nil {
		work.start(p.probe.Run)
	}
	if p.program.shards() == 0 {
		work.start(func(ctx context.Context) error { return p.candidate.Run(ctx, nil) })
	}
	work.start(p.service.Run)
}

// followChecks copies the result of the checks to grpc.health.v1 and to the candidate.
func (p *Process) followChecks(ctx context.Context) error {
	ticker := time.NewTicker(readinessPeriod)
	defer ticker.Stop()
	for {
		p.rpc.SetServing(len(p.ready.Failed()) == 0)
		p.candidate.SetUnready(p.notReadyForTerms())
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// stage is a group of tasks that stop together. Its context has no parent: only stop ends it, in
// the order of Run.
type stage struct {
	name   string
	logger *slog.Logger
	fail   context.CancelCauseFunc // reports a task that ended before stop
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

func newStage(name string, logger *slog.Logger, fail context.CancelCauseFunc) *stage {
	ctx, cancel := context.WithCancel(context.Background())
	return &stage{name: name, logger: logger, fail: fail, ctx: ctx, cancel: cancel}
}

func (s *stage) start(task func(context.Context) error) {
	s.tasks.Go(func() {
		err := task(s.ctx)
		switch {
		case s.ctx.Err() == nil:
			s.fail(&failure{stage: s.name, err: err})
		case err != nil && !errors.Is(err, context.Canceled):
			s.logger.Warn("stopped with an error", "part", s.name, "error", err)
		}
	})
}

// stop cancels the tasks and waits for them.
func (s *stage) stop() {
	s.cancel()
	s.tasks.Wait()
}

// failure is the end of a task before its stage was stopped.
type failure struct {
	stage string
	err   error // nil if the task returned nil
}

func (f *failure) Error() string {
	if f.err == nil {
		return f.stage + ": ended before it was stopped"
	}
	return fmt.Sprintf("%s: %v", f.stage, f.err)
}

func (f *failure) Unwrap() error { return f.err }

// failureOf returns cause if it is a failure, and nil for an orderly end.
func failureOf(cause error) error {
	var f *failure
	if errors.As(cause, &f) {
		return f
	}
	return nil
}
