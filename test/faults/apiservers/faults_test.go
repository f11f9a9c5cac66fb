package apiservers

import (
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/term"
)

const (
	// soon is when what happens at once must have happened on a starved machine.
	waitTimeout = 30 * time.Second
	// starved is what a machine may add that runs all of this on two cores.
	loadMargin = 4 * time.Second
	// The promises: see README.md.
	killedRemovalTime = term.DefaultTTL + time.Second
	frozenRemovalTime = 15 * time.Second
	// withdrawnWithin is when a server that was stopped in good order is out: its sidecar takes it out itself.
	gracefulRemovalTime = 2 * time.Second
)

// out waits until only the machines of want are published and holds the time that it took to a promise.
func (f fixture) checkRemoval(what string, promise time.Duration, want ...*machine) {
	f.Helper()
	took := f.waitForPublished(promise+waitTimeout, want...)
	f.Logf("%s: out after %v, promised within %v", what, took.Round(10*time.Millisecond), promise)
	if took > promise+loadMargin {
		f.Errorf("%s: out after %v, promised within %v", what, took.Round(10*time.Millisecond), promise)
	}
}

func TestServers_FaultsOfTheOtherMachine(t *testing.T) {
	f := newFixture(t)
	machines := f.machines("10.99.0.1", "10.99.0.2")
	leader, other := machines[0], machines[1]
	leader.startSidecar()
	f.waitForPublished(waitTimeout, leader)
	other.startSidecar()
	f.waitForPublished(waitTimeout, leader, other)

	end := f.requirePublished(leader)
	if err := other.server.Freeze(); err != nil {
		t.Fatal(err)
	}
	f.checkRemoval("a server that hangs", frozenRemovalTime, leader)
	if err := other.server.Thaw(); err != nil {
		t.Fatal(err)
	}
	f.waitForPublished(waitTimeout, leader, other)
	other.server.Kill()
	f.checkRemoval("a server that is killed", killedRemovalTime, leader)
	if err := other.server.Start(); err != nil {
		t.Fatal(err)
	}
	f.waitForPublished(waitTimeout, leader, other)
	other.kill()
	f.checkRemoval("a server whose sidecar is killed", killedRemovalTime, leader)
	other.startSidecar()
	f.waitForPublished(waitTimeout, leader, other)
	other.powerOff()
	f.checkRemoval("a machine without power", killedRemovalTime, leader)
	end()
}

func TestServers_FaultsOfTheLeadersMachine(t *testing.T) {
	f := newFixture(t)
	machines := f.machines("10.99.1.1", "10.99.1.2")
	leader, other := machines[0], machines[1]
	leader.startSidecar()
	f.waitForPublished(waitTimeout, leader)
	other.startSidecar()
	f.waitForPublished(waitTimeout, leader, other)

	end := f.requirePublished(other)
	leader.server.Kill()
	f.checkRemoval("the leader's own server is killed", killedRemovalTime, other)
	end()
	if err := leader.server.Start(); err != nil {
		t.Fatal(err)
	}
	f.waitForPublished(waitTimeout, leader, other)

	// Who leads now is beside either; the one that leads is the one to strike.
	leader, other = f.leaderAndOther(machines)
	end = f.requirePublished(other)
	if err := leader.server.Freeze(); err != nil {
		t.Fatal(err)
	}
	f.checkRemoval("the leader's own server hangs", frozenRemovalTime, other)
	if err := leader.server.Thaw(); err != nil {
		t.Fatal(err)
	}
	f.waitForPublished(waitTimeout, leader, other)
	leader, other = f.leaderAndOther(machines)
	end()

	end = f.requirePublished(other)
	leader.powerOff()
	f.checkRemoval("the leader's machine without power", killedRemovalTime, other)
	end()
}

func TestServers_GracefulStopRemovesTheLastEndpoint(t *testing.T) {
	f := newFixture(t)
	machines := f.machines("10.99.2.1", "10.99.2.2")
	first, last := machines[0], machines[1]
	first.startSidecar()
	f.waitForPublished(waitTimeout, first)
	last.startSidecar()
	f.waitForPublished(waitTimeout, first, last)

	end := f.requirePublished(last)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	f.checkRemoval("a server that is stopped in good order", gracefulRemovalTime, last)
	end()
	if err := last.stop(); err != nil {
		t.Fatal(err)
	}
	f.checkRemoval("the last server, stopped in good order", gracefulRemovalTime)
}

func TestServers_LastServerStaysPublishedWhileFrozen(t *testing.T) {
	f := newFixture(t)
	only := f.machines("10.99.3.1")[0]
	only.startSidecar()
	f.waitForPublished(waitTimeout, only)
	if err := only.server.Freeze(); err != nil {
		t.Fatal(err)
	}
	end := f.requirePublished(only)
	pause(t.Context(), frozenRemovalTime+2*time.Second)
	end()
}
