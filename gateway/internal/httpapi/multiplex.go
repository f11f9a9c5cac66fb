package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

const (
	// watchParameter names one watch of a combined stream: its path with its query.
	watchParameter = "watch"
	// maxWatches bounds the watches of one combined stream.
	maxWatches = 16
	// flushPause is the shortest time between two flushes, so that the first events of 130,000
	// Nodes are not as many packets.
	flushPause = 10 * time.Millisecond
)

// combine serves several watches over one response, because a browser opens six connections to a
// host, and each watch would take one for as long as the page is open.
//
// Each line is a line of one watch with the index of its parameter: {"watch":0,"result":…}. An
// error is the last line of its watch: {"watch":0,"error":…}. The other watches go on. The response
// ends when the client leaves or all watches have ended.
func combine(watches http.Handler, logger *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		requests, err := watchRequests(r)
		if err != nil {
			write(w, r, http.StatusBadRequest, rpcerror.New(codes.InvalidArgument, rpcerror.ValidationFailedReason, err.Error()))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		markStream(w.Header())
		w.WriteHeader(http.StatusOK)
		if isHead(r) {
			return // a watch has no end
		}
		out := &combined{to: w, control: http.NewResponseController(w)}
		defer out.end()
		var running sync.WaitGroup
		for i, request := range requests {
			running.Go(func() {
				line := &lineWriter{out: out, watch: i, header: http.Header{}}
				line.serve(watches, request, logger)
				line.end()
			})
		}
		out.flush() // the client learns at once that the stream is open
		running.Wait()
	}
}

// watchRequests returns one request for each watch that a request names.
func watchRequests(r *http.Request) ([]*http.Request, error) {
	query := r.URL.Query()
	paths := query[watchParameter]
	if len(query) != 1 || len(paths) == 0 || len(paths) > maxWatches {
		return nil, fmt.Errorf("name 1 to %d watches, each with the parameter %q: ?watch=/v1/status:watch&watch=/v1/nodes:watch", maxWatches, watchParameter)
	}
	var requests []*http.Request
	for _, path := range paths {
		target, err := url.ParseRequestURI(path)
		if err != nil || target.Host != "" || !strings.HasPrefix(target.Path, "/v1/") || !strings.HasSuffix(target.Path, ":watch") {
			return nil, fmt.Errorf("%q is no watch: its path begins with /v1/ and ends with :watch", path)
		}
		if err := checkText(target); err != nil {
			return nil, err
		}
		request := r.Clone(r.Context())
		request.URL, request.RequestURI, request.Pattern = target, target.RequestURI(), ""
		requests = append(requests, request)
	}
	return requests, nil
}

// combined is the response of a combined stream. A client that does not read holds up its own
// watches only.
type combined struct {
	mu      sync.Mutex // guards the fields below
	to      http.ResponseWriter
	control *http.ResponseController
	flushed time.Time // the last time
	// waiting is whether a flush is due later; ended is whether the response must not be used.
	waiting, ended bool
}

func (c *combined) write(parts ...[]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.to.Write(bytes.Join(parts, nil))
	return err
}

// flush sends what is written, at once or after flushPause.
func (c *combined) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting {
		return
	}
	if wait := flushPause - time.Since(c.flushed); wait > 0 {
		c.waiting = true
		time.AfterFunc(wait, c.flushLate)
		return
	}
	c.flushNow()
}

func (c *combined) flushLate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = false
	if !c.ended {
		c.flushNow()
	}
}

// flushNow sends what is written. The caller holds the lock.
func (c *combined) flushNow() {
	_ = c.control.Flush() // fails only without a connection
	c.flushed = time.Now()
}

// end sends what is written. The response is not used afterwards.
func (c *combined) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushNow()
	c.ended = true
}

// lineWriter is the response of one watch of a combined stream. It is for one goroutine.
type lineWriter struct {
	out    *combined
	watch  int
	header http.Header
	// code is the HTTP status of the watch; 0 before it is known.
	code int
	rest []byte // the beginning of a line
	// failed is whether the last line was an error.
	failed bool
}

// serve writes a watch. A panic ends this watch only: net/http recovers the panics of its own
// goroutines, and this is none of them.
func (l *lineWriter) serve(watches http.Handler, request *http.Request, logger *slog.Logger) {
	defer func() {
		panicked := recover()
		if panicked == nil {
			return
		}
		if err, ok := panicked.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
			logger.Error("watch of a combined stream panicked", "path", request.URL.Path, "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
		}
		l.code, l.rest = http.StatusInternalServerError, statusLine(rpcerror.New(codes.Internal, rpcerror.PanicReason, "the handler of this watch failed; the log of the gateway has the cause"))
	}()
	watches.ServeHTTP(l, request)
}

func (l *lineWriter) Header() http.Header { return l.header }

func (l *lineWriter) WriteHeader(code int) {
	if l.code == 0 {
		l.code = code
	}
}

func (l *lineWriter) Write(data []byte) (int, error) {
	l.WriteHeader(http.StatusOK)
	l.rest = append(l.rest, data...)
	for l.code == http.StatusOK {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			break
		}
		if err := l.send(line); err != nil {
			return 0, err
		}
		l.rest = append(l.rest[:0], rest...)
	}
	return len(data), nil
}

// Flush sends the lines that are written.
func (l *lineWriter) Flush() { l.out.flush() }

// send writes a line, which is an object, with the number of its watch.
func (l *lineWriter) send(line []byte) error {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return nil
	}
	l.failed = bytes.HasPrefix(line, []byte(errorPrefix))
	return l.out.write(fmt.Appendf(nil, `{"watch":%d,`, l.watch), line[1:], []byte("\n"))
}

// end writes the last line: the error of a watch that could not be opened, or that it ended.
func (l *lineWriter) end() {
	if l.failed {
		return
	}
	line := bytes.ReplaceAll(bytes.TrimSpace(l.rest), []byte("\n"), nil)
	if l.code == http.StatusOK || len(line) == 0 {
		line = statusLine(rpcerror.New(codes.Unavailable, rpcerror.ShuttingDownReason, "the watch ended"))
	}
	_ = l.send(asError(line)) // the client may be gone
	l.Flush()
}

func statusLine(err error) []byte {
	body, _ := newMarshaler().Marshal(status.Convert(err).Proto()) // a message of this process
	return body
}

// errorPrefix begins the line of a watch that has an error.
const errorPrefix = `{"error":`

func asError(body []byte) []byte {
	return bytes.Join([][]byte{[]byte(errorPrefix), body, []byte("}")}, nil)
}
