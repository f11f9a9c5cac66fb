package api

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/peers"
)

// PeerConnection sends forwarded beats to another replica, as a peers.Connection.
type PeerConnection struct {
	connection *grpc.ClientConn
	replica    string // the ID of this replica
}

// NewPeerConnection returns a connection that owns a gRPC connection to the peer. replica is the ID
// of this replica.
func NewPeerConnection(connection *grpc.ClientConn, replica string) *PeerConnection {
	return &PeerConnection{connection: connection, replica: replica}
}

// Send sends at most 1,000 beats and returns how many the peer refused.
func (c *PeerConnection) Send(ctx context.Context, beats []peers.AgedBeat) (refused int, err error) {
	request := &leasev1.HeartbeatRequest{ForwardedBy: c.replica, Beats: make([]*leasev1.HeartbeatRequest_Beat, 0, len(beats))}
	for i := range beats {
		b := &beats[i]
		request.Beats = append(request.Beats, &leasev1.HeartbeatRequest_Beat{
			Holder:   &leasev1.Holder{Class: b.Class, Name: b.Name, BootId: b.Boot},
			Sequence: b.Sequence, Age: duration(b.Age),
		})
	}
	response, err := leasev1.NewLeaseServiceClient(c.connection).Heartbeat(ctx, request)
	if err != nil {
		return 0, err
	}
	if len(response.Results) != len(beats) {
		return 0, fmt.Errorf("peer returned %d results for %d beats", len(response.Results), len(beats))
	}
	for _, result := range response.Results {
		if result.GetGrant() == nil {
			refused++
		}
	}
	return refused, nil
}

// Close closes the gRPC connection.
func (c *PeerConnection) Close() error { return c.connection.Close() }
