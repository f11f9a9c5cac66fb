package agent

import (
	"math/rand/v2"
	"time"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// hear does what an answer asks for. An error means that the stream is of no more use.
func (c *conversation) hear(response *leasev1.StreamHeartbeatsResponse) error {
	if response.Directive == leasev1.StreamHeartbeatsResponse_DIRECTIVE_MOVE {
		return &movedError{to: response.MoveTo}
	}
	if len(c.asked) == 0 || c.asked[0].sequence != response.Sequence || len(c.asked[0].introduced) != len(response.Welcomes) {
		return errAnswer
	}
	c.now, c.luck = time.Now(), rand.Float64()
	question := c.asked[0]
	c.asked = c.asked[1:]
	var err error
	c.roster.update(func() { err = c.take(question, response) })
	if err != nil {
		return err
	}
	if len(question.introduced) > 0 {
		c.introducing = false
		c.post.signal() // the next may be waiting
	}
	if response.Grant != nil && question.class != "" {
		c.rhythm(question.class, response.Grant)
	}
	c.watch()
	c.note()
	switch response.Directive {
	case leasev1.StreamHeartbeatsResponse_DIRECTIVE_RESYNC:
		c.roster.resync(c.post)
	case leasev1.StreamHeartbeatsResponse_DIRECTIVE_REAUTH:
		return errReauth
	case leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN:
		// Nothing more to do: the next beat follows this answer by the whole interval.
		c.cfg.Logger.Warn("the server wants fewer heartbeats", "target", c.post.address, "interval", c.interval)
	}
	return nil
}

// take notes what an answer says of each holder.
func (c *conversation) take(question question, response *leasev1.StreamHeartbeatsResponse) error {
	for i, welcome := range response.Welcomes {
		if err := c.welcome(question.introduced[i], welcome); err != nil {
			return err
		}
	}
	for _, refused := range response.RefusedHandles {
		c.revoke(refused)
	}
	return nil
}

func (c *conversation) welcome(h Holder, welcome *leasev1.Welcome) error {
	grant, refusal := welcome.GetGrant(), welcome.GetRefusal()
	switch {
	case grant != nil && welcome.Handle != 0:
		c.roster.welcome(c.post, h, welcome.Handle)
		c.join(h.Class, grant)
	case refusal != nil:
		c.roster.refuse(c.post, h, c.verdict(refusal, c.retryAfter(refusal)))
	default:
		return errAnswer
	}
	return nil
}

func (c *conversation) revoke(refused *leasev1.RefusedHandle) {
	var retry time.Duration // a session that is gone can be opened again at once
	if refused.Refusal.GetReason() != reasonUnknownHandle {
		retry = c.retryAfter(refused.Refusal)
	}
	c.roster.revoke(c.post, refused.Handle, c.verdict(refused.Refusal, retry))
}

// verdict is the same for all who are sent away by one answer, so that they come back in one message.
func (c *conversation) verdict(refusal *leasev1.Refusal, retry time.Duration) verdict {
	return verdict{
		reason: refusal.GetReason(), retry: c.now.Add(retry), moveTo: refusal.GetMoveTo(), leave: c.leave(refusal),
		detour: func(nth int) time.Time { return c.now.Add(c.route.detour(nth, c.luck)) },
	}
}

// note takes an answer as a sign of life of the server.
func (c *conversation) note() {
	first := c.roster.opened(c.post)
	c.journal.note(func(s *Status) {
		s.Target, s.LastAnswer = c.post.address, time.Now()
		if first {
			s.Streams++
		}
	})
	if first {
		c.route.worked(c.post.address, c.interval)
		c.cfg.Logger.Info("heartbeats are answered", "target", c.post.address)
	}
}

// leave is when a holder that belongs elsewhere goes there. One whose beat was handed on lives there already, so it takes its
// time: a random share of half an interval, that those who have to move at one moment do not arrive at one moment.
func (c *conversation) leave(refusal *leasev1.Refusal) time.Time {
	if !refusal.GetForwarded() {
		return time.Time{}
	}
	return c.now.Add(time.Duration(c.luck * float64(c.interval/2)))
}

// retryAfter is never less than the server asks for. Where it has to pace those who come, they come back spread.
func (c *conversation) retryAfter(refusal *leasev1.Refusal) time.Duration {
	pause := refusal.GetRetryAfter().AsDuration()
	switch {
	case pause <= 0:
		return refusedPause
	case refusal.GetReason() == reasonPaced:
		return pause + time.Duration(c.luck*float64(pause/2))
	}
	return pause
}
