package abuse

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/trivet-dev/trivet/internal/identity"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// beatTimeout is how long an answer to a beat may take before the agent fails.
const beatTimeout = 20 * time.Second

// fleetSettings are the settings of the agents' process.
type fleetSettings struct {
	Server string
	// CAFile has the server's authority.
	CAFile string
	// KeyPairs is a file with the certificates of all agents, the newcomers last.
	KeyPairs          string
	Agents, Newcomers int
	Period            time.Duration // between two beats of one agent
}

// keyPair is a certificate with its key.
type keyPair struct{ Certificate, Key []byte }

// noticed is what agents notice.
type noticed struct {
	Latencies []time.Duration // sorted
	Failures  []string
	Newcomers int // that got an answer
}

// fleet is a number of agents, each with an address, a certificate, a connection and a stream.
type fleet struct {
	fleetSettings
	trust *tls.Config
	pairs []keyPair

	mu        sync.Mutex // guards the fields below
	latencies []time.Duration
	failures  []string
}

// serveFleet runs agents until the standard input ends. Its first answer is that all agents are
// connected.
func serveFleet() error {
	f := &fleet{}
	if err := settings(&f.fleetSettings); err != nil {
		return err
	}
	pairs, err := os.ReadFile(f.KeyPairs)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(pairs, &f.pairs); err != nil {
		return err
	}
	if f.trust, err = clientTLS(identity.Files{CAFile: f.CAFile}); err != nil {
		return err
	}
	debug.SetGCPercent(-1)
	ctx, cancel := context.WithCancel(context.Background())
	running := f.run(ctx)
	defer running.Wait()
	defer cancel()
	if err := json.NewEncoder(os.Stdout).Encode(true); err != nil {
		return err
	}
	answered := make(chan int, 1)
	return answerQuestions(func(question, _ string) (any, error) {
		if question == "begin" {
			runtime.GC()         // during a window, a real agent has little garbage
			time.Sleep(f.Period) // the beats that the collection delayed have their answers
			f.taken()
			go func() { answered <- f.connectNewcomers(ctx) }()
			return true, nil
		}
		newcomers := <-answered
		latencies, failures := f.taken()
		return noticed{Latencies: latencies, Failures: failures, Newcomers: newcomers}, nil
	})
}

// newAgent connects an agent of its own identity. stop closes the connection.
func (f *fleet) newAgent(ctx context.Context, number int) (stream beats, stop func(), err error) {
	pair, err := tls.X509KeyPair(f.pairs[number].Certificate, f.pairs[number].Key)
	if err != nil {
		return nil, nil, err
	}
	trusted := f.trust.Clone()
	trusted.Certificates = []tls.Certificate{pair}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(number>>8), byte(number))}}
	conn, err := grpc.NewClient("passthrough:///"+f.Server, grpc.WithTransportCredentials(credentials.NewTLS(trusted)),
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

// connectNewcomers connects one new agent after the other, each for one beat.
func (f *fleet) connectNewcomers(ctx context.Context) (answered int) {
	for number := range f.Newcomers {
		if err := f.connectNewcomer(ctx, f.Agents+number); err != nil {
			f.fail(fmt.Errorf("new agent: %w", err))
			continue
		}
		answered++
	}
	return answered
}

func (f *fleet) connectNewcomer(ctx context.Context, number int) error {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	stream, stop, err := f.newAgent(ctx, number)
	if err != nil {
		return err
	}
	defer stop()
	return beat(stream, 1)
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

// run keeps agents beating until ctx ends. It returns when all have had an answer.
func (f *fleet) run(ctx context.Context) (running *sync.WaitGroup) {
	running = new(sync.WaitGroup)
	var ready sync.WaitGroup
	places := make(chan struct{}, 32) // agents that connect at the same time
	for number := range f.Agents {
		ready.Add(1)
		running.Go(func() {
			places <- struct{}{}
			stream, stop, err := f.newAgent(ctx, number)
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
			f.keepBeating(ctx, stream, f.Period, time.Duration(number)*f.Period/time.Duration(f.Agents))
		})
	}
	ready.Wait()
	return running
}

// keepBeating beats at a phase of each period. A late beat delays no later one: otherwise agents
// that were late together would beat together from then on.
func (f *fleet) keepBeating(ctx context.Context, stream beats, period, phase time.Duration) {
	next := time.Now().Add(phase)
	timer := time.NewTimer(phase)
	defer timer.Stop()
	for sequence := uint64(2); ; sequence++ {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		next = next.Add(period)
		timer.Reset(time.Until(next))
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
	f.failures = append(f.failures, err.Error())
}

// taken returns what happened since the last call: the sorted latencies, and failures.
func (f *fleet) taken() ([]time.Duration, []string) {
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
