package resources

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/protobuf/proto"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/test/internal/callframe"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	// A light agent pauses between connections as package agent does: up to a quarter of the
	// interval after a connection that worked, then up to a doubled time, at most a quarter of
	// the TTL.
	firstPause   = herdInterval / 4
	shortPause   = 100 * time.Millisecond
	longestPause = herdGrace / 4
	// answerTimeout is how long a light agent waits for a handshake, and for an answer.
	answerTimeout = 10 * time.Second
	messagePrefix = 5 // of a gRPC message: compression and length
)

// beginning is the first frame of the stream of each light agent.
var beginning = callframe.Headers(1, leases, leasev1.HeartbeatService_StreamHeartbeats_FullMethodName)

// lightAgents are agents that write the frames of HTTP/2 themselves and check no certificate. They
// need a small part of the processor time of package agent's, so that most of the machine is left
// for the server.
type lightAgents struct {
	agents []*lightAgent
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// lightAgent is one agent with one holder.
type lightAgent struct {
	address string
	holder  *leasev1.Holder
	from    net.IP
	tls     *tls.Config // nil without TLS

	mu      sync.Mutex // guards the fields below
	open    net.Conn
	renewed time.Time
	lost    uint64 // streams
	answers map[string]uint64
	failure error // of the last connection
}

// beatLightly starts light agents for nodes, with TLS if own has their configurations. The test's
// cleanup ends them.
func (w *world) beatLightly(size int, address string, own []*tls.Config) *lightAgents {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	all := &lightAgents{cancel: cancel}
	w.Cleanup(all.end)
	for number := range size {
		a := &lightAgent{
			address: address, from: addressOfAgent(number), answers: map[string]uint64{},
			holder: &leasev1.Holder{Class: "node", Name: herdNode(number), BootId: "boot"},
		}
		if own != nil {
			a.tls = own[number]
			a.tls.InsecureSkipVerify = true // the checks of the clients are not what is measured
			a.tls.NextProtos = []string{"h2"}
		}
		all.agents = append(all.agents, a)
		all.done.Go(func() { a.run(ctx) })
	}
	return all
}

func (l *lightAgents) end() {
	l.cancel()
	l.done.Wait()
}

func (l *lightAgents) size() int { return len(l.agents) }

// closeAll closes all connections, and returns when.
func (l *lightAgents) closeAll() map[int]time.Time {
	closed := map[int]time.Time{}
	for number, a := range l.agents {
		a.mu.Lock()
		open := a.open
		a.mu.Unlock()
		if open != nil {
			_ = open.Close() // it may be closed already
			closed[number] = time.Now()
		}
	}
	return closed
}

func (l *lightAgents) renewal(number int) (at time.Time, failure string) {
	a := l.agents[number]
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.renewed, fmt.Sprint(a.failure)
}

func (l *lightAgents) counters() (lost uint64, answers map[string]uint64) {
	answers = map[string]uint64{}
	for _, a := range l.agents {
		a.mu.Lock()
		lost += a.lost
		for directive, n := range a.answers {
			answers[directive] += n
		}
		a.mu.Unlock()
	}
	return lost, answers
}

// run connects until ctx ends.
func (a *lightAgent) run(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; failures++ {
		renewed, err := a.connect(ctx)
		a.mu.Lock()
		a.failure = err
		a.lost++
		a.mu.Unlock()
		longest := min(shortPause<<min(failures, 10), longestPause)
		if renewed {
			failures, longest = 0, firstPause
		}
		testkit.Pause(ctx, rand.N(longest))
	}
}

// connect beats on one connection until it ends. It returns whether the holder was renewed.
func (a *lightAgent) connect(ctx context.Context) (renewed bool, err error) {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: a.from}, Timeout: answerTimeout}
	c, err := dialer.DialContext(ctx, "tcp", a.address)
	if err != nil {
		return false, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if a.tls != nil {
		secure := tls.Client(c, a.tls)
		_ = c.SetDeadline(time.Now().Add(answerTimeout)) // an open connection takes it
		if err := secure.Handshake(); err != nil {
			return false, fmt.Errorf("handshake: %w", err)
		}
		_ = c.SetWriteDeadline(time.Time{}) // likewise; a write that fails late would break TLS
		c = secure
	}
	s := &lightStream{agent: a, conn: c, out: bufio.NewWriterSize(c, 512)}
	s.framer = http2.NewFramer(s.out, bufio.NewReaderSize(c, 1<<10))
	a.mu.Lock()
	a.open = c
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.open = nil
		a.mu.Unlock()
		s.end()
	}()
	if err := s.begin(); err != nil {
		return false, err
	}
	for {
		if err := s.read(); err != nil {
			return s.renewed, err
		}
	}
}

