package abuse

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/identity/identitytest"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// beatTimeout is how long an answer to a beat may take before the agent fails.
const beatTimeout = 20 * time.Second

// fleet is a number of agents, each with an address, a certificate, a connection and a stream.
type fleet struct {
	server    string
	authority *identitytest.Authority
	trust     identity.Files // of the server's authority
	issued    atomic.Int64

	mu        sync.Mutex // guards the fields below
	latencies []time.Duration
	failures  []error
}

// newAgent connects an agent of its own identity. stop closes the connection.
func (f *fleet) newAgent(ctx context.Context, t *testing.T) (stream beats, stop func(), err error) {
	number := f.issued.Add(1)
	certificate, key := f.authority.Issue(t, fmt.Sprintf("system:node:node-%d", number))
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, nil, err
	}
	trusted, err := clientTLS(f.trust)
	if err != nil {
		return nil, nil, err
	}
	trusted.Certificates = []tls.Certificate{pair}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(number>>8), byte(number))}}
	conn, err := grpc.NewClient("passthrough:///"+f.server, grpc.WithTransportCredentials(credentials.NewTLS(trusted)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		return nil, nil, err
	}
	stream, err = leasev1.NewHeartbeatServiceClient(conn).StreamHeartbeats(ctx, grpc.WaitForReady(true))
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return stream, func() { conn.Close() }, nil
}

type beats = grpc.BidiStreamingClient[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]

// beat sends one beat and waits for the answer.
func beat(stream beats, sequence uint64) error {
	if err := stream.Send(&leasev1.StreamHeartbeatsRequest{Sequence: sequence, Handles: []uint32{1}}); err != nil {
		_, cause := stream.Recv()
		return errors.Join(err, cause)
	}
	answer, err := stream.Recv()
	if err != nil {
		return err
	}
	if answer.GetSequence() != sequence {
		return fmt.Errorf("answer %d to beat %d", answer.GetSequence(), sequence)
	}
	return nil
}

// run keeps agents beating every period until ctx ends. It returns when all have had an answer.
func (f *fleet) run(ctx context.Context, t *testing.T, agents int, period time.Duration) {
	t.Helper()
	var ready, running sync.WaitGroup
	places := make(chan struct{}, 32) // agents that connect at the same time
	for number := range agents {
		ready.Add(1)
		running.Go(func() {
			places <- struct{}{}
			stream, stop, err := f.newAgent(ctx, t)
			if err == nil {
				err = beat(stream, 1)
			}
			<-places
			ready.Done()
			if err != nil {
				f.fail(fmt.Errorf("agent %d: %w", number, err))
				return
			}
			defer stop()
			f.keepBeating(ctx, stream, period, time.Duration(number)*period/time.Duration(agents))
		})
	}
	t.Cleanup(running.Wait)
	ready.Wait()
}

// keepBeating beats at a phase of each period.
func (f *fleet) keepBeating(ctx context.Context, stream beats, period, phase time.Duration) {
	timer := time.NewTimer(phase)
	defer timer.Stop()
	for sequence := uint64(2); ; sequence++ {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(period)
		begin := time.Now()
		late := time.AfterFunc(beatTimeout, func() { f.fail(errors.New("no answer to a beat")) })
		err := beat(stream, sequence)
		late.Stop()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			f.fail(err)
			return
		}
		f.mu.Lock()
		f.latencies = append(f.latencies, time.Since(begin))
		f.mu.Unlock()
	}
}

func (f *fleet) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures = append(f.failures, err)
}

// taken returns what happened since the last call: the sorted latencies, and failures.
func (f *fleet) taken() ([]time.Duration, []error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	latencies, failures := f.latencies, f.failures
	f.latencies, f.failures = nil, nil
	slices.Sort(latencies)
	return latencies, failures
}

func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(p*float64(len(sorted)-1))]
}
