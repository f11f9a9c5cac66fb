package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

const (
	// What the API allows in one message.
	maxIntroductions = 1000
	maxBeats         = 10_000
	// refusedPause is when a refused holder is introduced again if the server does not say.
	refusedPause = time.Minute
	// minInterval is the least that a server can mean; what it says below that is an error that shall not become a flood.
	minInterval = 10 * time.Millisecond
	// minPatience lets a server with a short interval pause without losing all its streams.
	minPatience = time.Second
	// What follows are reasons of the API on which the agent acts.
	reasonSuperseded    = "SUPERSEDED"
	reasonUnknownHandle = "UNKNOWN_HANDLE"
	reasonNotLeader     = "NOT_LEADER"
	reasonPaced         = "PACED"
)

var (
	errNoAnswer = errors.New("no answer in time")
	errAnswer   = errors.New("an answer that does not fit what was asked")
	errReauth   = errors.New("the server wants fresh credentials")
)

// movedError is a stream that the server asked to leave.
type movedError struct{ to string }

func (e *movedError) Error() string {
	if e.to == "" {
		return "the server holds no shards any more"
	}
	return "the server sends us to " + e.to
}

func asMoved(err error) (*movedError, bool) {
	var moved *movedError
	return moved, errors.As(err, &moved)
}

// conversation is one stream. Everything in it belongs to the goroutine in run.
type conversation struct {
	*Agent
	post *post
	wire grpc.BidiStreamingClient[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]
	// asked are the messages without an answer, oldest first.
	asked []question
	// watchdog gives the stream up, even while a send hangs, when the oldest of them gets no answer in time, and before the
	// first one when there is no connection in time.
	watchdog *time.Timer
	interval time.Duration // the shortest of cadences; that of the last one that was left, 0 before any
	cadences map[string]*cadence
	// now and luck are those of the answer that is being heard.
	now  time.Time
	luck float64
	// introducing is set while an introduction has no answer.
	introducing bool
	beat        *time.Timer // fires when a class is to beat
	again       *time.Timer // fires when somebody is to be introduced
	heard       chan *leasev1.StreamHeartbeatsResponse
	failed      chan error // has one item, in the end
}

type question struct {
	sequence   uint64
	introduced []Holder
	class      string // of the holders that it renewed, if it renewed any
	sent       time.Time
}

func newConversation(a *Agent, p *post, wire grpc.BidiStreamingClient[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse], watchdog *time.Timer) *conversation {
	beat, again := time.NewTimer(time.Hour), time.NewTimer(time.Hour)
	beat.Stop()
	again.Stop()
	return &conversation{
		Agent: a, post: p, wire: wire, watchdog: watchdog, cadences: map[string]*cadence{}, beat: beat, again: again,
		heard: make(chan *leasev1.StreamHeartbeatsResponse), failed: make(chan error, 1),
	}
}

// run talks until the stream ends or should, or nobody is left to talk for; the latter is no error.
func (c *conversation) run(ctx context.Context) error {
	defer c.beat.Stop()
	defer c.again.Stop()
	c.watch() // the connection stands; nobody may be due yet
	c.post.signal()
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-c.failed:
			return err
		case response := <-c.heard:
			err = c.hear(response)
		case <-c.beat.C:
			err = c.sendBeats(time.Now())
		case <-c.again.C:
			err = c.introduce()
		case <-c.post.changed:
			if c.roster.closed(c.post) {
				return nil
			}
			err = c.introduce()
		}
		if err != nil {
			return c.why(err)
		}
	}
}

// why finds out what the server said last when all that a send got is that the stream is over.
func (c *conversation) why(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	for {
		select {
		case response := <-c.heard:
			if err := c.hear(response); err != nil {
				return err
			}
		case err := <-c.failed:
			return err
		}
	}
}

// listen passes on what the server says until the stream ends, which is always an error.
func (c *conversation) listen(ctx context.Context) error {
	for {
		response, err := c.wire.Recv()
		if err != nil {
			return fmt.Errorf("receive answer: %w", err)
		}
		select {
		case c.heard <- response:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// introduce sends those who wait for it, one message at a time: the answers are as large as the questions, so a client that
// sent all of them before it reads would find the server waiting for it to read.
func (c *conversation) introduce() error {
	if c.introducing {
		return nil
	}
	newcomers, next := c.roster.newcomers(c.post, time.Now(), maxIntroductions)
	set(c.again, next)
	if len(newcomers) == 0 {
		return nil
	}
	c.introducing = true
	request := &leasev1.StreamHeartbeatsRequest{}
	for _, h := range newcomers {
		request.Holders = append(request.Holders, &leasev1.Holder{Class: h.Class, Name: h.Name, BootId: h.BootID})
	}
	return c.send(request, question{introduced: newcomers})
}

func (c *conversation) send(request *leasev1.StreamHeartbeatsRequest, q question) error {
	request.Sequence = c.sequence.Add(1)
	q.sequence, q.sent = request.Sequence, time.Now()
	c.asked = append(c.asked, q)
	if len(c.asked) == 1 {
		c.watch()
	}
	if err := c.wire.Send(request); err != nil {
		return fmt.Errorf("send heartbeats: %w", err)
	}
	return nil
}

// watch sets the watchdog to the oldest question, or lets it rest.
func (c *conversation) watch() {
	if len(c.asked) == 0 {
		c.watchdog.Stop()
		return
	}
	patience := c.cfg.AnswerTimeout
	if c.interval > 0 {
		patience = max(2*c.interval, minPatience)
	}
	c.watchdog.Reset(time.Until(c.asked[0].sent.Add(patience)))
}
