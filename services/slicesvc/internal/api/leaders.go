package api

import (
	"context"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/internal/term"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// leaderPeriod is how often Run checks whether shards have other leaders.
const leaderPeriod = time.Second

// leaders is which replica leads each shard, at one moment.
type leaders struct {
	replicaID string
	// count is the number of shards of the service. shards are all of them, or a part.
	count  int
	shards []term.ShardStatus
}

func (s *Server) leadersNow() leaders {
	shards := s.cfg.Leadership.Status().Shards
	return leaders{replicaID: s.cfg.ReplicaID, count: len(shards), shards: shards}
}

// of returns the part of the leaders that concerns a Service.
func (l leaders) of(service slicecontroller.Key) leaders {
	number := shard.Of(service.Namespace, service.Name, l.count)
	return leaders{replicaID: l.replicaID, count: l.count, shards: l.shards[number : number+1]}
}

// owner returns the replica that is responsible for a Service.
func (l leaders) owner(service slicecontroller.Key) *metav1.Owner {
	status := l.of(service).shards[0]
	number := int32(status.Shard)
	owner := &metav1.Owner{ReplicaId: status.ReplicaID, Shard: &number}
	if status.Here {
		owner.ReplicaId, owner.Epoch = l.replicaID, status.Epoch
	}
	return owner
}

// source returns the Source of an answer about the shards, of which this replica knows everything
// if it leads them. It must be made before the answer, so that it never claims too much.
func (s *Server) source(of leaders) *metav1.Source {
	var led []int
	var epoch int64
	for _, status := range of.shards {
		if status.Here {
			led, epoch = append(led, status.Shard), max(epoch, status.Epoch)
		}
	}
	var caches []answer.Cache
	for _, cache := range s.cfg.Caches() {
		caches = append(caches, cache.Cache)
	}
	return answer.Replica{Service: serviceName, ID: s.cfg.ReplicaID}.Source(epoch, led, caches...)
}

// leaderLog is which replica leads each shard, as far as the change log has it.
type leaderLog struct {
	mu      sync.Mutex // guards all below
	logged  leaders
	changed chan struct{} // closed and replaced when logged changes
}

func newLeaderLog() leaderLog { return leaderLog{changed: make(chan struct{})} }

// current returns the logged leaders, and a channel that is closed when there are other ones. The
// change log has the changes of their Services already.
func (l *leaderLog) current() (leaders, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.logged, l.changed
}

func (l *leaderLog) set(logged leaders) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.logged = logged
	close(l.changed)
	l.changed = make(chan struct{})
}

// Run records in the change log which replica leads each shard, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	ticker := time.NewTicker(leaderPeriod)
	defer ticker.Stop()
	for {
		s.logLeaders()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// logLeaders records a change of the Services of each shard with another leader.
func (s *Server) logLeaders() {
	before, _ := s.leaders.current()
	now := s.leadersNow()
	changed := false
	for i, status := range now.shards {
		if i < len(before.shards) && sameLeader(before.shards[i], status) {
			continue
		}
		changed = true
		s.cfg.Controller.RecordShardChange(status.Shard)
	}
	if changed {
		s.leaders.set(now)
	}
}

func sameLeader(a, b term.ShardStatus) bool {
	return a.Here == b.Here && a.ReplicaID == b.ReplicaID && a.Epoch == b.Epoch
}
