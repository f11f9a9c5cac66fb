package leasesvc

import (
	"errors"
	"fmt"
	"io"
	"math"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

const (
	// maxHandles is how many introductions one stream may make in its life. A handle is never used for another holder, so
	// this bounds what a stream costs.
	maxHandles = 20_000
	// hasty is how many messages in a row must come at less than half their interval before the client is told to slow down.
	hasty = 4
	// waitingShare is how much of the shortest life of a session a stream may be asked to wait at the door, where it is not heard.
	waitingShare = 4
)

// StreamHeartbeats implements the RPC.
func (s *server) StreamHeartbeats(wire grpc.BidiStreamingServer[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]) error {
	k, err := s.keeper()
	if err != nil {
		return s.problem(err)
	}
	over, some := k.Leadership()
	if !some {
		return s.problem(sessioncontroller.ErrStopped) // there is nobody whom a stream could be for
	}
	if s.doors.Admit(s.now(), 1) == 0 {
		s.service.metrics.refusedStreams.WithLabelValues("paced").Inc()
		return rpcerror.New(codes.Unavailable, reasonPaced, "many streams are opened at once; open this one later",
			rpcerror.WithRetryAfter(jittered(min(2*s.doors.Wait(s.now()), s.longestPace))))
	}
	s.streams.Add(1)
	defer s.streams.Add(-1)
	c := &connection{server: s, sessions: k, wire: wire, sender: s.senderOf(wire.Context()), exchange: sessioncontroller.NewBatch()}
	if c.sender.meter != nil {
		defer func() { s.meters.Close(c.sender.name, s.now()) }()
	}

	// Only returning from here ends a stream, and a goroutine in Recv cannot return. So another one does the work, and this
	// one waits for what the client does not know of. The other ends with the stream.
	ended := make(chan ending, 1)
	go c.run(ended)
	select {
	case end := <-ended:
		end.rethrow()
		if errors.Is(end.err, sessioncontroller.ErrStopped) {
			return c.move(end.err)
		}
		return s.problem(end.err)
	case <-over:
		return c.move(sessioncontroller.ErrStopped)
	case <-k.Done():
		return c.move(sessioncontroller.ErrStopped)
	case <-wire.Context().Done():
		return c.move(endOf(wire.Context()))
	}
}

// connection is one open stream.
type connection struct {
	*server
	sessions *sessioncontroller.Controller
	wire     grpc.BidiStreamingServer[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]

	sending sync.Mutex // guards sends on wire and moved
	moved   bool       // nothing is sent any more

	sender sender

	// What follows belongs to the goroutine in run.
	handles  []handle // by handle less one
	boots    []string // of the handles
	grants   grants
	live     int // handles whose holder was not refused since
	sequence uint64
	exchange *sessioncontroller.Batch
	missed   []uint32 // the handles of the exchange's Refs
	request  leasev1.StreamHeartbeatsRequest
	answer   answer
	pace     pace
}

// ending is how the work on a stream ended.
type ending struct {
	err   error
	panic any
	stack []byte
}

// rethrow lets a panic of the working goroutine go on in the handler's, where it costs this one call.
func (e ending) rethrow() {
	if e.panic != nil {
		panic(fmt.Sprintf("%v\n%s", e.panic, e.stack))
	}
}

func (c *connection) run(ended chan<- ending) {
	defer func() {
		if value := recover(); value != nil {
			ended <- ending{panic: value, stack: debug.Stack()}
		}
	}()
	ended <- ending{err: c.serve()}
}

func (c *connection) serve() error {
	for {
		if err := c.wire.RecvMsg(&c.request); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := c.respond(&c.request); err != nil {
			return err
		}
		if sent, err := c.send(&c.answer.response); err != nil || !sent {
			return err
		}
		if c.answer.lost && c.live == 0 {
			return sessioncontroller.ErrSuperseded
		}
		c.shed()
	}
}

// fewBeats is how many beats a stream keeps the room for that only the keeper can take.
const fewBeats = 16

// shed lets go of what the last message made large: a stream introduces once and beats for days, and its beats are rarely news.
func (c *connection) shed() {
	c.request.Reset()
	c.answer.begin(0)
	x := c.exchange
	x.Registrations, x.Results = nil, nil
	if cap(x.Refs) > fewBeats {
		x.Refs, x.Rejected, c.missed = nil, nil, nil
	}
}

// send is false when the stream has been told to move, after which nothing follows.
func (c *connection) send(response *leasev1.StreamHeartbeatsResponse) (sent bool, err error) {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.moved {
		return false, nil
	}
	return true, c.wire.SendMsg(response)
}

// move sends the client away if the stream ends for a reason of this side, and returns the error that says why.
func (c *connection) move(why error) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.moved = true
	if errors.Is(why, sessioncontroller.ErrStopped) || rpcerror.ReasonOf(why) == rpcerror.ShuttingDownReason {
		// Should it not arrive, the error that follows says the same.
		_ = c.wire.Send(&leasev1.StreamHeartbeatsResponse{
			Directive: leasev1.StreamHeartbeatsResponse_DIRECTIVE_MOVE, MoveTo: c.shards().someoneElse(),
		})
	}
	return c.problem(why)
}

// pace notices clients that beat faster than they were granted. The holders of a stream beat in as many messages as they were
// introduced in or have classes, so what counts is how long the holders of a message were silent, not how long the stream was.
type pace struct{ early int }

// unheardOf is a silence that is never too short.
const unheardOf = time.Duration(math.MaxInt64)

// note takes the silence before a message of beats and the interval that answers it, and tells whether to slow the client down.
func (p *pace) note(silence, interval time.Duration) bool {
	if silence < interval/2 {
		p.early++
	} else {
		p.early = 0
	}
	return p.early >= hasty
}
