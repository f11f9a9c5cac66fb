package bootstrapsvc

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
)

// regainAfter is how long a kube-apiserver must have been ready before leadership that was conceded for its sake is wanted back
// from others that are doing well. Otherwise one that comes and goes would take the term along each time.
const regainAfter = 30 * time.Second

// giveWay concedes leadership while the kube-apiserver beside this replica, through which a leader writes, is not ready and
// another one is: otherwise nobody would take it out of the endpoints before the replica is found to be failing. While it is not
// known how the others are, everything stays as it is.
func (s *sidecar) giveWay(ctx context.Context, state *beat) error {
	verdict := state.verdict
	if verdict.Ready && (!state.conceded || verdict.Succeeded.Sub(state.readySince) >= regainAfter) {
		s.setConceded(state, nil)
		return nil
	}
	entries, err := s.keys.Read(ctx)
	if err != nil {
		return err
	}
	var reason error
	if slices.ContainsFunc(entries, s.isReadyElsewhere) {
		reason = fmt.Errorf("the kube-apiserver beside this replica is not ready, or not for long, and others are: %s", verdict.Last.Detail)
	}
	s.setConceded(state, reason)
	return nil
}

// isReadyElsewhere tells whether an entry is that of a ready server whose sidecar lives, beside another replica.
func (s *sidecar) isReadyElsewhere(entry apiserverscontroller.Entry) bool {
	return entry.Ready && entry.Leased && entry.ReplicaID != s.replica
}

func (s *sidecar) setConceded(state *beat, reason error) {
	switch {
	case reason != nil && !state.conceded:
		s.logger.Warn("conceding leadership", "reason", reason)
	case reason == nil && state.conceded:
		s.logger.Info("not conceding leadership any more", "ready", state.verdict.Ready)
	}
	state.conceded = reason != nil
	s.concede(reason)
}
