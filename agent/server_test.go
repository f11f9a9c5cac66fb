package agent_test

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
)

const interval = 10 * time.Second

// message is what a server got: how many holders were introduced, how many beat, and when since the start of the test.
type message struct {
	At                time.Duration
	Introduced, Beats int
}

// server is a leasesvc that welcomes everybody and does what its test says instead.
type server struct {
	leasev1.UnimplementedLeaseServiceServer
	begin    time.Time
	listener *bufconn.Listener

	mu       sync.Mutex // guards what follows
	streams  int
	open     int // streams that have not ended
	messages []message
	// away says where a holder belongs instead; false when it belongs here. With nil all belong here.
	away func(name string) (moveTo string, away bool)
	// forwards has the server say that it hands on the beats of those who belong elsewhere.
	forwards bool
	// intervals are those of the classes that do not beat every interval.
	intervals map[string]time.Duration
	// change may alter an answer, or return nil for none; stream counts from 1.
	change func(stream int, answer *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse
	// end ends a stream after an answer if it returns an error.
	end func(stream int) error
}

// serve starts a server that stops with the test.
func serve(t *testing.T) *server {
	s := &server{begin: time.Now(), listener: bufconn.Listen(1 << 20)}
	registry := grpc.NewServer()
	leasev1.RegisterLeaseServiceServer(registry, s)
	served := make(chan error, 1)
	go func() { served <- registry.Serve(s.listener) }()
	t.Cleanup(func() {
		registry.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s
}

func (s *server) StreamHeartbeats(wire grpc.BidiStreamingServer[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]) error {
	s.mu.Lock()
	s.streams++
	s.open++
	stream := s.streams
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
	}()
	for handles := []*leasev1.Holder(nil); ; {
		request, err := wire.Recv()
		if err != nil {
			return err
		}
		answer := s.answer(stream, request, &handles)
		if answer == nil {
			continue
		}
		if err := wire.Send(answer); err != nil {
			return err
		}
		if err := s.ending(stream); err != nil {
			return err
		}
	}
}

// answer keeps the holders by handle less one.
func (s *server) answer(stream int, request *leasev1.StreamHeartbeatsRequest, handles *[]*leasev1.Holder) *leasev1.StreamHeartbeatsResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages = append(s.messages, message{At: time.Since(s.begin), Introduced: len(request.Holders), Beats: len(request.Handles)})
	answer := &leasev1.StreamHeartbeatsResponse{Sequence: request.Sequence}
	for _, h := range request.Holders {
		if why := s.refusal(h.Name); why != nil {
			answer.Welcomes = append(answer.Welcomes, &leasev1.Welcome{Result: &leasev1.Welcome_Refusal{Refusal: why}})
			continue
		}
		*handles = append(*handles, h)
		answer.Welcomes = append(answer.Welcomes, &leasev1.Welcome{Handle: uint32(len(*handles)), Result: &leasev1.Welcome_Grant{Grant: s.grant(h)}})
	}
	for _, handle := range request.Handles {
		h := (*handles)[handle-1]
		if why := s.refusal(h.Name); why != nil {
			answer.RefusedHandles = append(answer.RefusedHandles, &leasev1.RefusedHandle{Handle: handle, Refusal: why})
			continue
		}
		answer.Grant = s.grant(h)
	}
	if s.change != nil {
		return s.change(stream, answer)
	}
	return answer
}

// grant is that of the holder's class. The caller holds mu.
func (s *server) grant(h *leasev1.Holder) *leasev1.Grant {
	every := cmp.Or(s.intervals[h.Class], interval)
	return &leasev1.Grant{Epoch: 7, NextInterval: durationpb.New(every), Ttl: durationpb.New(4 * every)}
}

// refusal is nil for a holder that belongs here. The caller holds mu.
func (s *server) refusal(name string) *leasev1.Refusal {
	if s.away == nil {
		return nil
	}
	if moveTo, away := s.away(name); away {
		return &leasev1.Refusal{Reason: "NOT_LEADER", MoveTo: moveTo, Forwarded: s.forwards}
	}
	return nil
}

func (s *server) ending(stream int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil {
		return nil
	}
	return s.end(stream)
}

// heard returns what has come since the last call.
func (s *server) heard() []message {
	s.mu.Lock()
	defer s.mu.Unlock()
	messages := s.messages
	s.messages = nil
	return messages
}

// network dials servers by name.
type network map[string]*server

func (n network) dial(target string) (*grpc.ClientConn, error) {
	s := n[target]
	if s == nil {
		return nil, errors.New("no such host")
	}
	return grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.listener.DialContext(ctx) }))
}

// run runs an agent until the end of the test.
func run(t *testing.T, cfg agent.Config) *agent.Agent {
	t.Helper()
	a, err := agent.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return a
}

func node(name string) agent.Holder { return agent.Holder{Class: "node", Name: name, BootID: "1"} }
