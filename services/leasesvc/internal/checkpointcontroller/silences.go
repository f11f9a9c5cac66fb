package checkpointcontroller

import (
	"context"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// maxSilencesAge is how long a result is shared. The shards of a replica tick at the same time, so
// nearly all share one.
const maxSilencesAge = period / 4

// sharedSilences asks for the silent holders once for all shards that ask at about the same time.
type sharedSilences struct {
	mu       sync.Mutex // guards the fields below; held during a request, so that concurrent callers share it
	sessions Sessions
	taken    time.Time
	byShard  map[int][]session.Silence
}

// get returns the silent holders of a shard, which the caller must not modify; false if the shard
// is not held.
func (s *sharedSilences) get(ctx context.Context, sessions Sessions, shard int) ([]session.Silence, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions != sessions || time.Since(s.taken) > maxSilencesAge {
		start := time.Now()
		byShard, err := sessions.Silences(ctx)
		if err != nil {
			return nil, false
		}
		s.sessions, s.taken, s.byShard = sessions, start, byShard
	}
	silences, held := s.byShard[shard]
	return silences, held
}
