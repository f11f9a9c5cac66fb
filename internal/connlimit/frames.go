package connlimit

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

const (
	// A client may send controlRate control frames per second. controlBurst is what it sends so in
	// sixteen seconds, in which a server that does not read keeps the connection: then all of them
	// arrive at once. A gRPC client sends one for each call that it cancels or whose deadline
	// ends, and pings every few seconds. To measure the delay of the connection, it also pings
	// after data, with one ping at a time, which is free.
	controlRate  = 100
	controlBurst = 1600
	// mostFreePings bounds the pings for data that was sent before. Only frames of leastData or
	// more bytes count, the size of a header of gRPC: a client may ask for smaller ones.
	mostFreePings = 8
	leastData     = 5

	// continuationCost is what a continuation counts as, unless it follows a whole frame.
	continuationCost = 800
	// wholeFrame is the length of the frames of headers that do not fit one.
	wholeFrame = 16 << 10

	prefaceBytes = 24 // of "PRI * HTTP/2.0…", before the first frame
	headerBytes  = 9
)

// Types and flags of HTTP/2 frames.
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameSettings     = 0x4
	framePing         = 0x6
	frameWindowUpdate = 0x8
	frameContinuation = 0x9
	flagEndStream     = 0x1
	flagAck           = 0x1
)

// Credentials returns credentials of a gRPC server that end a connection on which the client sends
// too many control frames: resets, settings, more pings than it got data, priorities,
// continuations, empty data, and frames of unknown types. For ten seconds, the identity of the
// connection may open no other one.
func (l *Limiter) Credentials(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return &watchedCredentials{TransportCredentials: inner, limiter: l}
}

type watchedCredentials struct {
	credentials.TransportCredentials
	limiter *Limiter
}

// ServerHandshake returns a connection whose frames are counted.
func (w *watchedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := w.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	counted, ok := raw.(*conn) // nil if the listener is not the limiter's
	if ok {
		w.limiter.handshaken(counted)
	}
	watched := &watchedConn{Conn: c, limiter: w.limiter, counted: counted, received: headers{skip: prefaceBytes}, closed: make(chan struct{})}
	if ok && counted.peers != nil {
		watched.calls = &counted.peers.calls
	}
	return watched, info, nil
}

// Clone returns a copy with the same Limiter.
func (w *watchedCredentials) Clone() credentials.TransportCredentials {
	return &watchedCredentials{TransportCredentials: w.TransportCredentials.Clone(), limiter: w.limiter}
}

// watchedConn counts the control frames that are read. One goroutine reads, and one writes.
type watchedConn struct {
	net.Conn
	limiter *Limiter
	counted *conn     // nil if it is not counted
	calls   *callPace // of its identity; nil without a limit

	closing sync.Once
	closed  chan struct{}

	received, sent headers
	paid           time.Time
	// whole says that the last frame was a whole one with headers.
	whole bool
	// freePings is the number of pings that the data allow that was sent.
	freePings atomic.Int64
}

// headers finds the headers of frames in a stream of bytes.
type headers struct {
	skip  int // bytes until the next header
	bytes [headerBytes]byte
	known int // how many of bytes are there
}

// next returns what follows the next header in some bytes of the stream, and whether they have the
// end of one.
func (h *headers) next(stream []byte) (rest []byte, found bool) {
	skipped := min(h.skip, len(stream))
	h.skip -= skipped
	copied := copy(h.bytes[h.known:], stream[skipped:])
	if h.known += copied; h.known < headerBytes {
		return nil, false
	}
	h.known = 0
	h.skip = h.length()
	return stream[skipped+copied:], true
}

func (h *headers) kind() byte  { return h.bytes[3] }
func (h *headers) flags() byte { return h.bytes[4] }
func (h *headers) length() int { return int(h.bytes[0])<<16 | int(h.bytes[1])<<8 | int(h.bytes[2]) }

var errControlFrames = errors.New("the client sends too many HTTP/2 control frames")

// Read ends the connection if the client sends too many control frames. It returns the beginnings
// of calls at the rate of the connection's identity, and few of them at a time above it.
func (w *watchedConn) Read(p []byte) (int, error) {
	if w.calls.ahead(time.Now()) {
		p = p[:min(len(p), pacedRead)]
	}
	n, err := w.Conn.Read(p)
	if n == 0 {
		return n, err
	}
	calls, ok := w.count(p[:n])
	if !ok {
		w.limiter.flooded(w.counted, time.Now())
		_ = w.Close() // the reader gets the cause
		return 0, errControlFrames
	}
	if calls > 0 && w.counted != nil {
		w.limiter.called(w.counted)
	}
	if calls > 0 && !waitUnlessClosed(w.closed, w.calls.begin(calls, time.Now())) {
		return 0, net.ErrClosed
	}
	return n, err
}

// Close ends the wait of a reader, and closes the connection.
func (w *watchedConn) Close() error {
	w.closing.Do(func() { close(w.closed) })
	return w.Conn.Close()
}

// Write counts the data, for which a client may ping.
func (w *watchedConn) Write(p []byte) (int, error) {
	data := int64(0)
	for rest, found := w.sent.next(p); found; rest, found = w.sent.next(rest) {
		if w.sent.kind() == frameData && w.sent.length() >= leastData {
			data++
		}
	}
	if free := w.freePings.Load(); data > 0 && free < mostFreePings {
		w.freePings.Add(min(data, mostFreePings-free)) // the reader may take some meanwhile
	}
	return w.Conn.Write(p)
}

// count returns how many calls begin in the read bytes, and false if they contain a control frame
// too many.
func (w *watchedConn) count(read []byte) (calls int, ok bool) {
	control := 0
	for rest, found := w.received.next(read); found; rest, found = w.received.next(rest) {
		kind := w.received.kind()
		cost := costOf(kind, w.received.flags(), w.received.length())
		if kind == framePing && cost > 0 && w.freePings.Load() > 0 {
			w.freePings.Add(-1)
			cost = 0
		}
		if kind == frameContinuation && w.whole {
			calls, cost = calls+1, 0 // it is as much work as a call
		}
		w.whole = (kind == frameHeaders || kind == frameContinuation) && w.received.length() >= wholeFrame
		control += cost
		if kind == frameHeaders {
			calls++
		}
	}
	return calls, control == 0 || w.admit(control, time.Now())
}

// costOf returns what a frame counts as in control frames. A client has little reason to send those
// that count, and none to send a continuation after a frame that is not whole. A gateway that
// forwards a caller with many groups needs continuations after whole ones.
func costOf(kind, flags byte, length int) int {
	free := false
	switch kind {
	case frameData:
		free = length > 0 || flags&flagEndStream != 0
	case frameHeaders, frameWindowUpdate:
		free = true
	case frameSettings, framePing:
		free = flags&flagAck != 0
	case frameContinuation:
		return continuationCost
	}
	if free {
		return 0
	}
	return 1
}

// admit counts control frames.
func (w *watchedConn) admit(frames int, now time.Time) bool {
	if w.paid.Before(now) {
		w.paid = now
	}
	w.paid = w.paid.Add(time.Duration(frames) * time.Second / controlRate)
	return w.paid.Sub(now) <= controlBurst*time.Second/controlRate
}
