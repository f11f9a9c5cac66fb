package bootstrapsvc

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

const (
	// passTimeout bounds one pass, so that a call that hangs cannot stop a loop.
	passTimeout = 10 * time.Second
	// firstRetry is the pause after a first failure; it doubles up to the period.
	firstRetry = time.Second
)

// duty is one set of objects that one goroutine keeps right: at once, every period, when nudged, and when asked. Because only
// that goroutine writes them, passes never overlap, whoever wants one.
type duty struct {
	period time.Duration
	// perform makes one pass. leaving is the address to take out, the zero Addr for none.
	perform func(ctx context.Context, leaving netip.Addr) ([]baseline.Change, error)
	// nudges holds one: a burst makes one pass.
	nudges chan struct{}
	// requests is unbuffered: who asks knows that the goroutine has taken it.
	requests chan request
}

type request struct {
	leaving netip.Addr
	// reply holds one, so that the duty never waits for who asked; it is closed by the duty after the pass.
	reply chan outcome
}

type outcome struct {
	changes []baseline.Change
	err     error
}

// errAbandoned: the pass ended without a result, because it panicked.
var errAbandoned = errors.New("the pass ended without a result")

func newDuty(period time.Duration, perform func(context.Context, netip.Addr) ([]baseline.Change, error)) *duty {
	return &duty{
		period:   period,
		perform:  perform,
		nudges:   make(chan struct{}, 1),
		requests: make(chan request),
	}
}

// nudge makes the next pass come at once. It never blocks.
func (d *duty) nudge() {
	select {
	case d.nudges <- struct{}{}:
	default:
	}
}

// run does the duty until ctx ends; it is a loop's Run.
func (d *duty) run(ctx context.Context, report loop.Report) error {
	due := time.NewTimer(0)
	defer due.Stop()
	for failures := 0; ; {
		var asked request
		select {
		case <-ctx.Done():
			return nil
		case <-due.C:
		case <-d.nudges:
		case asked = <-d.requests:
		}
		err := d.pass(ctx, asked)
		report(err)
		failures++
		if err == nil {
			failures = 0
		}
		due.Reset(wait(d.period, failures))
	}
}

// wait is the time to the next pass after so many failures in a row.
func wait(period time.Duration, failures int) time.Duration {
	if failures == 0 {
		return period
	}
	const doublings = 16 // far beyond any period, far from overflow
	return min(period, firstRetry<<min(failures-1, doublings))
}

func (d *duty) pass(ctx context.Context, asked request) error {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	if asked.reply != nil {
		defer close(asked.reply) // after a panic, too: nobody must wait for a pass that is over
	}
	changes, err := d.perform(ctx, asked.leaving)
	if asked.reply != nil {
		asked.reply <- outcome{changes: changes, err: err}
	}
	return err
}

// ask has the duty make a pass now and waits for the result, at most until ctx ends. The pass runs under the context of the
// duty's loop, not under ctx: it goes on when nobody waits for it any more.
func (d *duty) ask(ctx context.Context, leaving netip.Addr) ([]baseline.Change, error) {
	asked := request{leaving: leaving, reply: make(chan outcome, 1)}
	select {
	case d.requests <- asked:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case result, ok := <-asked.reply:
		if !ok {
			return nil, errAbandoned
		}
		return result.changes, result.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
