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

// town is three servers that share the holders as their test says.
type town struct {
	network network

	mu    sync.Mutex // guards owner
	owner func(name string) string
}

// newTown has the servers a, b and c.
func newTown(t *testing.T, owner func(name string) string) *town {
	town := &town{network: network{}, owner: owner}
	for _, address := range []string{"a", "b", "c"} {
		s := serve(t)
		s.away = func(name string) (string, bool) {
			town.mu.Lock()
			defer town.mu.Unlock()
			owner := town.owner(name)
			return owner, owner != address
		}
		town.network[address] = s
	}
	return town
}

// change has other servers own the holders from now on.
func (o *town) change(owner func(name string) string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.owner = owner
}

// heard returns the messages that each server got since the last call.
func (o *town) heard() map[string][]message {
	all := map[string][]message{}
	for address, s := range o.network {
		all[address] = s.heard()
	}
	return all
}

// open returns how many streams each server has.
func (o *town) open() map[string]int {
	open := map[string]int{}
	for address, s := range o.network {
		s.mu.Lock()
		open[address] = s.open
		s.mu.Unlock()
	}
	return open
}

func fleetOf(n int) []agent.Holder {
	holders := make([]agent.Holder, n)
	for i := range holders {
		holders[i] = node(fmt.Sprint("n", i))
	}
	return holders
}

// thirds divides the holders over a, b and c.
func thirds(name string) string { return string(rune('a' + shard.Of("node", name, 3))) }

// always is one owner for all.
func always(address string) func(string) string { return func(string) string { return address } }

// ownedBy counts how many holders belong to each.
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
			want = append(want, agent.TargetStatus{Target: address, Connected: true, Holders: n, Welcome: n})
		}
	}
	if diff := cmp.Diff(want, a.Status().Targets); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
}

func TestRun_ThousandsOfHoldersAreAtHomeAfterTwoRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, holders := newTown(t, thirds), fleetOf(3000)
		a := run(t, agent.Config{Targets: []string{"b"}, Dial: o.network.dial, Holders: holders})
		after(0) // no time has passed: nobody has paused
		owned := ownedBy(holders, thirds)
		expectTargets(t, a, owned)
		for address, messages := range o.heard() {
			introduced := 0
			for _, m := range messages {
				introduced += m.Introduced
			}
			want := owned[address]
			if address == "b" {
				want = len(holders) // once each, at the replica where they begin
			}
			if introduced != want || len(messages) > 4 {
				t.Errorf("%s: %d introduced in %d messages, want %d in 4 at most", address, introduced, len(messages), want)
			}
		}
		after(interval)
		for address, messages := range o.heard() {
			if diff := cmp.Diff([]message{{At: interval, Beats: owned[address]}}, messages); diff != "" {
				t.Errorf("beats at %s (-want +got):\n%s", address, diff)
			}
		}
	})
}

func TestRun_HoldersFollowTheirShardsWithTheNextBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, holders := newTown(t, always("a")), fleetOf(2000)
		a := run(t, agent.Config{Targets: []string{"a", "b", "c"}, Dial: o.network.dial, Holders: holders})
		after(interval / 2)
		o.heard()
		o.change(thirds)
		after(interval / 2)
		owned := ownedBy(holders, thirds)
		expectTargets(t, a, owned)
		for address, messages := range o.heard() {
			want := []message{{At: interval, Introduced: owned[address]}}
			if address == "a" {
				want = []message{{At: interval, Beats: len(holders)}}
			}
			if diff := cmp.Diff(want, messages); diff != "" {
				t.Errorf("%s (-want +got):\n%s", address, diff)
			}
		}
	})
}

func TestRun_StreamOnWhichNobodyIsLeftIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t, always("a"))
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: o.network.dial, Holders: fleetOf(10)})
		after(time.Second)
		expect(t, "streams", map[string]int{"a": 1, "b": 0, "c": 0}, o.open())
		o.change(always("c"))
		after(interval)
		expect(t, "streams", map[string]int{"a": 0, "b": 0, "c": 1}, o.open())
		expectTargets(t, a, map[string]int{"c": 10})
		if got := a.Status(); got.LastError != "" || !got.Connected || got.Target != "c" {
			t.Errorf("status %+v, want no error: nothing broke", got)
		}
	})
}

