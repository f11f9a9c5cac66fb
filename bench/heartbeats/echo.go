package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcserver"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// echoVariable holds an address. It makes this binary serve the bare echo there.
const echoVariable = "TRIVET_BENCH_ECHO"

// echo is the minimal gRPC server for heartbeats: it receives the same messages as leasesvc, sends
// answers of the same size, and stores nothing. Its transport has the options of leasesvc's. It has
// no interceptors.
type echo struct {
	leasev1.UnimplementedHeartbeatServiceServer
}

func startEcho(b *bench) (process *childprocess.Child, address string, err error) {
	if address, err = devcluster.FreeAddress(); err != nil {
		return nil, "", err
	}
	process, err = childprocess.Start(childprocess.Config{Env: []string{echoVariable + "=" + address}, Log: filepath.Join(b.logDir, b.part+"-echo.log")})
	return process, address, err
}

// echoAsChild serves until it is killed. It returns the exit code.
func echoAsChild(address string) int {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cfg := rpcserver.DefaultConfig(address)
	cfg.MaxConnectionAge, cfg.MaxConcurrentStreams = 0, maxStreams
	server := grpc.NewServer(rpcserver.TransportOptions(cfg)...)
	leasev1.RegisterHeartbeatServiceServer(server, echo{})
	fmt.Fprintln(os.Stderr, server.Serve(listener))
	return 1
}

// StreamHeartbeats registers one holder and then answers every message with a grant like
// leasesvc's.
func (echo) StreamHeartbeats(wire grpc.BidiStreamingServer[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]) error {
	grant := &leasev1.Grant{Epoch: 12_345, NextInterval: durationpb.New(995 * time.Millisecond), Ttl: durationpb.New(40 * time.Second)}
	var request leasev1.StreamHeartbeatsRequest
	for {
		if err := wire.RecvMsg(&request); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		response := &leasev1.StreamHeartbeatsResponse{Sequence: request.Sequence}
		if len(request.Registrations) > 0 {
			response.RegistrationResults = []*leasev1.RegistrationResult{{Handle: 1, Result: &leasev1.RegistrationResult_Grant{Grant: grant}}}
		} else {
			response.Grant = grant
		}
		if err := wire.Send(response); err != nil {
			return err
		}
	}
}
