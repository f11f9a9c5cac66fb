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
func (p plane) out(what string, promise time.Duration, want ...*machine) {
	p.Helper()
	took := p.becomes(promise+soon, want...)
	p.Logf("%s: out after %v, promised within %v", what, took.Round(10*time.Millisecond), promise)
	if took > promise+starved {
		p.Errorf("%s: out after %v, promised within %v", what, took.Round(10*time.Millisecond), promise)
	}
}

func TestServers_ComeStopCrashAndHang(t *testing.T) {
	p := newPlane(t)
	machines := p.machines("10.99.0.1", "10.99.0.2")
	leader, other := machines[0], machines[1]
	leader.attend()
	p.becomes(soon, leader)
	other.attend()
	p.becomes(soon, leader, other)

	end := p.stays(leader)
	if err := other.server.Freeze(); err != nil {
		t.Fatal(err)
	}
	p.out("a server that hangs", hungWithin, leader)
	if err := other.server.Thaw(); err != nil {
		t.Fatal(err)
	}
	p.becomes(soon, leader, other)
	other.server.Kill()
	p.out("a server that is killed", deadWithin, leader)
	if err := other.server.Start(); err != nil {
		t.Fatal(err)
	}
	p.becomes(soon, leader, other)
	other.kill()
	p.out("a server whose sidecar is killed", deadWithin, leader)
	other.attend()
	p.becomes(soon, leader, other)
	other.lose()
	p.out("a machine without power", deadWithin, leader)
	end()
}

func TestServers_LeadersOwnIsStruck(t *testing.T) {
	p := newPlane(t)
	machines := p.machines("10.99.1.1", "10.99.1.2")
	leader, other := machines[0], machines[1]
	leader.attend()
	p.becomes(soon, leader)
	other.attend()
	p.becomes(soon, leader, other)

	end := p.stays(other)
	leader.server.Kill()
	p.out("the leader's own server is killed", deadWithin, other)
	end()
	if err := leader.server.Start(); err != nil {
		t.Fatal(err)
	}
	p.becomes(soon, leader, other)

	// Who leads now is beside either; the one that leads is the one to strike.
	leader, other = p.whoLeads(machines)
	end = p.stays(other)
	if err := leader.server.Freeze(); err != nil {
		t.Fatal(err)
	}
	p.out("the leader's own server hangs", hungWithin, other)
	if err := leader.server.Thaw(); err != nil {
		t.Fatal(err)
	}
	p.becomes(soon, leader, other)
	leader, other = p.whoLeads(machines)
	end()

	end = p.stays(other)
	leader.lose()
	p.out("the leader's machine without power", deadWithin, other)
	end()
}

func TestServers_LastOneLeavesNothingBehind(t *testing.T) {
	p := newPlane(t)
	machines := p.machines("10.99.2.1", "10.99.2.2")
	first, last := machines[0], machines[1]
	first.attend()
	p.becomes(soon, first)
	last.attend()
	p.becomes(soon, first, last)

	end := p.stays(last)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	p.out("a server that is stopped in good order", withdrawnWithin, last)
	end()
	if err := last.stop(); err != nil {
		t.Fatal(err)
	}
	p.out("the last server, stopped in good order", withdrawnWithin)
}

func TestServers_LastOneThatHangsStays(t *testing.T) {
	p := newPlane(t)
	only := p.machines("10.99.3.1")[0]
	only.attend()
	p.becomes(soon, only)
	if err := only.server.Freeze(); err != nil {
		t.Fatal(err)
	}
	end := p.stays(only)
	pause(t.Context(), hungWithin+2*time.Second)
	end()
}
