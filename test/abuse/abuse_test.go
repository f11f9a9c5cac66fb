package abuse

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
)

var (
	long     = flag.Bool("abuse.long", false, "attack with more connections beside more agents, on processors of their own, and check the latency of the agents")
	each     = flag.Duration("abuse.each", 10*time.Second, "duration of each attack of the long form")
	only     = flag.String("abuse.only", "", "attacks of the long form, by commas; empty: all")
	profiled = flag.String("abuse.profiles", "", "directory for a processor profile of the server during each attack")
)

const (
	// maxGrowth bounds the memory of the server beyond that of the first quiet window.
	maxGrowth = 256 << 20
	// maxRatio bounds the 99th percentile of the latency, as a multiple of the median of those of
	// the quiet windows. It counts in the long form.
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
	return scale{agents: 100, newcomers: 2, period: 250 * time.Millisecond, quiet: 500 * time.Millisecond, attack: 400 * time.Millisecond, floods: 2, held: 100, handshakes: 200}
}

func (s scale) connections(attack string) int {
	switch {
	case attack == "handshakes":
		return s.handshakes
	case attack == neighbour:
		return 1
	case strings.HasPrefix(attack, "stalled"):
		return s.held
	default:
		return s.floods
	}
}

// fixture is a server with agents.
type fixture struct {
	scale
	address       string
	server, fleet *process
	authority     *identitytest.Authority
	trust         identity.Files
	attackers     byte
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	authority := identitytest.NewAuthority(t, "authority")
	files := authority.Files(t, serverName, authority)
	f := &fixture{scale: sizeOf(), trust: identity.Files{CAFile: files.CAFile}, authority: authority}
	measured, _ := places()
	f.server = start(t, "server", measured, files, &f.address)
	pairs := make([]keyPair, f.agents+f.newcomers)
	for number := range pairs {
		pairs[number].Certificate, pairs[number].Key = authority.Issue(t, fmt.Sprintf("system:node:node-%d", number))
	}
	text, err := json.Marshal(pairs)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "agents.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var connected bool
	f.fleet = start(t, "agents", measured, fleetSettings{
		Server: f.address, CAFile: files.CAFile, KeyPairs: path, Agents: f.agents, Newcomers: f.newcomers, Period: f.period,
	}, &connected)
	return f
}

// measured is one row of the table.
type measured struct {
	noticed
	what   string
	memory int // resident
	heap   int
	cpu    float64 // processors that the server used
	result attackResult
}

func (m *measured) p99() time.Duration { return percentile(m.Latencies, 0.99) }

// measure runs during, and returns what the agents noticed meanwhile.
func (f *fixture) measure(t *testing.T, what string, during func() attackResult) measured {
	t.Helper()
	m := measured{what: what}
	var ok bool
	if *profiled != "" {
		f.server.question(t, "profile "+filepath.Join(*profiled, strings.ReplaceAll(what, " ", "-")+".pprof"), &ok)
		defer f.server.question(t, "profile", &ok)
	}
	f.fleet.question(t, "begin", &ok)
	begin, used := time.Now(), f.server.usage(t).CPU
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			var heap int
			f.server.question(t, "heap", &heap)
			m.memory, m.heap = max(m.memory, int(f.server.usage(t).Resident)), max(m.heap, heap)
			select {
			case <-done:
				return
			case <-ticker.C:
			}
		}
	})
	m.result = during()
	m.cpu = float64(f.server.usage(t).CPU-used) / float64(time.Since(begin))
	close(done)
	watching.Wait()
	f.fleet.question(t, "end", &m.noticed)
	if len(m.Failures) > 0 {
		t.Errorf("%s: %d failures of agents, the first: %v", what, len(m.Failures), m.Failures[0])
	}
	if m.Newcomers < f.newcomers {
		t.Errorf("%s: %d of %d new agents got an answer", what, m.Newcomers, f.newcomers)
	}
	if len(m.Latencies) == 0 {
		t.Errorf("%s: no agent got an answer", what)
	}
	return m
}

