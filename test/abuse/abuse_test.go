package abuse

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/identity/identitytest"
)

var (
	long = flag.Bool("abuse.long", false, "attack with more connections beside more agents, and check the latency of the agents")
	each = flag.Duration("abuse.each", 15*time.Second, "duration of each attack of the long form")
)

const (
	// maxGrowth bounds the memory of the server beyond that of the quiet run.
	maxGrowth = 256 << 20
	// maxRatio bounds the 99th percentile of the latency, as a multiple of that of the quiet run.
	// It counts in the long form.
	maxRatio = 2
)

// scale is the size of a run.
type scale struct {
	agents, newcomers int
	period            time.Duration // between two beats of one agent
	quiet, attack     time.Duration
	floods, held      int // connections of an attacker: those that flood, and those that wait
	handshakes        int // at once
}

func sizeOf() scale {
	if *long {
		return scale{agents: 1000, newcomers: 50, period: time.Second, quiet: *each, attack: *each, floods: 8, held: 2000, handshakes: 10_000}
	}
	return scale{agents: 200, newcomers: 3, period: 500 * time.Millisecond, quiet: time.Second, attack: 500 * time.Millisecond, floods: 2, held: 100, handshakes: 200}
}

func (s scale) connections(attack string) int {
	switch {
	case attack == "handshakes":
		return s.handshakes
	case strings.HasPrefix(attack, "stalled"):
		return s.held
	default:
		return s.floods
	}
}

// fixture is a server with agents.
type fixture struct {
	scale
	server *serverProcess
	fleet  *fleet
	trust  identity.Files
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	authority := identitytest.NewAuthority(t, "authority")
	files := authority.Files(t, serverName, authority)
	f := &fixture{scale: sizeOf(), server: startServer(t, files), trust: identity.Files{CAFile: files.CAFile}}
	f.fleet = &fleet{server: f.server.address, authority: authority, trust: f.trust}
	ctx, cancel := context.WithCancel(t.Context())
	f.fleet.run(ctx, t, f.agents, f.period)
	t.Cleanup(cancel) // before the agents are awaited
	return f
}

// measured is one row of the table.
type measured struct {
	what      string
	latencies []time.Duration
	memory    int // resident
	heap      int
	cpu       float64 // processors that the server used
	newcomers int     // that got an answer
	result    attackResult
}

// measure runs during, and returns what the agents noticed meanwhile.
func (f *fixture) measure(t *testing.T, what string, during func() attackResult) measured {
	t.Helper()
	f.fleet.taken()
	m := measured{what: what}
	begin, used := time.Now(), f.server.cpu(t)
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			m.memory, m.heap = max(m.memory, f.server.memory(t)), max(m.heap, f.server.heap(t))
			select {
			case <-done:
				return
			case <-ticker.C:
			}
		}
	})
	watching.Go(func() { m.newcomers = f.connectNewcomers(t) })
	m.result = during()
	m.cpu = float64(f.server.cpu(t)-used) / float64(time.Since(begin))
	close(done)
	watching.Wait()
	var failures []error
	m.latencies, failures = f.fleet.taken()
	if len(failures) > 0 {
		t.Errorf("%s: %d failures of agents, the first: %v", what, len(failures), failures[0])
	}
	if m.newcomers < f.newcomers {
		t.Errorf("%s: %d of %d new agents got an answer", what, m.newcomers, f.newcomers)
	}
	if len(m.latencies) == 0 {
		t.Errorf("%s: no agent got an answer", what)
	}
	return m
}

// connectNewcomers connects one new agent after the other, each for one beat.
func (f *fixture) connectNewcomers(t *testing.T) (answered int) {
	for range f.newcomers {
		if err := f.connectNewcomer(t); err != nil {
			t.Errorf("new agent: %v", err)
			continue
		}
		answered++
	}
	return answered
}

func (f *fixture) connectNewcomer(t *testing.T) error {
	ctx, cancel := context.WithTimeout(t.Context(), beatTimeout)
	defer cancel()
	stream, stop, err := f.fleet.newAgent(ctx, t)
	if err != nil {
		return err
	}
	defer stop()
	return beat(stream, 1)
}

func TestAbuse_AgentsGoOn(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc and the addresses 127.0.0.0/8")
	}
	f := newFixture(t)
	evil := f.fleet.authority.Files(t, "system:node:evil", f.fleet.authority)
	quiet := f.measure(t, "quiet", func() attackResult {
		time.Sleep(f.quiet) // the duration of the measurement
		return attackResult{}
	})
	rows := []measured{quiet}
	for _, attack := range []string{
		"rapid reset", "continuation flood", "ping flood", "settings flood", "stalled handshakes", "stalled headers", "stalled bodies", "handshakes",
	} {
		for _, credential := range []struct {
			name  string
			files identity.Files
		}{{"node", evil}, {"none", f.trust}} {
			rows = append(rows, f.measure(t, attack+", "+credential.name, func() attackResult {
				return runAttack(t, attackSettings{
					Attack: attack, Server: f.server.address, Files: credential.files, Duration: f.attack, Connections: f.connections(attack),
				})
			}))
		}
	}
	f.check(t, rows)
}

// check prints the rows and compares them with the first, quiet one.
func (f *fixture) check(t *testing.T, rows []measured) {
	t.Helper()
	quiet := rows[0]
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "attack, certificate\tbeats\tp50\tp99\tmax\tp99 / quiet\tprocessors\theap\tmemory\tnew agents\tattempts\tconnections\tframes\t")
	for _, m := range rows {
		ratio := float64(percentile(m.latencies, 0.99)) / float64(percentile(quiet.latencies, 0.99))
		fmt.Fprintf(w, "%s\t%d\t%v\t%v\t%v\t%.1f\t%.2f\t%d MiB\t%d MiB\t%d\t%d\t%d\t%d\t\n", m.what, len(m.latencies),
			percentile(m.latencies, 0.5).Round(time.Microsecond), percentile(m.latencies, 0.99).Round(time.Microsecond),
			percentile(m.latencies, 1).Round(time.Microsecond), ratio, m.cpu, m.heap>>20, m.memory>>20, m.newcomers,
			m.result.Attempts, m.result.Connections, m.result.Frames)
		if *long && ratio > maxRatio {
			t.Errorf("%s: the 99th percentile of agents is %.1f times that of the quiet run, want %d at most", m.what, ratio, maxRatio)
		}
		// The race detector keeps memory of its own.
		if m.heap > quiet.heap+maxGrowth || *long && m.memory > quiet.memory+maxGrowth {
			t.Errorf("%s: the server has a heap of %d MiB in %d MiB; in the quiet run %d in %d MiB",
				m.what, m.heap>>20, m.memory>>20, quiet.heap>>20, quiet.memory>>20)
		}
		if m.what != quiet.what && m.result.Attempts == 0 {
			t.Errorf("%s: there was no attack", m.what)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(os.Stdout, table.String())
}
