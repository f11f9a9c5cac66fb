package slicecontroller

import (
	"log/slog"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// A worker finds a Service gone, and forgets it; in between it was made again.
func TestDrop_ServiceThatCameBackKeepsItsPass(t *testing.T) {
	e, err := New(Config{ManagedBy: slicetest.ManagedBy, Shards: 1, Limit: 100, Workers: 1}, Deps{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	work := e.ledger.open() // without workers
	defer work.ShutDown()
	h := newHolding(t.Context(), 0, nil)
	if err := e.ledger.hold(h); err != nil {
		t.Fatal(err)
	}
	h.begin()
	service := slicetest.Service("web")
	key := keyOf(service.Namespace, service.Name)
	e.PutService(service)
	e.drop(key, ErrNoService)
	if _, _, ok := h.take(key, service, newBudget(), time.Now()); !ok {
		t.Error("a Service that came back has no pass due")
	}
	e.DeleteService(service)
	e.drop(key, ErrNoService)
	if len(h.records) != 0 {
		t.Errorf("%d records are kept of a Service that is gone", len(h.records))
	}
}
