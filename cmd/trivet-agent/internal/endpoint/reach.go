package endpoint

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/upstream"
)

// unansweredAfter is how long a request must have waited for a response when its caller gives up,
// to count as one that failed. A kubelet gives up after 10 s.
const unansweredAfter = 5 * time.Second

// reach sends the requests of the kubelet to kube-apiserver, and knows since when all of them fail.
//
// A request is served if kube-apiserver answers it with any code but 401 and 403. It is served as
// long as its response goes on, which for a watch are minutes: while a response is open, no failure
// of another request counts. A response that the connection breaks off ends as a failure.
type reach struct {
	next http.RoundTripper
	// changed is called with since when it changes. It must not block.
	changed func(since time.Time)

	mu   sync.Mutex // guards the fields below
	open int        // responses that go on
	// served is when a request was last served, and since when all later ones have failed; zero if
	// none has.
	served, since time.Time
}

// RoundTrip implements http.RoundTripper.
func (c *reach) RoundTrip(r *http.Request) (*http.Response, error) {
	begin := time.Now()
	response, err := c.next.RoundTrip(r)
	switch {
	case err != nil:
		if !endedByCaller(r, err, begin) {
			c.fail(begin)
		}
	case response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden:
		c.fail(begin)
	case response.StatusCode == http.StatusSwitchingProtocols: // its body is the connection
		c.begin()
		c.end(false)
	default:
		c.begin()
		response.Body = &openBody{ReadCloser: response.Body, of: c, request: r.Context()}
	}
	return response, err
}

// endedByCaller reports whether the caller, and not kube-apiserver, is why there is no response.
func endedByCaller(r *http.Request, err error, begin time.Time) bool {
	var tooLarge *http.MaxBytesError
	return errors.As(err, &tooLarge) || errors.Is(err, upstream.ErrBody) ||
		r.Context().Err() != nil && time.Since(begin) < unansweredAfter
}

// fail notes that a request got no response, or one that refuses the kubelet. It has failed since
// it began, unless another one was served meanwhile.
func (c *reach) fail(begin time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open > 0 || !c.since.IsZero() {
		return
	}
	if !begin.After(c.served) {
		begin = time.Now()
	}
	c.set(begin)
}

// begin notes a response that serves a request.
func (c *reach) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open++
	c.served = time.Now()
	c.set(time.Time{})
}

// end notes the end of a response: whether the connection has broken it off.
func (c *reach) end(broken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	c.served = time.Now()
	if broken && c.open == 0 {
		c.set(c.served)
	}
}

// set changes since. The caller holds c.mu, so that the calls of changed are in order.
func (c *reach) set(since time.Time) {
	if since.Equal(c.since) {
		return
	}
	c.since = since
	c.changed(since)
}

// cutOff returns since when all requests have failed; zero if they are served.
func (c *reach) cutOff() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since
}

// openBody is the body of a response that goes on until it was read or closed.
type openBody struct {
	io.ReadCloser
	of      *reach
	request context.Context
	ended   atomic.Bool
}

// Read notes the end of the response.
func (b *openBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end(err != io.EOF && b.request.Err() == nil) // io.EOF comes bare
	}
	return n, err
}

// Close notes the end of a response that its caller does not read to the end.
func (b *openBody) Close() error {
	b.end(false)
	return b.ReadCloser.Close()
}

func (b *openBody) end(broken bool) {
	if !b.ended.Swap(true) {
		b.of.end(broken)
	}
}
