package main

import (
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const streamMethod = leasev1.HeartbeatService_StreamHeartbeats_FullMethodName

func TestSender_BeatsAtTheEcho(t *testing.T) {
	connection := testkit.Serve(t, func(r grpc.ServiceRegistrar) { leasev1.RegisterHeartbeatServiceServer(r, echo{}) }, streamMethod)
	from := &sender{class: "node", holders: 1}
	beat, err := from.open(t.Context(), connection, "n")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := beat(); err != nil {
			t.Error(err)
		}
	}
	if n := from.anew.Load(); n != 0 {
		t.Errorf("%d streams were opened anew", n)
	}
}

// leaving is a server that ends its first stream at the first heartbeat, as a replica without its
// shards does, or that permanently rejects the second message of every stream.
type leaving struct {
	leasev1.UnimplementedHeartbeatServiceServer
	streams atomic.Int64
	reject  codes.Code
}

func (l *leaving) StreamHeartbeats(wire grpc.BidiStreamingServer[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]) error {
	first := l.streams.Add(1) == 1
	for {
		request, err := wire.Recv()
		if err != nil {
			return nil
		}
		answer := &leasev1.StreamHeartbeatsResponse{Sequence: request.Sequence}
		for range request.Registrations {
			answer.RegistrationResults = append(answer.RegistrationResults, &leasev1.RegistrationResult{Handle: 1, Result: &leasev1.RegistrationResult_Grant{Grant: &leasev1.Grant{}}})
		}
		if len(request.Registrations) == 0 && first {
			return status.Error(l.reject, "no more")
		}
		if err := wire.Send(answer); err != nil {
			return err
		}
	}
}

func TestSender_OpensAStreamAnewThatTheReplicaLeft(t *testing.T) {
	for code, want := range map[codes.Code]int64{codes.Unavailable: 1, codes.ResourceExhausted: 0} {
		server := &leaving{reject: code}
		connection := testkit.Serve(t, func(r grpc.ServiceRegistrar) { leasev1.RegisterHeartbeatServiceServer(r, server) }, streamMethod)
		from := &sender{class: "node", holders: 1}
		beat, err := from.open(t.Context(), connection, "n")
		if err != nil {
			t.Fatal(err)
		}
		if err := beat(); (err == nil) != (want == 1) {
			t.Errorf("%v: error %v", code, err)
		}
		if n := from.anew.Load(); n != want {
			t.Errorf("%v: %d streams were opened anew, want %d", code, n, want)
		}
	}
}
