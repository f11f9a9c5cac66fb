package localterm_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/trivet-dev/trivet/internal/term/internal/localterm"
)

const (
	ttl    = 5 * time.Second
	margin = time.Second
)

var errGivenUp = errors.New("given up")

func newLease(t *testing.T, sent time.Time) *localterm.Lease {
	lease := localterm.NewLease(context.Background(), sent, ttl, margin)
	t.Cleanup(func() { lease.End(errors.New("the test is over")) })
	return lease
}

func wantRemaining(t *testing.T, lease *localterm.Lease, want time.Duration) {
	t.Helper()
	if got := lease.Remaining(); got != want {
		t.Errorf("remaining = %v, want %v", got, want)
	}
}

func TestLease_EndsAMarginBeforeItsTTLCountedFromTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := time.Now()
		time.Sleep(300 * time.Millisecond) // etcd takes its time to answer
		lease := newLease(t, sent)
		wantRemaining(t, lease, 3700*time.Millisecond)
		time.Sleep(3700*time.Millisecond - 1)
		synctest.Wait()
		if err := lease.Context().Err(); err != nil {
			t.Errorf("ended early: %v", err)
		}
		time.Sleep(1)
		synctest.Wait()
		if cause := context.Cause(lease.Context()); !errors.Is(cause, localterm.ErrLapsed) {
			t.Errorf("cause = %v, want ErrLapsed", cause)
		}
		wantRemaining(t, lease, 0)
	})
}

func TestLease_RenewalMovesTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := newLease(t, time.Now())
		for range 10 {
			time.Sleep(3 * time.Second)
			sent := time.Now()
			time.Sleep(200 * time.Millisecond)
			if !lease.Extend(sent, ttl) {
				t.Fatal("a live lease was not extended")
			}
			wantRemaining(t, lease, 3800*time.Millisecond)
		}
		synctest.Wait()
		if err := lease.Context().Err(); err != nil {
			t.Errorf("ended although renewed: %v", err)
		}
	})
}

func TestLease_AnOlderAcknowledgementDoesNotShortenIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := time.Now()
		lease := newLease(t, first)
		time.Sleep(2 * time.Second)
		lease.Extend(time.Now(), ttl)
		lease.Extend(first, ttl)
		wantRemaining(t, lease, 4*time.Second)
	})
}

func TestLease_DoesNotComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := newLease(t, time.Now())
		time.Sleep(4 * time.Second)
		if lease.Extend(time.Now(), ttl) {
			t.Error("a lapsed lease was extended")
		}
		wantRemaining(t, lease, 0)
	})
}

// A grant whose answer took longer than the lease lasts is over before it begins.
func TestLease_GrantedTooLateHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := newLease(t, time.Now().Add(-time.Minute))
		wantRemaining(t, lease, 0)
		synctest.Wait()
		if cause := context.Cause(lease.Context()); !errors.Is(cause, localterm.ErrLapsed) {
			t.Errorf("cause = %v, want ErrLapsed", cause)
		}
	})
}

func TestLease_FirstCauseStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := newLease(t, time.Now())
		lease.End(errGivenUp)
		lease.End(errors.New("too late"))
		time.Sleep(ttl)
		if cause := context.Cause(lease.Context()); !errors.Is(cause, errGivenUp) {
			t.Errorf("cause = %v, want the first", cause)
		}
	})
}

func TestTerm_ChecksCarriesAndGuards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := newLease(t, time.Now())
		term, giveUp := localterm.Begin(lease, localterm.Claim{Shard: 3, Epoch: 42, Key: "/key"})
		defer giveUp(nil)
		if err := term.Check(); err != nil {
			t.Errorf("Check of a live term: %v", err)
		}
		if carried, ok := localterm.FromContext(term.Context()); !ok || carried != term {
			t.Errorf("the term's context carries %v, %t", carried, ok)
		}
		guard, want := term.Guard(), clientv3.Compare(clientv3.CreateRevision("/key"), "=", 42)
		if diff := cmp.Diff(want.GetCompare(), guard.GetCompare(), protocmp.Transform()); diff != "" {
			t.Errorf("guard (-want +got):\n%s", diff)
		}
		if term.Shard() != 3 || term.Epoch() != 42 || term.Remaining() != 4*time.Second {
			t.Errorf("shard %d, epoch %d, remaining %v", term.Shard(), term.Epoch(), term.Remaining())
		}
	})
}

func TestTerm_GivenUpEndsAloneAndSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := newLease(t, time.Now())
		one, giveUp := localterm.Begin(lease, localterm.Claim{Shard: 1, Epoch: 10, Key: "/1"})
		other, keep := localterm.Begin(lease, localterm.Claim{Shard: 2, Epoch: 11, Key: "/2"})
		defer keep(nil)
		giveUp(errGivenUp)
		err := one.Check()
		if !errors.Is(err, localterm.ErrEnded) || !errors.Is(err, errGivenUp) {
			t.Errorf("Check = %v, want ErrEnded and the cause", err)
		}
		if want := "shard 1 at epoch 10: term has ended: given up"; err.Error() != want {
			t.Errorf("Check = %q, want %q", err, want)
		}
		if one.Remaining() != 0 {
			t.Errorf("remaining = %v", one.Remaining())
		}
		if err := other.Check(); err != nil {
			t.Errorf("the other term ended too: %v", err)
		}
	})
}

// At the bound the test's goroutine and the lease's timer become runnable together. Whichever runs
// first, the check refuses at that very moment.
func TestTerm_CheckDoesNotWaitForTheTimer(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			lease := newLease(t, time.Now())
			term, giveUp := localterm.Begin(lease, localterm.Claim{Shard: 1, Epoch: 10, Key: "/1"})
			defer giveUp(nil)
			time.Sleep(ttl - margin)
			if err := term.Check(); !errors.Is(err, localterm.ErrEnded) || !errors.Is(err, localterm.ErrLapsed) {
				t.Errorf("Check at the bound = %v, want ErrEnded because ErrLapsed", err)
			}
		})
	}
}

func TestFromContext_NoTerm(t *testing.T) {
	if term, ok := localterm.FromContext(context.Background()); ok || term != nil {
		t.Errorf("an empty context carries %v", term)
	}
}
