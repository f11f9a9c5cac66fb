package agent_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// releases are the holders that a server has released. answer is the result of each call.
type releases struct {
	mu     sync.Mutex // guards names
	names  []string
	answer func(ctx context.Context) error
}

func (r *releases) release(ctx context.Context, request *leasev1.ReleaseLeaseRequest) (*leasev1.ReleaseLeaseResponse, error) {
	r.mu.Lock()
	r.names = append(r.names, request.Holder.Name)
	r.mu.Unlock()
	if r.answer != nil {
		if err := r.answer(ctx); err != nil {
			return nil, err
		}
	}
	return &leasev1.ReleaseLeaseResponse{}, nil
}

func (r *releases) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := r.names
	r.names = nil
	slices.Sort(names)
	return names
}

// The holders register at the frozen replica, whose shards have moved to another one meanwhile.
func TestRelease_FollowsTheLeaderAndIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		frozen, moved, leader := serve(t), serve(t), serve(t)
		servers := network{"frozen": frozen, "moved": moved, "leader": leader}
		a, err := agent.New(agent.Config{
			Targets: []string{"frozen", "moved"}, Dial: servers.dial, Holders: nodes(3), ReleaseOnStop: true, ReleaseTimeout: 8 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		run := func() (took time.Duration) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- a.Run(ctx) }()
			advance(interval)
			begin := time.Now()
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			return time.Since(begin)
		}
		frozen.released.answer = func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		moved.released.answer = func(context.Context) error { return rpcerror.NotLeader("leasesvc", "leader") }
		if took := run(); took < 2*time.Second || took > 4*time.Second {
			t.Errorf("the release took %v, want the timeout of one call and a pause", took)
		}
		expect(t, "released at the leader", []string{"n0", "n1", "n2"}, leader.released.take())

		a, err = agent.New(agent.Config{
			Targets: []string{"frozen"}, Dial: servers.dial, Holders: nodes(1), ReleaseOnStop: true, ReleaseTimeout: 8 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		if took := run(); took > 9*time.Second {
			t.Errorf("a release that no server answers took %v, want 8 s", took)
		}
	})
}
