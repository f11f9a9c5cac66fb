package leasesvc

import (
	"context"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/peers"
)

// newForwarder makes what hands beats on to other replicas. Where there is no way to reach them it is nil, and nothing is
// handed on.
func newForwarder(s *Service, deps Deps) (*peers.Forwarder, error) {
	metrics, err := peers.NewMetrics(deps.Metrics)
	if err != nil || deps.Dial == nil {
		return nil, err
	}
	return peers.New(peers.Config{
		Dial: func(address string) (peers.Link, error) {
			connection, err := deps.Dial(address)
			if err != nil {
				return nil, err
			}
			return &colleague{connection: connection, replica: s.member.ID}, nil
		},
		Metrics: metrics, Logger: deps.Logger,
	}), nil
}

// forward hands beats on to the replica at owner. It never blocks; false says that none was taken.
func (s *Service) forward(owner string, beats []peers.Beat) bool {
	return s.forwarder != nil && s.forwarder.Offer(owner, beats)
}

// forwardBeats runs the forwarder, if there is one.
func (s *Service) forwardBeats(ctx context.Context) error {
	if s.forwarder == nil {
		return nil
	}
	return s.forwarder.Run(ctx)
}
