package resources

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
)

const (
	// maxHolderMemory bounds the memory for one holder.
	maxHolderMemory = 4 << 10
	// maxCollections bounds the part of the processor time for garbage collections, in percent.
	maxCollections = 50
)

// newBeating starts one leasesvc, and agents that beat there.
func newBeating(t *testing.T) (w *world, s *server, b *beating) {
	t.Helper()
	w = newWorld(t, false)
	s = w.newServer(leases, 0, insecureArgs()...)
	s.start()
	size := 20
	if *long {
		size = 1000
	}
	names := make([]string, size)
	for i := range names {
		names[i] = herdNode(i)
	}
	begin := time.Now()
	b = w.beat(nodeHolders(names), []string{s.grpc}, func(int) func(string) (*grpc.ClientConn, error) { return plaintext })
	w.renewedSince(b, begin, startTimeout)
	return w, s, b
}

// A process that runs a tenth of the time detects that, expires no session, and works soon after.
func TestScarceProcessor(t *testing.T) {
	w, s, b := newBeating(t)
	tb := newTable(t, fmt.Sprintf("leasesvc with %d agents runs 10 ms of each 100 ms", len(b.agents)))
	starved := 3 * time.Second
	if *long {
		starved = 30 * time.Second
	}
	const turn = 100 * time.Millisecond
	before := s.kernel()
	for end := time.Now().Add(starved); time.Now().Before(end); {
		if err := s.process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		pause(context.Background(), turn*9/10)
		if err := s.process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		pause(context.Background(), turn/10)
	}
	after := time.Now()
	tb.add("processor time in that time", "%s of %s", duration(s.kernel().CPU-before.CPU), duration(starved))
	took := w.renewedSince(b, after, startTimeout)
	atMost(tb, "time after which all agents are renewed", percentile(took, 1), bounded(herdInterval+time.Second), duration)
	text, err := s.get(context.Background(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	paused := sumOf(text, "trivet_lease_paused_seconds")
	tb.add("time in which leasesvc noticed that it did not run", "%.1f s", paused)
	atMost(tb, "sessions that expired", int(valueOf(text, `trivet_lease_sessions{state="expired"}`)), 0, count)
}

// bounded returns a bound of the long form. The short form says nothing about time.
func bounded(bound time.Duration) time.Duration {
	if *long {
		return bound
	}
	return startTimeout
}

// With a GOMEMLIMIT little above what it needs, a process works, with more garbage collections.
func TestMemoryLimit(t *testing.T) {
	full(t)
	w, s, b := newBeating(t)
	tb := newTable(t, fmt.Sprintf("leasesvc with %d agents and a GOMEMLIMIT of 1.2 times what it needs", len(b.agents)))
	u := s.usage()
	need := u.heap + u.other
	limit := need * 12 / 10
	tb.add("memory that it needs, as the Go runtime counts it, and the limit", "%s, %s", mebibytes(need), mebibytes(limit))
	tb.add("largest resident memory without a limit", "%s", mebibytes(u.Peak))
	percent, number, err := s.collections()
	if err != nil {
		t.Fatal(err)
	}
	tb.add("garbage collections without a limit, and their part of the processor time", "%d, %d %%", number, percent)
	s.stop()
	s.env = append(s.env, fmt.Sprintf("GOMEMLIMIT=%d", limit))
	s.start()
	begin := time.Now()
	w.renewedSince(b, begin, startTimeout)
	const beats = 12
	for range beats {
		w.renewedSince(b, time.Now(), startTimeout)
	}
	atMost(tb, "oldest accepted beat at the end, beyond the interval", max(worstRenewal(b)-herdInterval, 0), herdGrace-herdInterval, duration)
	if percent, number, err = s.collections(); err != nil {
		t.Fatal(err)
	}
	tb.add("garbage collections with the limit, in "+duration(time.Since(begin)), "%d", number)
	atMost(tb, "their part of the processor time, in percent", percent, maxCollections, count)
	tb.add("largest resident memory with the limit", "%s", mebibytes(s.kernel().Peak))
	text, err := s.get(context.Background(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	atMost(tb, "sessions that expired", int(valueOf(text, `trivet_lease_sessions{state="expired"}`)), 0, count)
}

// worstRenewal returns the largest age of the last accepted beat of an agent.
func worstRenewal(b *beating) (worst time.Duration) {
	for i, a := range b.agents {
		worst = max(worst, time.Since(a.Renewed(b.holders[i]).Accepted))
	}
	return worst
}

// A hundred thousand holders take a bounded memory, and those beyond --max-sessions take none and
// expire no other.
func TestIdentities_Holders(t *testing.T) {
	w := newWorld(t, false)
	size, flood := 2000, 1000
	if *long {
		size, flood = 100_000, 20_000
	}
	s := w.newServer(leases, 0, insecureArgs(fmt.Sprintf("--max-sessions=%d", size))...)
	s.start()
	s.awaitReady()
	w.awaitLeading(s)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tb := newTable(t, fmt.Sprintf("%d holders, and %d more than leasesvc takes", size, flood))
	before := s.usage()
	names := func(prefix string, number int) []string {
		all := make([]string, number)
		for i := range all {
			all[i] = fmt.Sprintf("%s-%06d", prefix, i)
		}
		return all
	}
	honest := w.newRegistering(ctx, s.grpc)
	honest.register(names("honest", size-1)...) // awaitLeading has registered one
	full := s.usage()
	atMost(tb, "memory for each holder", (full.heap+full.other-before.heap-before.other)/int64(size), maxHolderMemory, func(n int64) string { return fmt.Sprintf("%d B", n) })
	refused := w.newRegistering(ctx, s.grpc).tryOnce(names("flood", flood))
	tb.add("holders refused beyond the limit", "%d of %d", refused, flood)
	if refused < flood {
		t.Errorf("%d of %d holders beyond the limit were refused, want all", refused, flood)
	}
	after := s.usage()
	atMost(tb, "memory for all refused holders", after.heap+after.other-full.heap-full.other, maxKept, mebibytes)
	atMost(tb, "beats of the other holders that were rejected", honest.beat(), 0, count)
}
