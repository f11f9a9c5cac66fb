package agent_test

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
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
	leasev1.UnimplementedHeartbeatServiceServer
	begin    time.Time
	listener *bufconn.Listener

	mu      sync.Mutex // guards the fields below
	streams int
	open    int // streams that have not ended
	// connections are those of the clients, also closed ones.
	connections []net.Conn
	messages    []message
	requests    []*leasev1.StreamHeartbeatsRequest
	// away returns the owner of a holder, and false if this server is the owner. nil makes this
	// server the owner of all.
	away func(name string) (owner string, away bool)
	// forwards is set if the server forwards the beats of holders that it does not own.
	forwards bool
	// intervals are the intervals of classes that differ from interval.
	intervals map[string]time.Duration
	// change may modify a response, or return nil to send none. The first stream is 1.
	change func(stream int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse
	// between is sent before the response to the second message.
	between *leasev1.StreamHeartbeatsResponse
	// end may return an error to end a stream after a response.
	end func(stream int) error
	// released has the calls of ReleaseLease.
	released releases
}

// serve starts a server that stops with the test.
func serve(t *testing.T) *server {
	s := &server{begin: time.Now(), listener: bufconn.Listen(1 << 20)}
	registry := grpc.NewServer()
	leasev1.RegisterHeartbeatServiceServer(registry, s)
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
		if s.between != nil && response.Sequence == 2 {
			if err := rpc.Send(s.between); err != nil {
				return err
			}
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
	s.messages = append(s.messages, message{At: time.Since(s.begin), Registered: len(request.Registrations), Beats: len(request.Handles) + len(request.Reports)})
	s.requests = append(s.requests, request)
	response := &leasev1.StreamHeartbeatsResponse{Sequence: request.Sequence}
	for _, registration := range request.Registrations {
		h := registration.Holder
		if why := s.rejection(h.Name); why != nil {
			response.RegistrationResults = append(response.RegistrationResults, &leasev1.RegistrationResult{Result: &leasev1.RegistrationResult_Rejection{Rejection: why}})
			continue
		}
		*handles = append(*handles, h)
		response.RegistrationResults = append(response.RegistrationResults, &leasev1.RegistrationResult{Handle: uint32(len(*handles)), Result: &leasev1.RegistrationResult_Grant{Grant: s.grant(h)}})
	}
	renewed := slices.Clone(request.Handles)
	for _, report := range request.Reports {
		renewed = append(renewed, report.Handle)
	}
	for _, handle := range renewed {
		h := (*handles)[handle-1]
		if why := s.rejection(h.Name); why != nil {
			response.RejectedHandles = append(response.RejectedHandles, &leasev1.RejectedHandle{Handle: handle, Rejection: why})
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
func (s *server) rejection(name string) *leasev1.Rejection {
	if s.away == nil {
		return nil
	}
	owner, away := s.away(name)
	switch {
	case !away:
		return nil
	case owner == "":
		return &leasev1.Rejection{Reason: "NO_LEADER", Code: code.Code_UNAVAILABLE, RetryAfter: durationpb.New(100 * time.Millisecond)}
	}
	return &leasev1.Rejection{Reason: "NOT_LEADER", Code: code.Code_FAILED_PRECONDITION, RedirectAddress: owner, Forwarded: s.forwards}
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

// silence makes the server answer nothing from now on.
func (s *server) silence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change = func(int, *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse { return nil }
}

// connect opens a connection of a client.
func (s *server) connect(ctx context.Context) (net.Conn, error) {
	connection, err := s.listener.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections = append(s.connections, connection)
	return connection, nil
}

// disconnect closes the connections of all clients.
func (s *server) disconnect(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, connection := range s.connections {
		if err := connection.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// network maps addresses to servers.
type network map[string]*server

func (n network) dial(target string) (*grpc.ClientConn, error) {
	s := n[target]
	if s == nil {
		return nil, errors.New("no such host")
	}
	return grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.connect(ctx) }))
}

// run makes and runs an agent until the end of the test.
func run(t *testing.T, cfg agent.Config) *agent.Agent {
	t.Helper()
	a, err := agent.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	start(t, a)
	return a
}

// start runs an agent until the end of the test.
func start(t *testing.T, a *agent.Agent) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

func node(name string) agent.Holder { return agent.Holder{Class: "node", Name: name, BootID: "1"} }

func (s *server) ReleaseLease(ctx context.Context, request *leasev1.ReleaseLeaseRequest) (*leasev1.ReleaseLeaseResponse, error) {
	return s.released.release(ctx, request)
}
