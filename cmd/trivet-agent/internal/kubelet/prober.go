package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

const (
	// maxBody bounds what is read of an answer.
	maxBody = 4 << 10
	// silentInterval is the longest time between two probes of a kubelet that did not answer the
	// last one, so that its return is noticed soon.
	silentInterval = time.Second
)

// Config configures a Prober. URL, Interval and Timeout are required.
type Config struct {
	// URL is an http URL on loopback that the kubelet answers with 200 while it is healthy.
	URL string
	// Interval is the time from the begin of one probe to the next, at most a second while the
	// kubelet is silent.
	Interval time.Duration
	// Timeout is the longest time of one probe.
	Timeout time.Duration
	// Seen is called with the begin of each probe that was answered; it must not block.
	Seen   func(at time.Time)
	Logger *slog.Logger
}

// Prober asks the kubelet whether it is healthy, one probe at a time. An answer other than 200, a
// redirect, an answer after the timeout and an answer from an address that is not on loopback prove
// nothing. It is safe for concurrent use.
type Prober struct {
	cfg    Config
	client *http.Client

	mu     sync.Mutex // guards status
	status Status
}

// Status is what a Prober knows.
type Status struct {
	// LastSeen is the begin of the last probe that was answered; zero if none was.
	LastSeen time.Time
	// Err is why the last probe failed; nil if it was answered, or if there was none yet.
	Err error
	// Answered and Failed count probes.
	Answered, Failed uint64
}

// New returns a Prober that does nothing until Run.
func New(cfg Config) *Prober {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	dialer := net.Dialer{Timeout: cfg.Timeout, Control: loopbackOnly}
	return &Prober{cfg: cfg, client: &http.Client{
		// No proxy, and a connection of its own for each probe: a kubelet that accepts none is
		// silent.
		Transport:     &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true, MaxResponseHeaderBytes: 16 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

var errNotLoopback = errors.New("the address is not on loopback, so the answer is not from the kubelet of this machine")

// loopbackOnly checks the address after the resolution of its name.
func loopbackOnly(_, address string, _ syscall.RawConn) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("%s: %w", address, errNotLoopback)
	}
	return nil
}

// Status returns the current state.
func (p *Prober) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// Run probes until ctx ends, and returns nil.
func (p *Prober) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		begin := time.Now()
		err := p.probe(ctx)
		if ctx.Err() != nil {
			return nil
		}
		p.record(begin, err)
		interval := p.cfg.Interval
		if err != nil {
			interval = min(interval, silentInterval)
		}
		timer.Reset(interval - time.Since(begin))
	}
}

func (p *Prober) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Timeout, fmt.Errorf("no answer within %v", p.cfg.Timeout))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.cfg.URL, nil)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", "trivet-agent")
	response, err := p.client.Do(request)
	if err != nil {
		return causeOf(ctx, err)
	}
	// A kubelet that hangs within its answer is as silent as one that does not begin it.
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, maxBody))
	_ = response.Body.Close() // the answer is complete or of no use
	switch {
	case err != nil:
		return causeOf(ctx, err)
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%s answers %s", p.cfg.URL, response.Status)
	}
	return nil
}

// causeOf returns why ctx ended, if it did: the error of the client says only that it ended.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// record stores the result of a probe, and logs the first of each kind.
func (p *Prober) record(begin time.Time, err error) {
	p.mu.Lock()
	before := p.status
	p.status.Err = err
	if err == nil {
		p.status.LastSeen = begin
		p.status.Answered++
	} else {
		p.status.Failed++
	}
	p.mu.Unlock()
	switch {
	case err == nil && (before.Err != nil || before.LastSeen.IsZero()):
		p.cfg.Logger.Info("kubelet is healthy", "url", p.cfg.URL)
	case err != nil && before.Err == nil && before.LastSeen.IsZero():
		p.cfg.Logger.Warn("kubelet does not answer its health check yet; heartbeats begin when it does", "url", p.cfg.URL, "error", err)
	case err != nil && before.Err == nil:
		p.cfg.Logger.Warn("kubelet does not answer its health check; the node is declared lost after its grace period if this lasts",
			"url", p.cfg.URL, "error", err, "last_seen", before.LastSeen)
	}
	if err == nil && p.cfg.Seen != nil {
		p.cfg.Seen(begin)
	}
}
