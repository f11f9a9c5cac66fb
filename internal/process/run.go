package process

import (
	"context"
	"time"
)

// readinessPeriod is how often gRPC health and the claim to terms follow the checks.
const readinessPeriod = 250 * time.Millisecond

// Run serves until ctx ends or a part of the process fails, then stops in order and closes everything. It returns that
// failure, or nil when the end was asked for. It may be called once.
func (p *Process) Run(ctx context.Context) error {
	defer p.close()
	p.logger.Info("starting", "version", p.member.Version, "grpc", p.member.GRPCAddress, "admin", p.member.AdminAddress)

	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	admin := newStage("admin server", p.logger, fail)
	work := newStage("service", p.logger, fail)
	serve := newStage("gRPC server", p.logger, fail)

	admin.start(func(ctx context.Context) error { return p.admin.Serve(ctx, p.adminAt) })
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

// followChecks keeps grpc.health.v1 in step with /readyz, and the candidate with what this replica could do.
func (p *Process) followChecks(ctx context.Context) error {
	ticker := time.NewTicker(readinessPeriod)
	defer ticker.Stop()
	for {
		p.rpc.SetServing(len(p.ready.Failed()) == 0)
		p.candidate.SetUnready(p.unable())
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
