package agent_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/shard"
)

// fakeCluster is three servers among which the test divides the holders.
type fakeCluster struct {
	network network

	mu    sync.Mutex // guards owner
	owner func(name string) string
}

// newCluster starts the servers a, b and c.
func newCluster(t *testing.T, owner func(name string) string) *fakeCluster {
	c := &fakeCluster{network: network{}, owner: owner}
	for _, address := range []string{"a", "b", "c"} {
		s := serve(t)
		s.away = func(name string) (string, bool) {
			c.mu.Lock()
			defer c.mu.Unlock()
			owner := c.owner(name)
			return owner, owner != address
		}
		c.network[address] = s
	}
	return c
}

// setOwner changes the owners of the holders.
func (c *fakeCluster) setOwner(owner func(name string) string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owner = owner
}

// received returns the messages to each server since the last call.
func (c *fakeCluster) received() map[string][]message {
	all := map[string][]message{}
	for address, s := range c.network {
		all[address] = s.received()
	}
	return all
}

// open returns the number of open streams of each server.
func (c *fakeCluster) open() map[string]int {
	open := map[string]int{}
	for address, s := range c.network {
		s.mu.Lock()
		open[address] = s.open
		s.mu.Unlock()
	}
	return open
}

func nodes(n int) []agent.Holder {
	holders := make([]agent.Holder, n)
	for i := range holders {
		holders[i] = node(fmt.Sprint("n", i))
	}
	return holders
}

// thirds divides the holders among a, b and c.
func thirds(name string) string { return string(rune('a' + shard.Of("node", name, 3))) }

// always returns one owner for all holders.
func always(address string) func(string) string { return func(string) string { return address } }

// ownedBy counts the holders of each owner.
func ownedBy(holders []agent.Holder, owner func(string) string) map[string]int {
	owned := map[string]int{}
	for _, h := range holders {
		owned[owner(h.Name)]++
	}
	return owned
}

func expectTargets(t *testing.T, a *agent.Agent, owned map[string]int) {
	t.Helper()
	want := []agent.TargetStatus(nil)
	for _, address := range []string{"a", "b", "c"} {
		if n := owned[address]; n > 0 {
			want = append(want, agent.TargetStatus{Target: address, Connected: true, Holders: n, Registered: n})
		}
	}
	if diff := cmp.Diff(want, a.Status().Targets); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
}

func TestRun_ThousandsOfHoldersRegisterInTwoRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, holders := newCluster(t, thirds), nodes(3000)
		a := run(t, agent.Config{Targets: []string{"b"}, Dial: c.network.dial, Holders: holders})
		advance(0) // no time passes: no holder pauses
		owned := ownedBy(holders, thirds)
		expectTargets(t, a, owned)
		for address, messages := range c.received() {
			registered := 0
			for _, m := range messages {
				registered += m.Registered
			}
			want := owned[address]
			if address == "b" {
				want = len(holders) // each holder tries it first
			}
			if registered != want || len(messages) > 4 {
				t.Errorf("%s: %d registered in %d messages, want %d in 4 at most", address, registered, len(messages), want)
			}
		}
		advance(interval)
		for address, messages := range c.received() {
			if diff := cmp.Diff([]message{{At: interval, Beats: owned[address]}}, messages); diff != "" {
				t.Errorf("beats at %s (-want +got):\n%s", address, diff)
			}
		}
	})
}

func TestRun_HoldersMoveWithTheirShardsAtTheNextBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, holders := newCluster(t, always("a")), nodes(2000)
		a := run(t, agent.Config{Targets: []string{"a", "b", "c"}, Dial: c.network.dial, Holders: holders})
		advance(interval / 2)
		c.received()
		c.setOwner(thirds)
		advance(interval / 2)
		owned := ownedBy(holders, thirds)
		expectTargets(t, a, owned)
		for address, messages := range c.received() {
			want := []message{{At: interval, Registered: owned[address]}}
			if address == "a" {
				want = []message{{At: interval, Beats: len(holders)}}
			}
			if diff := cmp.Diff(want, messages); diff != "" {
				t.Errorf("%s (-want +got):\n%s", address, diff)
			}
		}
	})
}

