package leasesvc_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc"
)

// These benchmarks measure one message and its response over a connection in memory, with the
// client and the production interceptors.
func BenchmarkStream_OneBeat(b *testing.B)  { benchmarkStream(b, 1) }
func BenchmarkStream_256Beats(b *testing.B) { benchmarkStream(b, 256) }

// BenchmarkStream_BareEcho is the share of gRPC: the same bytes with an empty handler.
func BenchmarkStream_BareEcho(b *testing.B) {
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	leasev1.RegisterHeartbeatServiceServer(server, echo{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		if err := <-served; err != nil {
			b.Error(err)
		}
	}()
	connection, err := grpc.NewClient("passthrough:///echo", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		b.Fatal(err)
	}
	defer connection.Close()
	s, err := leasev1.NewHeartbeatServiceClient(connection).StreamHeartbeats(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for sequence := uint64(1); b.Loop(); sequence++ {
		exchange(b, s, beats(sequence, 1))
	}
}

type echo struct {
	leasev1.UnimplementedHeartbeatServiceServer
}

func (echo) StreamHeartbeats(wire grpc.BidiStreamingServer[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]) error {
	grant := &leasev1.Grant{Epoch: 1, NextInterval: durationpb.New(5 * time.Second), Ttl: durationpb.New(20 * time.Second)}
	for {
		request, err := wire.Recv()
		if err != nil {
			return err
		}
		if err := wire.Send(&leasev1.StreamHeartbeatsResponse{Sequence: request.Sequence, Grant: grant}); err != nil {
			return err
		}
	}
}

func benchmarkStream(b *testing.B, holders int) {
	f := newFixture(b, setup{loops: []string{"-" + leasesvc.WritebackLoop}})
	s := f.open()
	var list []*leasev1.Holder
	for i := range holders {
		list = append(list, holder(fmt.Sprintf("node-%d", i), "1"))
	}
	var handles []uint32
	for _, w := range exchange(b, s, register(1, list...)).RegistrationResults {
		handles = append(handles, w.Handle)
	}
	b.ReportAllocs()
	for sequence := uint64(2); b.Loop(); sequence++ {
		exchange(b, s, beats(sequence, handles...))
	}
	b.ReportMetric(float64(b.N)*float64(holders)/b.Elapsed().Seconds(), "beats/s")
}
