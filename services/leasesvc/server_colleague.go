package leasesvc

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/peers"
)

// colleague is another replica, to which beats are handed on.
type colleague struct {
	connection *grpc.ClientConn
	replica    string // this one's id
}

// Deliver implements peers.Link.
func (c *colleague) Deliver(ctx context.Context, beats []peers.Delivery) (refused int, err error) {
	request := &leasev1.HeartbeatRequest{ForwardedBy: c.replica, Beats: make([]*leasev1.HeartbeatRequest_Beat, 0, len(beats))}
	for _, beat := range beats {
		request.Beats = append(request.Beats, &leasev1.HeartbeatRequest_Beat{
			Holder:   &leasev1.Holder{Class: beat.Class, Name: beat.Name, BootId: beat.Boot},
			Sequence: beat.Sequence, Age: duration(beat.Age),
		})
	}
	response, err := leasev1.NewLeaseServiceClient(c.connection).Heartbeat(ctx, request)
	if err != nil {
		return 0, err
	}
	if len(response.Results) != len(beats) {
		return 0, fmt.Errorf("%d results for %d beats", len(response.Results), len(beats))
	}
	for _, result := range response.Results {
		if result.GetGrant() == nil {
			refused++
		}
	}
	return refused, nil
}

// Close implements peers.Link.
func (c *colleague) Close() error { return c.connection.Close() }