func TestRun_HolderWhoseOwnerIsUnknownAsksAgainWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t, always(""))
		a := run(t, agent.Config{Targets: []string{"a", "b", "c"}, Dial: o.network.dial, Holders: fleetOf(100)})
		after(time.Minute)
		total := 0
		for _, messages := range o.heard() {
			for _, m := range messages {
				if m.Introduced != 100 {
					t.Errorf("%d introduced in one message, want all of them together", m.Introduced)
				}
			}
			total += len(messages)
		}
		// 100 ms, 200 ms … 5 s make 16 in a minute, and half of each pause may be left out.
		if total < 10 || total > 45 {
			t.Errorf("%d messages in a minute, want 10 to 45", total)
		}
		if got := a.Status(); len(got.Refused) != 100 || got.Refused[0].Reason != "NOT_LEADER" {
			t.Errorf("refused %v", got.Refused)
		}
		o.change(always("b"))
		after(5 * time.Second)
		expectTargets(t, a, map[string]int{"b": 100})
	})
}

func TestRun_ReplicasThatDisagreeDoNotPlayBall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTown(t, thirds)
		for address, other := range map[string]string{"a": "b", "b": "a"} {
			o.network[address].away = func(string) (string, bool) { return other, true }
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: o.network.dial, Holders: fleetOf(10)})
		after(time.Minute)
		heard := o.heard()
		if n := len(heard["a"]) + len(heard["b"]); n < 30 || n > 135 { // three for each pause
			t.Errorf("%d messages in a minute, want 30 to 135", n)
		}
		o.network["a"].mu.Lock()
		o.network["a"].away = nil
		o.network["a"].mu.Unlock()
		after(10 * time.Second)
		expectTargets(t, a, map[string]int{"a": 10})
	})
}

func TestRun_OwnerThatIsDeadIsWaitedForAndOthersDoNotNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		half := func(dead string) func(string) string {
			return func(name string) string {
				if shard.Of("node", name, 2) == 0 {
					return "a"
				}
				return dead
			}
		}
		o, holders := newTown(t, half("dead")), fleetOf(1000)
		owned := ownedBy(holders, half("dead"))
		dialled := 0
		var mu sync.Mutex
		a := run(t, agent.Config{
			Targets: []string{"a", "c"}, Holders: holders, Dial: countDials("dead", o.network.dial, &mu, &dialled),
		})
		after(interval - time.Second) // the old owner's session is not over yet
		if got := a.Status(); got.Welcome != owned["a"] || len(got.Refused) != owned["dead"] {
			t.Errorf("%d welcome and %d refused, want %d and %d", got.Welcome, len(got.Refused), owned["a"], owned["dead"])
		}
		mu.Lock()
		if dialled < 3 || dialled > 12 {
			t.Errorf("dialled the dead replica %d times in %v", dialled, interval)
		}
		mu.Unlock()
		o.change(half("b"))
		after(10 * time.Second)
		expectTargets(t, a, map[string]int{"a": owned["a"], "b": owned["dead"]})
		beats := 0
		for _, m := range o.heard()["a"] {
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

func TestRun_BrokenStreamDisturbsItsOwnHoldersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, holders := newTown(t, thirds), fleetOf(300)
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: o.network.dial, Holders: holders})
		after(time.Second)
		o.heard()
		b := o.network["b"]
		b.mu.Lock()
		b.end = func(stream int) error {
			if stream == 1 {
				return rpcerror.ShuttingDown()
			}
			return nil
		}
		b.mu.Unlock()
		after(2*interval + interval/4)
		owned := ownedBy(holders, thirds)
		expectTargets(t, a, owned)
		heard := o.heard()
		for _, address := range []string{"a", "c"} {
			want := []message{{At: interval, Beats: owned[address]}, {At: 2 * interval, Beats: owned[address]}}
			expect(t, address, want, heard[address])
		}
	})
}

// A moved holder that is removed, or whose node boots anew, leaves nothing behind.
func TestRemoveAdd_OfHoldersAtManyReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, holders := newTown(t, thirds), fleetOf(300)
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: o.network.dial, Holders: holders})
		after(time.Second)
		o.heard()
		var reborn []agent.Holder
		for _, h := range holders[:150] {
			h.BootID = "2"
			reborn = append(reborn, h)
		}
		if err := a.Add(reborn...); err != nil {
			t.Fatal(err)
		}
		a.Remove(holders[150:]...)
		after(0)
		owned := ownedBy(reborn, thirds)
		expectTargets(t, a, owned)
		for address, messages := range o.heard() {
			introduced := 0
			for _, m := range messages {
				introduced += m.Introduced
			}
			if introduced != owned[address] {
				t.Errorf("%s: %d introduced, want %d, each where it was", address, introduced, owned[address])
			}
		}
		a.Remove(reborn...)
		after(0)
		expect(t, "streams", map[string]int{"a": 0, "b": 0, "c": 0}, o.open())
		if got := a.Status(); got.Holders != 0 || got.Connected || got.Targets != nil {
			t.Errorf("status %+v, want nothing", got)
		}
	})
}
