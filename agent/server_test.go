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

// message counts the registrations and beats of one request. At is the time since the start of the
// server.
type message struct {
	At                time.Duration
	Registered, Beats int
}

// server is a leasesvc that accepts every holder unless the test says otherwise.
type server struct {
	leasev1.UnimplementedLeaseServiceServer
	begin    time.Time
	listener *bufconn.Listener

	mu       sync.Mutex // guards the fields below
	streams  int
	open     int // streams that have not ended
	messages []message
	// away returns the owner of a holder, and false if this server is the owner. nil makes this
	// server the owner of all.
	away func(name string) (moveTo string, away bool)
	// forwards is set if the server forwards the beats of holders that it does not own.
	forwards bool
	// intervals are the intervals of classes that differ from interval.
	intervals map[string]time.Duration
	// change may modify a response, or return nil to send none. The first stream is 1.
	change func(stream int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse
	// end may return an error to end a stream after a response.
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

func (s *server) StreamHeartbeats(rpc grpc.BidiStreamingServer[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]) error {
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
		request, err := rpc.Recv()
		if err != nil {
			return err
		}
		response := s.respond(stream, request, &handles)
		if response == nil {
			continue
		}
		if err := rpc.Send(response); err != nil {
			return err
		}
		if err := s.endOf(stream); err != nil {
			return err
		}
	}
}

// respond appends registered holders to handles; the index of a holder is its handle minus one.
func (s *server) respond(stream int, request *leasev1.StreamHeartbeatsRequest, handles *[]*leasev1.Holder) *leasev1.StreamHeartbeatsResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages = append(s.messages, message{At: time.Since(s.begin), Registered: len(request.Holders), Beats: len(request.Handles)})
	response := &leasev1.StreamHeartbeatsResponse{Sequence: request.Sequence}
	for _, h := range request.Holders {
		if why := s.rejection(h.Name); why != nil {
			response.Welcomes = append(response.Welcomes, &leasev1.Welcome{Result: &leasev1.Welcome_Refusal{Refusal: why}})
			continue
		}
		*handles = append(*handles, h)
		response.Welcomes = append(response.Welcomes, &leasev1.Welcome{Handle: uint32(len(*handles)), Result: &leasev1.Welcome_Grant{Grant: s.grant(h)}})
	}
	for _, handle := range request.Handles {
		h := (*handles)[handle-1]
		if why := s.rejection(h.Name); why != nil {
			response.RefusedHandles = append(response.RefusedHandles, &leasev1.RefusedHandle{Handle: handle, Refusal: why})
			continue
		}
		response.Grant = s.grant(h)
	}
	if s.change != nil {
		return s.change(stream, response)
	}
	return response
}

// grant returns the grant of the holder's class. The caller holds mu.
func (s *server) grant(h *leasev1.Holder) *leasev1.Grant {
	every := cmp.Or(s.intervals[h.Class], interval)
	return &leasev1.Grant{Epoch: 7, NextInterval: durationpb.New(every), Ttl: durationpb.New(4 * every)}
}

// rejection returns nil if this server owns the holder. The caller holds mu.
func (s *server) rejection(name string) *leasev1.Refusal {
	if s.away == nil {
		return nil
	}
	if moveTo, away := s.away(name); away {
		return &leasev1.Refusal{Reason: "NOT_LEADER", MoveTo: moveTo, Forwarded: s.forwards}
	}
	return nil
}

func (s *server) endOf(stream int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil {
		return nil
	}
	return s.end(stream)
}

// received returns the messages since the last call.
func (s *server) received() []message {
	s.mu.Lock()
	defer s.mu.Unlock()
	messages := s.messages
	s.messages = nil
	return messages
}

// network maps addresses to servers.
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
