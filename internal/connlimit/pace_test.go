package connlimit

import (
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

func TestCallPace_DelaysCallsAboveTheRate(t *testing.T) {
	now := time.Now()
	for name, named := range map[string]identity{"node": {user: "system:node:a"}, "other": {user: "ann"}, "none": {}} {
		pace := callPace{perSecond: callRateOf(named)}
		burst := int(callBurst * time.Duration(pace.perSecond) / time.Second)
		if pause := pace.begin(burst, now); pause > 0 {
			t.Errorf("%s: %d calls at once wait %v", name, burst, pause)
		}
		if pause := pace.begin(pace.perSecond, now); pause != time.Second || !pace.ahead(now) {
			t.Errorf("%s: the calls of another second wait %v, want 1 s", name, pause)
		}
		if pause := pace.begin(1, now.Add(time.Minute)); pause > 0 {
			t.Errorf("%s: a call a minute later waits %v", name, pause)
		}
	}
	if unlimited := (*callPace)(nil); unlimited.begin(1e6, now) != 0 || unlimited.ahead(now) {
		t.Error("without an identity calls wait")
	}
}

// callsConn delivers the beginnings of calls as long as a test reads.
type callsConn struct {
	net.Conn
	unread []byte
}

func (c *callsConn) Write(p []byte) (int, error) {
	c.unread = append(c.unread, p...)
	return len(p), nil
}

func (c *callsConn) Read(p []byte) (int, error) {
	n := copy(p, c.unread)
	c.unread = c.unread[n:]
	return n, nil
}

func (c *callsConn) Close() error { return nil }

func TestWatchedConn_CallsOfAnIdentityWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := &callPace{perSecond: nodeCallRate}
		raw := &callsConn{}
		framer := http2.NewFramer(raw, nil)
		for number := range uint32(5 * nodeCallRate) {
			if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*number + 1, BlockFragment: []byte("abc"), EndHeaders: true}); err != nil {
				t.Fatal(err)
			}
		}
		total := len(raw.unread)
		w := &watchedConn{Conn: raw, limiter: newLimiter(t, Config{}), calls: pace, closed: make(chan struct{})}
		begin := time.Now()
		for read := 0; read < total; {
			n, err := w.Read(make([]byte, 4096))
			if err != nil {
				t.Fatal(err)
			}
			if read > 0 && n > pacedRead {
				t.Errorf("%d bytes are read at once above the rate", n)
			}
			read += n
		}
		if took, want := time.Since(begin), 5*time.Second-callBurst; took != want {
			t.Errorf("the calls of 5 s took %v, want %v", took, want)
		}
		if _, err := raw.Write([]byte{0, 0, 0, frameHeaders, 0, 0, 0, 0, 1}); err != nil {
			t.Fatal(err)
		}
		pace.begin(10*nodeCallRate, time.Now())
		time.AfterFunc(time.Second, func() { w.Close() })
		begin = time.Now()
		if n, err := w.Read(make([]byte, 4096)); err == nil || time.Since(begin) != time.Second {
			t.Errorf("a closed connection reads %d bytes after %v (%v)", n, time.Since(begin), err)
		}
	})
}

// The handshakes of one address compute one at a time, with rests, and those of others do not wait.
func TestTurn_AnAddressComputesAShareOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const computation = 500 * time.Microsecond
		mine, theirs := newTurn(), newTurn()
		finished := make(chan struct{})
		begin := time.Now()
		for range 100 {
			go func() {
				mine.take()
				begun := time.Now()
				time.Sleep(computation)
				mine.leave(begun)
				finished <- struct{}{}
			}()
		}
		theirs.take()
		if took := time.Since(begin); took > 0 {
			t.Errorf("another address waits %v", took)
		}
		theirs.leave(time.Now())
		for range 100 {
			<-finished
		}
		if took, want := time.Since(begin), 100*computation+99*restFactor*computation; took != want {
			t.Errorf("100 computations took %v, want %v", took, want)
		}
	})
}

func TestLimiter_FailuresInARowCostMore(t *testing.T) {
	admitted := func(succeed bool) (total int) {
		l, now := newLimiter(t, Config{Rate: 2500}), time.Now()
		for range 10_000 { // 100 s
			now = now.Add(10 * time.Millisecond)
			connections, _ := connect(l, "10.0.0.1:1", true, now, 1)
			for _, c := range connections {
				total++
				if succeed && total%10 == 0 {
					l.called(c)
				}
				l.failed(c, now)
				l.handshaken(c)
				c.called.Store(true) // no further failure
				c.Close()
			}
		}
		return total
	}
	alone, mixed := admitted(false), admitted(true)
	if alone < 500 || alone > 1000 || mixed < 4000 {
		t.Errorf("%d connections that all fail are admitted, and %d with calls between; want about 700 and 4200", alone, mixed)
	}
}

// A connection without a call costs as much as a failed handshake.
func TestLimiter_ConnectionsWithoutACallCostMore(t *testing.T) {
	debt := func(call bool) time.Duration {
		l := newLimiter(t, Config{Rate: 1000})
		now := time.Now()
		connections, reason := connect(l, "10.0.0.1:1", true, now, 1)
		if reason != "" {
			t.Fatal(fmt.Errorf("refused for %q", reason))
		}
		l.handshaken(connections[0])
		if call {
			l.called(connections[0])
		}
		connections[0].Close()
		return connections[0].of.paid.Sub(now)
	}
	if with, without := debt(true), debt(false); with != 10*time.Millisecond || without < 60*time.Millisecond {
		t.Errorf("a connection costs %v with a call, and %v without one; want 10 ms and 60 ms", with, without)
	}
}
