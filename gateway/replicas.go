package gateway

import (
	"time"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/internal/term"
)

// replicas are those of one service, and how to ask them.
type replicas struct {
	cluster, service string
	directory        Directory
	// pool has connections that do not retry: where NOT_LEADER is an answer, asking again only takes time.
	pool *fanout.Pool
	// timeout is how long one may take to answer.
	timeout time.Duration
}

// members are those that there are.
func (s *replicas) members() []term.Member {
	var own []term.Member
	for _, member := range s.directory.Members() {
		if member.Service == s.service {
			own = append(own, member)
		}
	}
	return own
}

func (s *replicas) following() ([]term.Member, <-chan struct{}) {
	changed := s.directory.Changed() // before Members, or a change between the two would be missed
	return s.members(), changed
}
