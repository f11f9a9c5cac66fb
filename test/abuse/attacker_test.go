package abuse

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/trivet-dev/trivet/internal/identity"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	"github.com/trivet-dev/trivet/test/internal/callframe"
)

// attackSettings are the settings of an attacker's process.
type attackSettings struct {
	Attack   string
	Server   string
	Files    identity.Files // without a CertFile the attacker has no certificate
	Duration time.Duration
	// Number tells the attackers apart: each has an address of its own.
	Number byte
	// Connections is the number of connections at the same time.
	Connections int
}

// attackResult is what an attacker did.
type attackResult struct {
	Attempts, Connections, Frames int64
}

// attacker makes connections from one address.
type attacker struct {
	attackSettings
	tls    *tls.Config
	dialer *net.Dialer

	attempts, connections, frames atomic.Int64
}

// attack attacks for a time, and prints what it did.
func attack() error {
	a := &attacker{}
	if err := settings(&a.attackSettings); err != nil {
		return err
	}
	// An attacker that the kernel ignores does not wait for TCP to repeat the first packet.
	a.dialer = &net.Dialer{Timeout: 200 * time.Millisecond, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 66, 0, a.Number)}}
	var err error
	if a.tls, err = clientTLS(a.Files); err != nil {
		return err
	}
	way, ok := attacks[a.Attack]
	if !ok {
		return fmt.Errorf("no attack %q", a.Attack)
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.Duration)
	defer cancel()
	var running sync.WaitGroup
	for range a.Connections {
		running.Go(func() {
			for ctx.Err() == nil {
				a.once(ctx, way)
			}
		})
	}
	running.Wait()
	return json.NewEncoder(os.Stdout).Encode(attackResult{
		Attempts: a.attempts.Load(), Connections: a.connections.Load(), Frames: a.frames.Load(),
	})
}

// once makes one connection and attacks on it until it is closed. An attempt that fails is repeated
// later.
func (a *attacker) once(ctx context.Context, way attackWay) {
	a.attempts.Add(1)
	if way.busy {
		compute(ctx)
		return
	}
	raw, err := a.dialer.DialContext(ctx, "tcp", a.Server)
	if err != nil {
		wait(ctx, max(way.pause, short))
		return
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	if way.raw != nil {
		a.connections.Add(1)
		_ = way.raw(raw) // ends with the connection
		wait(ctx, way.pause)
		return
	}
	secure := tls.Client(raw, a.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		wait(ctx, way.pause)
		return
	}
	a.connections.Add(1)
	_ = a.converse(secure, way) // ends with the connection
	wait(ctx, way.pause)
}

// converse begins an HTTP/2 connection and sends what the attack sends.
func (a *attacker) converse(c net.Conn, way attackWay) error {
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(io.Discard, c) }) // until the server closes the connection
	defer reading.Wait()
	defer c.Close()
	buffered := bufio.NewWriterSize(c, 32<<10)
	if _, err := buffered.WriteString(http2.ClientPreface); err != nil {
		return err
	}
	framer := http2.NewFramer(buffered, nil)
	framer.AllowIllegalWrites = true
	if err := framer.WriteSettings(); err != nil {
		return err
	}
	if way.flood == nil {
		return buffered.Flush()
	}
	for number := uint32(0); ; number++ {
		more, err := way.flood(framer, number)
		if err != nil {
			return err
		}
		a.frames.Add(1)
		if !more {
			if err := buffered.Flush(); err != nil {
				return err
			}
			reading.Wait() // the connection stays open until the server closes it
			return nil
		}
	}
}

// compute uses a processor for a while.
func compute(ctx context.Context) {
	for block := make([]byte, 4<<10); ctx.Err() == nil; {
		sum := sha256.Sum256(block)
		copy(block, sum[:])
	}
}

