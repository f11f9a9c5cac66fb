package leasesvc

import (
	"sync/atomic"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// state is what the loops and the RPC handlers share. It is safe for concurrent use.
type state struct {
	catalog    *class.Catalog
	heldShards *sessioncontroller.HeldShards
	// sessions is the session controller; nil while its loop does not run.
	sessions atomic.Pointer[sessioncontroller.Controller]
}

func (s *state) sessionCounts() session.Counts {
	if sessions := s.sessions.Load(); sessions != nil {
		return sessions.Counts()
	}
	return session.Counts{}
}

func (s *state) duplicates() float64 {
	if sessions := s.sessions.Load(); sessions != nil {
		return float64(sessions.Duplicates())
	}
	return 0
}

func (s *state) pausedSeconds() float64 {
	if sessions := s.sessions.Load(); sessions != nil {
		return sessions.PausedTime().Seconds()
	}
	return 0
}
