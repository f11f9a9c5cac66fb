package leasesvc_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

// house is a Leadership in which a test says who holds which shard.
type house struct {
	mu       sync.Mutex // guards what follows
	holdings []term.Holding
	ends     map[int]func() // of the terms held here
	body     term.Body      // nil until Run
	bodies   sync.WaitGroup
	ran      chan struct{} // closed by Run
}

func newHouse(shards int) *house {
	h := &house{holdings: make([]term.Holding, shards), ends: map[int]func(){}, ran: make(chan struct{})}
	for number := range h.holdings {
		h.holdings[number].Shard = number
	}
	return h
}

func (h *house) Run(ctx context.Context, body term.Body) error {
	h.body = body
	close(h.ran)
	<-ctx.Done()
	h.mu.Lock()
	for _, end := range h.ends {
		end()
	}
	h.mu.Unlock()
	h.bodies.Wait()
	return nil
}

func (h *house) Status() term.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return term.Status{Shards: append([]term.Holding(nil), h.holdings...)}
}

// take has this replica hold the shard.
func (h *house) take(number int, epoch int64) {
	<-h.ran
	t, ctx, end := termtest.NewTerm(number, epoch)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holdings[number] = term.Holding{Shard: number, ReplicaID: member.ID, Epoch: epoch, Here: true, GRPCAddress: member.GRPCAddress}
	h.ends[number] = end
	h.bodies.Go(func() { _ = h.body(ctx, t) })
}

// give has somebody else at the address hold the shard, or nobody if that is empty.
func (h *house) give(number int, address string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if end := h.ends[number]; end != nil {
		end()
		delete(h.ends, number)
	}
	h.holdings[number] = term.Holding{Shard: number, GRPCAddress: address}
}

// estate is a service of four shards, of which it holds 0 and 1, at epochs 10 and 11; 2 is held there, and 3 by nobody.
type estate struct {
	*fixture
	house *house
}

func newEstate(t *testing.T, loops ...string) *estate {
	t.Helper()
	e := &estate{house: newHouse(4)}
	e.fixture = newFixture(t, setup{leadership: e.house, loops: loops, config: func(c *leasesvc.Config) { c.Shards = 4 }})
	e.house.take(0, 10)
	e.house.take(1, 11)
	e.house.give(2, "there:7601")
	e.awaitShard(0, "LEASE_NOT_FOUND")
	e.awaitShard(1, "LEASE_NOT_FOUND")
	return e
}

// lose has a shard leave, and waits until its sessions have gone.
func (e *estate) lose(number int, to string) {
	e.t.Helper()
	e.house.give(number, to)
	e.awaitShard(number, rpcerror.NotLeaderReason)
}

// names returns one name in each shard.
func (e *estate) names() []string {
	var names []string
	for number := range e.shards {
		names = append(names, e.nameIn(number, "node"))
	}
	return names
}

func (e *estate) expectCounts(want map[string]int64) {
	e.t.Helper()
	e.eventually(func() error {
		got := e.service.Counts()
		for name, n := range want {
			if got[name] != n {
				return fmt.Errorf("%s is %d, want %d", name, got[name], n)
			}
		}
		return nil
	})
}
