package agent

import (
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
	question := c.asked[0]
	c.asked = c.asked[1:]
	for i, welcome := range response.Welcomes {
		if err := c.welcome(question.introduced[i], welcome); err != nil {
			return err
		}
	}
	if len(question.introduced) > 0 {
		c.introducing = false
		c.roster.signal() // the next may be waiting
	}
	if response.Grant != nil {
		c.rhythm(response.Grant)
	}
	c.watch()
	c.note()
	for _, refused := range response.RefusedHandles {
		c.revoke(refused)
	}
	switch response.Directive {
	case leasev1.StreamHeartbeatsResponse_DIRECTIVE_RESYNC:
		c.roster.disconnect()
	case leasev1.StreamHeartbeatsResponse_DIRECTIVE_REAUTH:
		return errReauth
	case leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN:
		// Nothing more to do: the next beat follows this answer by the whole interval.
		c.cfg.Logger.Warn("the server wants fewer heartbeats", "target", c.target, "interval", c.interval)
	}
	return nil
}

func (c *conversation) welcome(h Holder, welcome *leasev1.Welcome) error {
	grant, refusal := welcome.GetGrant(), welcome.GetRefusal()
	switch {
	case grant != nil && welcome.Handle != 0:
		c.roster.welcome(h, welcome.Handle)
		c.adopt(grant)
		c.schedule(c.interval)
	case refusal != nil:
		retry := retryAfter(refusal)
		c.roster.refuse(h, refusal.Reason, time.Now().Add(retry))
		c.schedule(retry)
	default:
		return errAnswer
	}
	return nil
}

func (c *conversation) revoke(refused *leasev1.RefusedHandle) {
	var retry time.Duration // a session that is gone can be opened again at once
	if refused.Refusal.GetReason() != reasonUnknownHandle {
		retry = retryAfter(refused.Refusal)
		c.schedule(retry)
	}
	c.roster.revoke(refused.Handle, refused.Refusal.GetReason(), time.Now().Add(retry))
}

// rhythm lets the next beat follow by the interval that an answer to a beat gives.
func (c *conversation) rhythm(grant *leasev1.Grant) {
	c.adopt(grant)
	c.beatAt = time.Time{}
	c.schedule(c.interval)
}

func (c *conversation) adopt(grant *leasev1.Grant) {
	c.interval = max(grant.NextInterval.AsDuration(), minInterval)
	next := *c.status.Load()
	next.Epoch, next.Interval, next.TTL = grant.Epoch, c.interval, grant.Ttl.AsDuration()
	c.status.Store(&next)
}

// note takes an answer as a sign of life of the server.
func (c *conversation) note() {
	next := *c.status.Load()
	next.Connected, next.Target, next.LastAnswer = true, c.target, time.Now()
	if !c.answered {
		c.answered = true
		next.Streams++
		c.route.worked(c.target, c.interval)
		c.cfg.Logger.Info("heartbeats are answered", "target", c.target)
	}
	c.status.Store(&next)
}

func retryAfter(refusal *leasev1.Refusal) time.Duration {
	if pause := refusal.GetRetryAfter().AsDuration(); pause > 0 {
		return pause
	}
	return refusedPause
}
