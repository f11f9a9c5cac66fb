package term_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// told records what Config.OnSwitch was called with.
type told struct {
	mu    sync.Mutex
	calls [][]string
}

func (o *told) record(loops []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = append(o.calls, loops)
}

// now returns the loops that write, and how many calls there were.
func (o *told) now() ([]string, int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.calls) == 0 {
		return nil, 0
	}
	return o.calls[len(o.calls)-1], len(o.calls)
}

func inDryRun(loops string, o *told) option {
	return func(c *term.Config) { c.DryRun, c.OnSwitch = loops, o.record }
}

func wantSwitched(t *testing.T, o *told, want ...string) {
	t.Helper()
	testkit.Eventually(t, 5*time.Second, func() error {
		if got, _ := o.now(); !slices.Equal(got, want) {
			return fmt.Errorf("loops that write: %v, want %v", got, want)
		}
		return nil
	})
}

func switchesKey(t *testing.T) string {
	return etcdconn.KeyPrefix(clusterName(t)) + "switches/" + service
}

func TestSwitchLoop_EveryReplicaFollowsAndARestartKeepsIt(t *testing.T) {
	t.Parallel()
	cluster, h := etcd(t), newHistory()
	var atA, atB, atC told
	a := join(t, cluster, "a", h.body("a"), inDryRun("x,y", &atA))
	b := join(t, cluster, "b", h.body("b"), inDryRun("x,y", &atB))
	allHeld(t, h, 1)
	waitForMember(t, b)

	if err := a.SwitchLoop(t.Context(), "x", true); err != nil {
		t.Fatal(err)
	}
	wantSwitched(t, &atA, "x")
	wantSwitched(t, &atB, "x")
	if err := b.SwitchLoop(t.Context(), "y", true); err != nil {
		t.Fatal(err)
	}
	wantSwitched(t, &atA, "x", "y")
	if err := a.SwitchLoop(t.Context(), "z", true); !errors.Is(err, term.ErrNotDryRun) {
		t.Errorf("switch of a loop that is not in dry run: %v, want %v", err, term.ErrNotDryRun)
	}

	for _, p := range []*testReplica{a, b} {
		if err := p.leave(); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.SwitchLoop(t.Context(), "x", false); !errors.Is(err, term.ErrNoSession) {
		t.Errorf("switch by a replica that has left: %v, want %v", err, term.ErrNoSession)
	}
	c := join(t, cluster, "c", h.body("c"), inDryRun("x,y", &atC))
	waitFor(t, h, "c") // it knows the switch before its first term
	if got, calls := atC.now(); !slices.Equal(got, []string{"x", "y"}) || calls != 1 {
		t.Errorf("when its first term began, the replica knew %v after %d calls, want x and y at once", got, calls)
	}
	for _, loop := range []string{"x", "y"} {
		if err := c.SwitchLoop(t.Context(), loop, false); err != nil {
			t.Fatal(err)
		}
	}
	wantSwitched(t, &atC)
	if err := switchIsGone(t, c); err != nil {
		t.Error(err)
	}
	wantNoViolations(t, h)
}

// A loop that writes by its flags needs no switch. If it is in dry run once more, it must not
// write because of what was switched before.
func TestSwitchLoop_EndsWithTheDryRun(t *testing.T) {
	t.Parallel()
	cluster, h := etcd(t), newHistory()
	var first, again told
	a := join(t, cluster, "a", h.body("a"), inDryRun("x", &first))
	allHeld(t, h, 1)
	if err := a.SwitchLoop(t.Context(), "x", true); err != nil {
		t.Fatal(err)
	}
	wantSwitched(t, &first, "x")
	if err := a.leave(); err != nil {
		t.Fatal(err)
	}

	b := join(t, cluster, "b", h.body("b"))
	testkit.Eventually(t, 5*time.Second, func() error { return switchIsGone(t, b) })
	if err := b.leave(); err != nil {
		t.Fatal(err)
	}
	join(t, cluster, "c", h.body("c"), inDryRun("x", &again))
	waitFor(t, h, "c")
	if got, _ := again.now(); len(got) > 0 {
		t.Errorf("a new dry run writes %v", got)
	}
}

// What nothing can read switches nothing on, and is not overwritten.
func TestSwitchLoop_AMalformedKeySwitchesNothingOn(t *testing.T) {
	t.Parallel()
	cluster, h := etcd(t), newHistory()
	var log testkit.LogBuffer
	var o told
	a := join(t, cluster, "a", h.body("a"), inDryRun("x", &o), logTo(&log))
	allHeld(t, h, 1)
	if _, err := a.client.Put(t.Context(), switchesKey(t), "{"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 5*time.Second, func() error { return logged(&log, "ignoring a malformed key") })
	if err := a.SwitchLoop(t.Context(), "x", true); err == nil {
		t.Error("a malformed switch was overwritten")
	}
	if got, _ := o.now(); len(got) > 0 {
		t.Errorf("loops that write: %v", got)
	}
}

func switchIsGone(t *testing.T, p *testReplica) error {
	kept, err := p.client.Get(t.Context(), switchesKey(t))
	if err != nil {
		return err
	}
	if kept.Count > 0 {
		return fmt.Errorf("the switch is %q", kept.Kvs[0].Value)
	}
	return nil
}

// waitForMember waits until a replica is a member.
func waitForMember(t *testing.T, p *testReplica) {
	t.Helper()
	testkit.Eventually(t, 5*time.Second, p.Check)
}