func wait(ctx context.Context, pause time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

// attackWay is one way to attack.
type attackWay struct {
	// raw attacks without TLS.
	raw func(net.Conn) error
	// flood sends frames, by their number, until it returns false. Without it the connection ends
	// after its beginning.
	flood func(framer *http2.Framer, number uint32) (more bool, err error)
	// pause is the time between two connections.
	pause time.Duration
	// busy computes instead.
	busy bool
}

const short = 10 * time.Millisecond

var attacks = map[string]attackWay{
	"rapid reset": {pause: short, flood: func(f *http2.Framer, number uint32) (bool, error) {
		stream := 2*number + 1
		if err := f.WriteHeaders(callframe.Headers(stream, serverName, leasev1.HeartbeatService_StreamHeartbeats_FullMethodName)); err != nil {
			return false, err
		}
		return true, f.WriteRSTStream(stream, http2.ErrCodeCancel)
	}},
	"continuation flood": {pause: short, flood: func(f *http2.Framer, number uint32) (bool, error) {
		if number == 0 {
			open := callframe.Headers(1, serverName, leasev1.HeartbeatService_StreamHeartbeats_FullMethodName)
			open.EndHeaders = false
			return true, f.WriteHeaders(open)
		}
		return true, f.WriteContinuation(1, false, padding)
	}},
	"ping flood": {pause: short, flood: func(f *http2.Framer, _ uint32) (bool, error) {
		return true, f.WritePing(false, [8]byte{})
	}},
	"settings flood": {pause: short, flood: func(f *http2.Framer, number uint32) (bool, error) {
		return true, f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65535 + number%2})
	}},
	"stalled handshakes": {pause: time.Second, raw: func(c net.Conn) error {
		// The beginning of a ClientHello of 512 bytes.
		if _, err := c.Write([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3}); err != nil {
			return err
		}
		_, err := io.Copy(io.Discard, c)
		return err
	}},
	"stalled headers": {pause: time.Second, flood: func(f *http2.Framer, _ uint32) (bool, error) {
		open := callframe.Headers(1, serverName, leasev1.LeaseService_GetLease_FullMethodName)
		open.EndHeaders = false
		return false, f.WriteHeaders(open)
	}},
	"stalled bodies": {pause: time.Second, flood: func(f *http2.Framer, number uint32) (bool, error) {
		stream := 2*number + 1
		if err := f.WriteHeaders(callframe.Headers(stream, serverName, leasev1.LeaseService_GetLease_FullMethodName)); err != nil {
			return false, err
		}
		return number < 98, f.WriteData(stream, false, []byte{0, 0, 0}) // a part of the prefix of a message
	}},
	"large messages": {pause: short, flood: func(f *http2.Framer, number uint32) (bool, error) {
		stream := 2*number + 1
		if err := f.WriteHeaders(callframe.Headers(stream, serverName, leasev1.HeartbeatService_Heartbeat_FullMethodName)); err != nil {
			return false, err
		}
		for rest := manyBeats; len(rest) > 0; {
			n := min(len(rest), 16<<10)
			if err := f.WriteData(stream, n == len(rest), rest[:n]); err != nil {
				return false, err
			}
			rest = rest[n:]
		}
		return true, nil
	}},
	"handshakes": {pause: 0},
	// The neighbour computes and sends nothing.
	neighbour: {busy: true},
}

// neighbour is not an attack. It shows what the processors of one machine share.
const neighbour = "busy neighbour"

// manyBeats is a message of 60,000 beats without content, as large as fits the window of a stream.
var manyBeats = func() []byte {
	message := bytes.Repeat([]byte{0x0a, 0x02, 0x0a, 0x00}, 60_000)
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}()

// padding is a part of a header block: a literal field without indexing.
var padding = func() []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	_ = encoder.WriteField(hpack.HeaderField{Name: "padding", Value: string(bytes.Repeat([]byte("~"), 1000)), Sensitive: true}) // a buffer takes all
	return block.Bytes()
}()

// runAttack runs an attacker until it ends.
func runAttack(t *testing.T, settings attackSettings) attackResult {
	t.Helper()
	_, where := places()
	command := child(t, "attacker", where, settings)
	output, err := command.Output()
	if err != nil {
		t.Fatalf("attacker: %v", err)
	}
	var result attackResult
	if err := json.Unmarshal(output, &result); err != nil {
		t.Fatalf("attacker printed %q: %v", output, err)
	}
	return result
}
