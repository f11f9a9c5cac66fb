package apiservers

import (
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/term"
)

const (
	// soon is when what happens at once must have happened on a starved machine.
	soon = 30 * time.Second
	// starved is what a machine may add that runs all of this on two cores.
	starved = 4 * time.Second
	// The promises: see README.md.
	deadWithin = term.DefaultTTL + time.Second
	hungWithin = 15 * time.Second
	// withdrawnWithin is when a server that was stopped in good order is out: its sidecar takes it out itself.
	withdrawnWithin = 2 * time.Second
)

// out waits until only the machines of want are published and holds the time that it took to a promise.
func out(t *testing.T, what string, promise time.Duration, want ...*machine) {
	t.Helper()
	took := becomes(t, promise+soon, want...)
	t.Logf("%s: out after %v, promised within %v", what, took.Round(10*time.Millisecond), promise)
	if took > promise+starved {
		t.Errorf("%s: out after %v, promised within %v", what, took.Round(10*time.Millisecond), promise)
	}
}

func TestServers_ComeStopCrashAndHang(t *testing.T) {
	machines := newMachines(t, "10.99.0.1", "10.99.0.2")
	leader, other := machines[0], machines[1]
	leader.attend()
	becomes(t, soon, leader)
	other.attend()
	becomes(t, soon, leader, other)

	end := stays(t, leader)
	if err := other.server.Freeze(); err != nil {
		t.Fatal(err)
	}
	out(t, "a server that hangs", hungWithin, leader)
	if err := other.server.Thaw(); err != nil {
		t.Fatal(err)
	}
	becomes(t, soon, leader, other)
	other.server.Kill()
	out(t, "a server that is killed", deadWithin, leader)
	if err := other.server.Start(); err != nil {
		t.Fatal(err)
	}
	becomes(t, soon, leader, other)
	other.sidecar.kill()
	out(t, "a server whose sidecar is killed", deadWithin, leader)
	other.attend()
	becomes(t, soon, leader, other)
	other.lose()
	out(t, "a machine without power", deadWithin, leader)
	end()
}

func TestServers_LeadersOwnIsStruck(t *testing.T) {
	machines := newMachines(t, "10.99.1.1", "10.99.1.2")
	leader, other := machines[0], machines[1]
	leader.attend()
	becomes(t, soon, leader)
	other.attend()
	becomes(t, soon, leader, other)

	end := stays(t, other)
	leader.server.Kill()
	out(t, "the leader's own server is killed", deadWithin, other)
	end()
	if err := leader.server.Start(); err != nil {
		t.Fatal(err)
	}
	becomes(t, soon, leader, other)

	// Who leads now is beside either; the one that leads is the one to strike.
	leader, other = whoLeads(t, machines)
	end = stays(t, other)
	if err := leader.server.Freeze(); err != nil {
		t.Fatal(err)
	}
	out(t, "the leader's own server hangs", hungWithin, other)
	if err := leader.server.Thaw(); err != nil {
		t.Fatal(err)
	}
	becomes(t, soon, leader, other)
	leader, other = whoLeads(t, machines)
	end()

	end = stays(t, other)
	leader.lose()
	out(t, "the leader's machine without power", deadWithin, other)
	end()
}

func TestServers_LastOneLeavesNothingBehind(t *testing.T) {
	machines := newMachines(t, "10.99.2.1", "10.99.2.2")
	first, last := machines[0], machines[1]
	first.attend()
	becomes(t, soon, first)
	last.attend()
	becomes(t, soon, first, last)

	end := stays(t, last)
	if err := first.sidecar.stop(); err != nil {
		t.Fatal(err)
	}
	out(t, "a server that is stopped in good order", withdrawnWithin, last)
	end()
	if err := last.sidecar.stop(); err != nil {
		t.Fatal(err)
	}
	out(t, "the last server, stopped in good order", withdrawnWithin)
}

func TestServers_LastOneThatHangsStays(t *testing.T) {
	only := newMachines(t, "10.99.3.1")[0]
	only.attend()
	becomes(t, soon, only)
	if err := only.server.Freeze(); err != nil {
		t.Fatal(err)
	}
	end := stays(t, only)
	pause(t.Context(), hungWithin+2*time.Second)
	end()
}