func TestRun_StreamWithoutHoldersCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, always("a"))
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: c.network.dial, Holders: nodes(10)})
		advance(time.Second)
		expect(t, "streams", map[string]int{"a": 1, "b": 0, "c": 0}, c.open())
		c.setOwner(always("c"))
		advance(interval)
		expect(t, "streams", map[string]int{"a": 0, "b": 0, "c": 1}, c.open())
		expectTargets(t, a, map[string]int{"c": 10})
		if got := a.Status(); got.LastError != "" || !got.Connected || got.Target != "c" {
			t.Errorf("status %+v, want no error", got)
		}
	})
}

func TestRun_HolderOfAnUnknownOwnerRegistersAgainWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, always(""))
		a := run(t, agent.Config{Targets: []string{"a", "b", "c"}, Dial: c.network.dial, Holders: nodes(100)})
		advance(time.Minute)
		total := 0
		for _, messages := range c.received() {
			for _, m := range messages {
				if m.Registered != 100 {
					t.Errorf("%d registered in one message, want all of them", m.Registered)
				}
			}
			total += len(messages)
		}
		// Pauses of 100 ms, 200 ms … 5 s allow 16 messages in a minute; jitter may halve each
		// pause.
		if total < 10 || total > 45 {
			t.Errorf("%d messages in a minute, want 10 to 45", total)
		}
		if got := a.Status(); len(got.Rejected) != 100 || got.Rejected[0].Reason != "NO_LEADER" {
			t.Errorf("rejected %v", got.Rejected)
		}
		c.setOwner(always("b"))
		advance(5 * time.Second)
		expectTargets(t, a, map[string]int{"b": 100})
	})
}

func TestRun_DisagreeingReplicasCauseFewMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, thirds)
		for address, other := range map[string]string{"a": "b", "b": "a"} {
			c.network[address].away = func(string) (string, bool) { return other, true }
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: c.network.dial, Holders: nodes(10)})
		advance(time.Minute)
		received := c.received()
		if n := len(received["a"]) + len(received["b"]); n < 30 || n > 135 { // three for each pause
			t.Errorf("%d messages in a minute, want 30 to 135", n)
		}
		c.network["a"].mu.Lock()
		c.network["a"].away = nil
		c.network["a"].mu.Unlock()
		advance(10 * time.Second)
		expectTargets(t, a, map[string]int{"a": 10})
	})
}

func TestRun_AbsentOwnerDoesNotDisturbOtherHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		half := func(absent string) func(string) string {
			return func(name string) string {
				if shard.Of("node", name, 2) == 0 {
					return "a"
				}
				return absent
			}
		}
		c, holders := newCluster(t, half("absent")), nodes(1000)
		owned := ownedBy(holders, half("absent"))
		dialled := 0
		var mu sync.Mutex
		a := run(t, agent.Config{
			Targets: []string{"a", "c"}, Holders: holders, Dial: countDials("absent", c.network.dial, &mu, &dialled),
		})
		advance(interval - time.Second) // the term of the absent owner has not ended
		if got := a.Status(); got.Registered != owned["a"] || len(got.Rejected) != owned["absent"] {
			t.Errorf("%d registered and %d rejected, want %d and %d", got.Registered, len(got.Rejected), owned["a"], owned["absent"])
		}
		mu.Lock()
		if dialled < 3 || dialled > 12 {
			t.Errorf("dialled the absent replica %d times in %v", dialled, interval)
		}
		mu.Unlock()
		c.setOwner(half("b"))
		advance(10 * time.Second)
		expectTargets(t, a, map[string]int{"a": owned["a"], "b": owned["absent"]})
		beats := 0
		for _, m := range c.received()["a"] {
			beats = max(beats, m.Beats)
		}
		if beats != owned["a"] {
			t.Errorf("%d beats in a message to a, want %d", beats, owned["a"])
		}
	})
}

