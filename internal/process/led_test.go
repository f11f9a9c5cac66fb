package process

import (
	"testing"

	"github.com/trivet-dev/trivet/internal/term"
)

func TestLed_WaitsForTheFirstHolderOnly(t *testing.T) {
	var holdings []term.Holding
	l := &led{holdings: func() []term.Holding { return holdings }}
	if l.check() == nil {
		t.Error("led before anything is known of a shard")
	}
	holdings = []term.Holding{{Shard: 0}, {Shard: 1}}
	if l.check() == nil {
		t.Error("led while no shard has a holder")
	}
	holdings[1].ReplicaID = "b"
	if err := l.check(); err != nil {
		t.Errorf("not led with a holder: %v", err)
	}
	holdings[1].ReplicaID = ""
	if err := l.check(); err != nil {
		t.Errorf("not led while a shard moves: %v", err)
	}
}
