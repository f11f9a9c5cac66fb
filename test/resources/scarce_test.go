package resources

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"

	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	// maxHolderMemory bounds the memory for one holder.
	maxHolderMemory = 4 << 10
	// maxCollections bounds the part of the processor time for garbage collections, in percent.
	maxCollections = 50
)

// newBeating starts one leasesvc, and agents that beat there.
func newBeating(t *testing.T, args ...string) (w *world, s *replica, b *beating) {
	t.Helper()
	w = newWorld(t, false)
	s = w.newServer(leases, 0, args...)
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
	b = w.beat(nodeHolders(names), []string{s.GRPC}, func(int) func(string) (*grpc.ClientConn, error) { return plaintext })
	w.renewedSince(b, begin, startTimeout)
	return w, s, b
}

// starve lets a process run a part of each turn, for some time, and returns how long that took.
func (s *replica) starve(turn, running, total time.Duration) time.Duration {
	s.Helper()
	begin := time.Now()
	for time.Since(begin) < total {
		if err := s.Process().Freeze(); err != nil {
			s.Fatal(err)
		}
		testkit.Pause(context.Background(), turn-running)
		if err := s.Process().Thaw(); err != nil {
			s.Fatal(err)
		}
		testkit.Pause(context.Background(), running)
	}
	return time.Since(begin)
}

// expiries returns how many sessions have expired since the server started, also those that
// returned.
func (s *replica) expiries() int {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	reply, err := statusv1.NewDecisionServiceClient(s.dial(s.GRPC)).ListDecisions(ctx, &statusv1.ListDecisionsRequest{
		Actions: []statusv1.Decision_Action{statusv1.Decision_ACTION_LEASE_EXPIRED},
	})
	if err != nil {
		s.Fatal(err)
	}
	return len(reply.GetDecisions())
}

// starvedInterval and starvedGrace are shorter than the defaults, so that a stop that costs no term
// is longer than the grace period.
const starvedInterval, starvedGrace = 500 * time.Millisecond, 2 * time.Second

// starved is how a process runs a tenth of the time.
type starved struct {
	turn time.Duration
	// late and paused are the least parts of the time that the process must notice.
	late, paused float64
}

// A process that runs a tenth of the time, in short turns, is late but counts each beat in time. In
// long turns it cannot, so the time in which it does not run moves the deadlines. Neither expires
// the session of an agent that beats.
func TestScarceProcessor(t *testing.T) {
	for _, c := range []starved{
		{turn: 100 * time.Millisecond, late: 0.25},
		{turn: starvedGrace + 500*time.Millisecond, late: 0.5, paused: 0.5},
	} {
		t.Run(c.turn.String(), func(t *testing.T) { testScarceProcessor(t, c) })
	}
}

func testScarceProcessor(t *testing.T, c starved) {
	w, s, b := newBeating(t, "--heartbeat-interval="+starvedInterval.String(), "--heartbeat-grace-period="+starvedGrace.String())
	tb := newTable(t, fmt.Sprintf("leasesvc with %d agents runs a tenth of each %v", len(b.agents), c.turn))
	total := 3 * time.Second
	if *long {
		total = 30 * time.Second
	}
	cpu, before := s.kernel().CPU, s.metrics()
	took := s.starve(c.turn, c.turn/10, total)
	oldest, after := worstRenewal(b), s.metrics()
	tb.add("interval of the beats, and grace period", "%v, %v", starvedInterval, starvedGrace)
	tb.add("processor time in that time", "%s of %s", duration(s.kernel().CPU-cpu), duration(took))
	for _, noticed := range []struct {
		what, metric string
		least        float64
	}{
		{"late", "trivet_lease_late_seconds", c.late},
		{"paused, which moves the deadlines", "trivet_lease_paused_seconds", c.paused},
	} {
		seconds := after[noticed.metric] - before[noticed.metric]
		tb.add("time in which leasesvc noticed that it was "+noticed.what, "%.1f s", seconds)
		if least := noticed.least * took.Seconds(); seconds < least {
			t.Errorf("leasesvc noticed %.1f s in which it was %s, want %.1f s at least", seconds, noticed.what, least)
		}
	}
	tb.add("oldest accepted beat at the end of that time", "%s", duration(oldest))
	renewed := w.renewedSince(b, time.Now(), startTimeout)
	atMost(tb, "time after which all agents are renewed", percentile(renewed, 1), bounded(starvedInterval+time.Second), duration)
	atMost(tb, "sessions that expired meanwhile", s.expiries(), 0, count)
	const losses = "trivet_session_losses_total"
	atMost(tb, "sessions with etcd that were lost, after which none expires", after[losses]-before[losses], 0, func(n float64) string { return fmt.Sprint(n) })
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
	s.Change(func(c *childprocess.Config) { c.Env = append(c.Env, fmt.Sprintf("GOMEMLIMIT=%d", limit)) })
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
	atMost(tb, "sessions that expired", s.expiries(), 0, count)
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
	s := w.newServer(leases, 0, fmt.Sprintf("--max-sessions=%d", size))
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
	var honest []*registering
	for some := range slices.Chunk(names("honest", size-1), maxRegistered) { // awaitLeading has registered one
		r := w.newRegistering(ctx, s.GRPC)
		r.register(some...)
		honest = append(honest, r)
	}
	full := s.usage()
	atMost(tb, "memory for each holder", (full.heap+full.other-before.heap-before.other)/int64(size), maxHolderMemory, func(n int64) string { return fmt.Sprintf("%d B", n) })
	refused := w.newRegistering(ctx, s.GRPC).tryOnce(names("flood", flood))
	tb.add("holders refused beyond the limit", "%d of %d", refused, flood)
	if refused < flood {
		t.Errorf("%d of %d holders beyond the limit were refused, want all", refused, flood)
	}
	after := s.usage()
	atMost(tb, "memory for all refused holders", after.heap+after.other-full.heap-full.other, maxKept, mebibytes)
	rejected := 0
	for _, r := range honest {
		rejected += r.beat()
	}
	atMost(tb, "beats of the other holders that were rejected", rejected, 0, count)
}
