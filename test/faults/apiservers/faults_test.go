package apiservers

import (
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	// waitTimeout is well above the time of any single step on a loaded machine.
	waitTimeout = 30 * time.Second
	// loadMargin is the extra time that a loaded machine with two cores may need.
	loadMargin = 4 * time.Second
	// The promised times from a fault until the server is no longer published:
	killedRemovalTime = term.DefaultTTL + time.Second
	frozenRemovalTime = 15 * time.Second
	// gracefulRemovalTime applies to a graceful stop: the sidecar removes its own server.
	gracefulRemovalTime = 2 * time.Second
)

// checkRemoval waits until exactly the machines in want are published, and fails the test if that
// takes longer than promised.
func (f fixture) checkRemoval(what string, promise time.Duration, want ...*machine) {
	f.Helper()
	took := f.waitForPublished(promise+waitTimeout, want...)
	f.Logf("%s: removed after %v, promised within %v", what, took.Round(10*time.Millisecond), promise)
	if took > promise+loadMargin {
		f.Errorf("%s: removed after %v, promised within %v", what, took.Round(10*time.Millisecond), promise)
	}
}

// machineFault is one fault of a machine.
type machineFault struct {
	name         string
	within       time.Duration
	inject, undo func(*machine) error
}

var (
	serverKilled = machineFault{
		name: "server killed", within: killedRemovalTime,
		inject: func(m *machine) error { m.server.Kill(); return nil },
		undo:   func(m *machine) error { return m.server.Start() },
	}
	serverStopped = machineFault{
		name: "server stopped", within: frozenRemovalTime,
		inject: func(m *machine) error { return m.server.Stop() },
		undo:   func(m *machine) error { return m.server.Start() },
	}
	serverFrozen = machineFault{
		name: "server frozen", within: frozenRemovalTime,
		inject: func(m *machine) error { return m.server.Freeze() },
		undo:   func(m *machine) error { return m.server.Thaw() },
	}
	sidecarKilled = machineFault{
		name: "sidecar killed", within: killedRemovalTime,
		inject: func(m *machine) error { m.Kill(); return nil },
		undo:   func(m *machine) error { m.startSidecar(); return nil },
	}
	sidecarStopped = machineFault{
		name: "sidecar stopped", within: gracefulRemovalTime,
		inject: func(m *machine) error { return m.Stop() },
		undo:   func(m *machine) error { m.startSidecar(); return nil },
	}
	powerLost = machineFault{
		name: "power lost", within: killedRemovalTime,
		inject: func(m *machine) error { m.powerOff(); return nil },
		undo: func(m *machine) error {
			err := m.server.Start()
			m.startSidecar()
			return err
		},
	}
)

// checkFault injects a fault, checks that the other machines remain published, and reverts the
// fault.
func (f fixture) checkFault(fault machineFault, faulty *machine, healthy ...*machine) {
	f.Helper()
	if err := fault.inject(faulty); err != nil {
		f.Fatal(err)
	}
	f.checkRemoval(fault.name+" of "+faulty.address, fault.within, healthy...)
	if err := fault.undo(faulty); err != nil {
		f.Fatal(err)
	}
}

func TestServers_FaultsOfTheOtherMachine(t *testing.T) {
	testkit.LongTest(t, 1)
	f := newFixture(t)
	machines := f.startMachines("10.99.0.1", "10.99.0.2")
	leader, other := machines[0], machines[1]
	end := f.requirePublished(leader)
	for _, fault := range []machineFault{serverFrozen, serverKilled, sidecarKilled, powerLost} {
		f.checkFault(fault, other, leader)
		f.waitForPublished(waitTimeout, machines...)
	}
	end()
}

func TestServers_FaultsOfTheLeadersMachine(t *testing.T) {
	testkit.LongTest(t, 2)
	f := newFixture(t)
	machines := f.startMachines("10.99.1.1", "10.99.1.2")
	for _, fault := range []machineFault{serverKilled, serverFrozen, powerLost} {
		leader, other := f.leaderAndOther(machines)
		end := f.requirePublished(other)
		f.checkFault(fault, leader, other)
		f.waitForPublished(waitTimeout, machines...)
		end()
	}
}

func TestServers_GracefulStopRemovesTheLastEndpoint(t *testing.T) {
	f := newFixture(t)
	machines := f.startMachines("10.99.2.1", "10.99.2.2")
	first, last := machines[0], machines[1]
	end := f.requirePublished(last)
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	f.checkRemoval("graceful stop", gracefulRemovalTime, last)
	end()
	if err := last.Stop(); err != nil {
		t.Fatal(err)
	}
	f.checkRemoval("graceful stop of the last server", gracefulRemovalTime)
}

func TestServers_LastServerStaysPublishedWhileFrozen(t *testing.T) {
	testkit.LongTest(t, 3)
	f := newFixture(t)
	only := f.startMachines("10.99.3.1")[0]
	if err := only.server.Freeze(); err != nil {
		t.Fatal(err)
	}
	end := f.requirePublished(only)
	testkit.Pause(t.Context(), frozenRemovalTime+2*time.Second)
	end()
}