// lightStream is the only stream of a connection.
type lightStream struct {
	agent *lightAgent
	conn  net.Conn

	// The goroutine that reads uses the fields below.
	received []byte // of messages that are not complete
	renewed  bool
	handle   uint32

	mu       sync.Mutex // guards the fields below, and writes
	framer   *http2.Framer
	out      *bufio.Writer
	sequence uint64
	next     *time.Timer
	ended    bool
}

// begin opens the stream and registers the holder.
func (s *lightStream) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	const window = 1 << 20 // of the answers of more than ten thousand beats
	_, err := s.out.WriteString(http2.ClientPreface)
	return errors.Join(err,
		s.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}),
		s.framer.WriteWindowUpdate(0, window),
		s.framer.WriteHeaders(beginning),
		s.send(s.registration()),
	)
}

func (s *lightStream) registration() *leasev1.StreamHeartbeatsRequest {
	return &leasev1.StreamHeartbeatsRequest{
		ClientInfo:    &metav1.ClientInfo{Cluster: clusterName, Agent: "resources"},
		Registrations: []*leasev1.Registration{{Holder: s.agent.holder}},
	}
}

// send needs s.mu.
func (s *lightStream) send(request *leasev1.StreamHeartbeatsRequest) error {
	s.sequence++
	request.Sequence = s.sequence
	message, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, messagePrefix), request)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(message[1:], uint32(len(message)-messagePrefix))
	_ = s.conn.SetReadDeadline(time.Now().Add(answerTimeout)) // an open connection takes it
	return errors.Join(s.framer.WriteData(1, false, message), s.out.Flush())
}

// sendAfter sends a request after a pause. An error of the connection ends it for the reader, too.
func (s *lightStream) sendAfter(after time.Duration, request func() *leasev1.StreamHeartbeatsRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	_ = s.conn.SetReadDeadline(time.Now().Add(after + answerTimeout)) // an open connection takes it
	s.next = time.AfterFunc(after, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.ended && s.send(request()) != nil {
			s.conn.Close()
		}
	})
}

func (s *lightStream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.next != nil {
		s.next.Stop()
	}
}

// read handles one frame.
func (s *lightStream) read() error {
	frame, err := s.framer.ReadFrame()
	if err != nil {
		return err
	}
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		return s.reply(s.framer.WriteSettingsAck)
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		return s.reply(func() error { return s.framer.WritePing(true, f.Data) })
	case *http2.DataFrame:
		s.received = append(s.received, f.Data()...)
		return s.messages()
	case *http2.HeadersFrame:
		if f.StreamEnded() {
			return errors.New("the server ended the stream")
		}
	case *http2.RSTStreamFrame, *http2.GoAwayFrame:
		return fmt.Errorf("the server ended the stream: %v", f)
	}
	return nil
}

func (s *lightStream) reply(write func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(write(), s.out.Flush())
}

// messages handles the complete messages.
func (s *lightStream) messages() error {
	for len(s.received) >= messagePrefix {
		size := messagePrefix + int(binary.BigEndian.Uint32(s.received[1:]))
		if len(s.received) < size {
			return nil
		}
		response := &leasev1.StreamHeartbeatsResponse{}
		if err := proto.Unmarshal(s.received[messagePrefix:size], response); err != nil {
			return err
		}
		s.received = append(s.received[:0], s.received[size:]...)
		if err := s.answer(response); err != nil {
			return err
		}
	}
	return nil
}

// answer follows one answer: the next beat, or another registration.
func (s *lightStream) answer(response *leasev1.StreamHeartbeatsResponse) error {
	grant, rejection := response.Grant, (*leasev1.Rejection)(nil)
	for _, result := range response.RegistrationResults {
		s.handle, grant, rejection = result.Handle, result.GetGrant(), result.GetRejection()
	}
	for _, rejected := range response.RejectedHandles {
		rejection = rejected.Rejection
	}
	s.agent.mu.Lock()
	name := "none"
	if response.Directive != leasev1.StreamHeartbeatsResponse_DIRECTIVE_UNSPECIFIED {
		name = response.Directive.String()
	}
	s.agent.answers[name]++
	if grant != nil {
		s.agent.renewed = time.Now()
	}
	s.agent.mu.Unlock()
	switch {
	case response.Directive == leasev1.StreamHeartbeatsResponse_DIRECTIVE_MOVE:
		return io.EOF // there is no other replica, so the agent connects again
	case rejection != nil:
		s.sendAfter(rejection.RetryAfter.AsDuration()+rand.N(shortPause), s.registration)
	case grant != nil && response.Directive == leasev1.StreamHeartbeatsResponse_DIRECTIVE_RESYNC:
		s.renewed = true
		s.sendAfter(rand.N(shortPause), s.registration)
	case grant != nil:
		s.renewed = true
		handle := s.handle
		s.sendAfter(grant.NextInterval.AsDuration(), func() *leasev1.StreamHeartbeatsRequest {
			return &leasev1.StreamHeartbeatsRequest{Handles: []uint32{handle}}
		})
	}
	return nil
}
