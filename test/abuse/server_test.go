package abuse

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"runtime/metrics"
	"runtime/pprof"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/connlimit"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

const serverName = "server"

// serve runs the server until its standard input ends. Its first answer is its address.
func serve() error {
	var files identity.Files
	if err := settings(&files); err != nil {
		return err
	}
	cfg := rpcserver.DefaultConfig("127.0.0.1:0")
	cfg.TLS = files
	quotas, err := quota.New(quota.Methods(), nil)
	if err != nil {
		return err
	}
	connections, err := connlimit.New(cfg.Connections, nil, "grpc")
	if err != nil {
		return err
	}
	server, err := rpcserver.New(cfg, rpcserver.Deps{
		Logger: slog.New(slog.DiscardHandler), Authenticator: authn.New(authn.Config{}), Authorizer: authz.New(nil),
		Quota: quotas, Connections: connections,
		Unvalidated: []string{leasev1.HeartbeatService_StreamHeartbeats_FullMethodName},
	})
	if err != nil {
		return err
	}
	server.Register(func(r grpc.ServiceRegistrar) {
		leasev1.RegisterHeartbeatServiceServer(r, &answering{})
		leasev1.RegisterLeaseServiceServer(r, leasev1.UnimplementedLeaseServiceServer{})
	})
	listener, err := rpcserver.Listen(cfg)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(listener.Addr().String()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		defer cancel() // standard input ends with the test
		answered <- answerQuestions(new(profiles).answer)
	}()
	return errors.Join(server.Serve(ctx, listener), <-answered)
}

// profiles writes a profile of the processor of each row.
type profiles struct{ file *os.File }

// answer answers "heap", and "profile" with the file of the next profile; without a file, profiles
// end.
func (p *profiles) answer(question, argument string) (any, error) {
	if question == "heap" {
		return heap(), nil
	}
	if p.file != nil {
		pprof.StopCPUProfile()
		if err := p.file.Close(); err != nil {
			return nil, err
		}
		p.file = nil
	}
	if argument == "" {
		return true, nil
	}
	var err error
	if p.file, err = os.Create(argument); err != nil {
		return nil, err
	}
	return true, pprof.StartCPUProfile(p.file)
}

// heap returns the bytes of objects and of stacks. It does not stop the process.
func heap() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() + samples[1].Value.Uint64()
}

// answering answers each message of a stream.
type answering struct {
	leasev1.UnimplementedHeartbeatServiceServer
}

func (*answering) StreamHeartbeats(stream grpc.BidiStreamingServer[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&leasev1.StreamHeartbeatsResponse{Sequence: request.GetSequence()}); err != nil {
			return err
		}
	}
}