// countDials counts the connections to one address.
func countDials(address string, dial func(string) (*grpc.ClientConn, error), mu *sync.Mutex, n *int) func(string) (*grpc.ClientConn, error) {
	return func(target string) (*grpc.ClientConn, error) {
		if target == address {
			mu.Lock()
			defer mu.Unlock()
			*n++
		}
		return dial(target)
	}
}

func TestRun_BrokenStreamDisturbsOnlyItsHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, holders := newCluster(t, thirds), nodes(300)
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: c.network.dial, Holders: holders})
		advance(time.Second)
		c.received()
		b := c.network["b"]
		b.mu.Lock()
		b.end = func(stream int) error {
			if stream == 1 {
				return rpcerror.ShuttingDown()
			}
			return nil
		}
		b.mu.Unlock()
		advance(2*interval + interval/4)
		owned := ownedBy(holders, thirds)
		expectTargets(t, a, owned)
		received := c.received()
		for _, address := range []string{"a", "c"} {
			want := []message{{At: interval, Beats: owned[address]}, {At: 2 * interval, Beats: owned[address]}}
			expect(t, address, want, received[address])
		}
	})
}

// A replica that is cut off lets each attempt wait for an answer. The others name it as the owner
// until they have its shards, and an agent that asks it twice in a row learns that too late.
func TestRun_SilentOwnerIsNotTriedTwiceInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, func(string) string { return "a" })
		a := run(t, agent.Config{Targets: []string{"a", "b"}, Dial: c.network.dial, Holders: nodes(1)})
		advance(time.Second)
		expectTargets(t, a, map[string]int{"a": 1})
		c.network["a"].silence()
		b := c.network["b"]
		for end := time.Now().Add(time.Minute); len(b.received()) == 0; advance(100 * time.Millisecond) { // it redirects to a
			if time.Now().After(end) {
				t.Fatal("the agent does not ask b")
			}
		}
		c.setOwner(func(string) string { return "b" })
		advance(10*time.Second + 5*time.Second + time.Second) // the longest wait for an answer, and the longest pause
		expectTargets(t, a, map[string]int{"b": 1})
	})
}

// The kernel ends a connection whose packets are lost after five seconds, before the watchdog does.
func TestRun_ConnectionThatEndsWithoutAnAnswerIsNotTriedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, func(string) string { return "a" })
		a := run(t, agent.Config{Targets: []string{"a", "b"}, Dial: c.network.dial, Holders: nodes(1)})
		advance(time.Second)
		expectTargets(t, a, map[string]int{"a": 1})
		c.network["a"].silence()
		c.setOwner(func(string) string { return "b" })
		advance(interval + 4*time.Second) // a beat has had no answer for five seconds
		c.network["a"].disconnect(t)
		advance(interval / 4) // the longest pause
		expectTargets(t, a, map[string]int{"b": 1})
	})
}

// Holders that moved are removed or rebooted.
func TestAddRemove_HoldersAtManyReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, holders := newCluster(t, thirds), nodes(300)
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: c.network.dial, Holders: holders})
		advance(time.Second)
		c.received()
		var rebooted []agent.Holder
		for _, h := range holders[:150] {
			h.BootID = "2"
			rebooted = append(rebooted, h)
		}
		if err := a.Add(rebooted...); err != nil {
			t.Fatal(err)
		}
		a.Remove(holders[150:]...)
		advance(0)
		owned := ownedBy(rebooted, thirds)
		expectTargets(t, a, owned)
		for address, messages := range c.received() {
			registered := 0
			for _, m := range messages {
				registered += m.Registered
			}
			if registered != owned[address] {
				t.Errorf("%s: %d registered, want %d, each at its old target", address, registered, owned[address])
			}
		}
		a.Remove(rebooted...)
		advance(0)
		expect(t, "streams", map[string]int{"a": 0, "b": 0, "c": 0}, c.open())
		if got := a.Status(); got.Holders != 0 || got.Connected || got.Targets != nil {
			t.Errorf("status %+v, want nothing", got)
		}
	})
}