func (f *fixture) measureQuiet(t *testing.T) measured {
	t.Helper()
	return f.measure(t, quiet, func() attackResult {
		time.Sleep(f.quiet) // the duration of the measurement
		return attackResult{}
	})
}

// measureAttack measures an attack with the certificate of a node, or without any. Each attacker
// has an address and a certificate of its own: the server remembers those of the attackers before.
func (f *fixture) measureAttack(t *testing.T, attack, certificate string) measured {
	t.Helper()
	f.attackers++
	files, number := f.trust, f.attackers
	if certificate == "node" {
		files = f.authority.Files(t, fmt.Sprintf("system:node:evil-%d", number), f.authority)
	}
	return f.measure(t, attack+", "+certificate, func() attackResult {
		return runAttack(t, attackSettings{Attack: attack, Server: f.address, Number: number, Files: files, Duration: f.attack, Connections: f.connections(attack)})
	})
}

// quiet is the name of a window without an attack.
const quiet = "quiet"

// plan returns the attacks in order.
func plan() []string {
	all := []string{
		"rapid reset", "continuation flood", "ping flood", "settings flood", "stalled handshakes", "stalled headers", "stalled bodies", "large messages", "handshakes",
	}
	switch {
	case *only != "":
		return strings.Split(*only, ",")
	case *long:
		return append([]string{neighbour}, all...)
	default:
		return all
	}
}

func TestAbuse_AgentsGoOn(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc and the addresses 127.0.0.0/8")
	}
	f := newFixture(t)
	rows := []measured{f.measureQuiet(t)}
	if *long {
		rows = []measured{f.measureQuiet(t)} // the first window has the garbage of the start
	}
	for _, attack := range plan() {
		rows = append(rows, f.measureAttack(t, attack, "node"))
		if attack != neighbour {
			rows = append(rows, f.measureAttack(t, attack, "none"))
		}
		if *long {
			rows = append(rows, f.measureQuiet(t))
		}
	}
	print(t, rows)
	check(t, rows)
}

// quietP99 returns the median of the 99th percentiles of the quiet windows.
func quietP99(rows []measured) time.Duration {
	var found []time.Duration
	for _, m := range rows {
		if m.what == quiet {
			found = append(found, m.p99())
		}
	}
	slices.Sort(found)
	return found[len(found)/2]
}

func print(t *testing.T, rows []measured) {
	t.Helper()
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "attack, certificate\tbeats\tp50\tp99\tmax\tp99 / quiet\tprocessors\theap\tmemory\tnew agents\tattempts\tconnections\tframes\t")
	for _, m := range rows {
		fmt.Fprintf(w, "%s\t%d\t%v\t%v\t%v\t%.1f\t%.2f\t%d MiB\t%d MiB\t%d\t%d\t%d\t%d\t\n", m.what, len(m.Latencies),
			percentile(m.Latencies, 0.5).Round(time.Microsecond), m.p99().Round(time.Microsecond),
			percentile(m.Latencies, 1).Round(time.Microsecond), float64(m.p99())/float64(quietP99(rows)), m.cpu, m.heap>>20, m.memory>>20, m.Newcomers,
			m.result.Attempts, m.result.Connections, m.result.Frames)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(os.Stdout, table.String())
}

// check compares the rows with the quiet windows.
func check(t *testing.T, rows []measured) {
	t.Helper()
	first := rows[0]
	for _, m := range rows {
		if ratio := float64(m.p99()) / float64(quietP99(rows)); *long && ratio > maxRatio {
			t.Errorf("%s: the 99th percentile of agents is %.1f times that of the quiet windows, want %d at most", m.what, ratio, maxRatio)
		}
		// The race detector keeps memory of its own.
		if m.heap > first.heap+maxGrowth || *long && m.memory > first.memory+maxGrowth {
			t.Errorf("%s: the server has a heap of %d MiB in %d MiB; in the first quiet window %d in %d MiB",
				m.what, m.heap>>20, m.memory>>20, first.heap>>20, first.memory>>20)
		}
		if m.what != quiet && m.result.Attempts == 0 {
			t.Errorf("%s: there was no attack", m.what)
		}
	}
}
