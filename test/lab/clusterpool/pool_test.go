package clusterpool

import (
	"context"
	"errors"
	"net"
	"net/rpc"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakePool is a pool of control planes without servers. It records what happens to them.
type fakePool struct {
	t      *testing.T
	pool   *Pool
	socket string

	mu      sync.Mutex // guards the fields below
	events  []string
	started int
	died    error // the error of all control planes
	unclean error // the error of cleaning one
}

func newFakePool(t *testing.T, size int) *fakePool {
	t.Helper()
	f := &fakePool{t: t, socket: Socket(t.TempDir())}
	listener, err := net.Listen("unix", f.socket)
	if err != nil {
		t.Fatal(err)
	}
	f.pool = newPool(size, t.Logf, f.start)
	served := make(chan error, 1)
	go func() { served <- f.pool.Serve(listener) }()
	t.Cleanup(func() {
		if err := errors.Join(f.pool.Close(), <-served); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fakePool) start(context.Context) (controlPlane, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started++
	plane := &fakePlane{pool: f, name: strconv.Itoa(f.started)}
	f.events = append(f.events, "start "+plane.name)
	return plane, nil
}

func (f *fakePool) set(died, unclean error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.died, f.unclean = died, unclean
}

func (f *fakePool) recorded() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.events)
}

// waitFor waits until these are all events. It does not use testkit, which imports this package.
func (f *fakePool) waitFor(want ...string) {
	f.t.Helper()
	for deadline := time.Now().Add(time.Minute); !slices.Equal(f.recorded(), want); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("events are %q, want %q", f.recorded(), want)
		}
	}
}

// fakeBorrower is a connection, without the Cluster that Borrow makes of it.
type fakeBorrower struct {
	*rpc.Client
	conn net.Conn
	call *rpc.Call
}

// connect asks for a control plane and does not wait for it.
func (f *fakePool) connect() *fakeBorrower {
	f.t.Helper()
	conn, err := net.Dial("unix", f.socket)
	if err != nil {
		f.t.Fatal(err)
	}
	client := rpc.NewClient(conn)
	f.t.Cleanup(func() { _ = client.Close() })
	return &fakeBorrower{Client: client, conn: conn, call: client.Go(serviceName+".Borrow", struct{}{}, &devcluster.Access{}, nil)}
}

// borrow returns the name of the control plane.
func (f *fakePool) borrow() (*fakeBorrower, string) {
	f.t.Helper()
	b := f.connect()
	<-b.call.Done
	if b.call.Error != nil {
		f.t.Fatal(b.call.Error)
	}
	return b, b.call.Reply.(*devcluster.Access).Dir
}

func (f *fakePool) giveBack(b *fakeBorrower) {
	f.t.Helper()
	if err := b.Close(); err != nil {
		f.t.Fatal(err)
	}
}

type fakePlane struct {
	pool *fakePool
	name string
}

func (p *fakePlane) do(operation string, err error) error {
	p.pool.mu.Lock()
	defer p.pool.mu.Unlock()
	p.pool.events = append(p.pool.events, operation+" "+p.name)
	return err
}

func (p *fakePlane) Access() (devcluster.Access, error) { return devcluster.Access{Dir: p.name}, nil }
func (p *fakePlane) StopEtcd() error                    { return p.do("StopEtcd", nil) }
func (p *fakePlane) StartEtcd() error                   { return p.do("StartEtcd", nil) }
func (p *fakePlane) StopAPIServer() error               { return p.do("StopAPIServer", errors.New("refused")) }
func (p *fakePlane) StartAPIServer() error              { return p.do("StartAPIServer", nil) }
func (p *fakePlane) Stop() error                        { return p.do("stop", nil) }
func (p *fakePlane) clean(context.Context) error {
	p.pool.mu.Lock()
	err := p.pool.unclean
	p.pool.mu.Unlock()
	return p.do("clean", err)
}

func (p *fakePlane) Err() error {
	p.pool.mu.Lock()
	defer p.pool.mu.Unlock()
	return p.pool.died
}

func TestPool_LendsACleanControlPlaneAgain(t *testing.T) {
	f := newFakePool(t, 3)
	first, name := f.borrow()
	f.giveBack(first)
	f.waitFor("start 1", "clean 1")
	_, again := f.borrow()
	if name != "1" || again != "1" {
		t.Errorf("lent %s and then %s, want the same one twice", name, again)
	}
}

func TestPool_NeverLendsOneToTwoBorrowers(t *testing.T) {
	f := newFakePool(t, 2)
	first, one := f.borrow()
	_, two := f.borrow()
	if one == two {
		t.Fatalf("both have control plane %s", one)
	}
	third := f.connect()
	select {
	case <-third.call.Done:
		t.Fatalf("a third borrower has control plane %v of two that are lent", third.call.Reply)
	case <-time.After(50 * time.Millisecond):
	}
	f.giveBack(first)
	<-third.call.Done
	if got := third.call.Reply.(*devcluster.Access).Dir; third.call.Error != nil || got != one {
		t.Errorf("lent %s, %v, want %s, which was given back", got, third.call.Error, one)
	}
}

func TestPool_CrashGivesBack(t *testing.T) {
	f := newFakePool(t, 1)
	borrower, _ := f.borrow()
	if err := borrower.conn.Close(); err != nil { // as the kernel does for a dead process
		t.Fatal(err)
	}
	f.waitFor("start 1", "clean 1")
}

func TestPool_CrashOfAWaitingBorrowerLosesNothing(t *testing.T) {
	f := newFakePool(t, 1)
	first, _ := f.borrow()
	waiting := f.connect()
	if err := waiting.conn.Close(); err != nil {
		t.Fatal(err)
	}
	f.giveBack(first)
	f.waitFor("start 1", "clean 1", "clean 1")
	f.borrow()
}

func TestPool_DiscardsABrokenControlPlane(t *testing.T) {
	for name, set := range map[string]struct {
		died, unclean error
		events        []string
	}{
		"died":    {died: errors.New("etcd died"), events: []string{"start 1", "stop 1"}},
		"unclean": {unclean: errors.New("a key remains"), events: []string{"start 1", "clean 1", "stop 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakePool(t, 1)
			borrower, _ := f.borrow()
			f.set(set.died, set.unclean)
			f.giveBack(borrower)
			f.waitFor(set.events...)
			f.set(nil, nil)
			if _, next := f.borrow(); next != "2" {
				t.Errorf("lent %s after 1 was discarded, want 2", next)
			}
		})
	}
}

func TestPool_ForwardsOperationsOfTheBorrower(t *testing.T) {
	f := newFakePool(t, 1)
	client, _ := f.borrow()
	b := borrowed{client.Client}
	if err := errors.Join(b.StopEtcd(), b.StartEtcd(), b.StartAPIServer(), b.Err()); err != nil {
		t.Error(err)
	}
	if err := b.StopAPIServer(); err == nil || err.Error() != "refused" {
		t.Errorf("StopAPIServer = %v, want the error of the control plane", err)
	}
	if err := b.do("Stop"); err == nil {
		t.Error("the borrower is able to stop a control plane that it has borrowed")
	}
	f.waitFor("start 1", "StopEtcd 1", "StartEtcd 1", "StartAPIServer 1", "StopAPIServer 1")
}

func TestPool_CloseStopsAllAndRefusesBorrowers(t *testing.T) {
	f := newFakePool(t, 2)
	idle, _ := f.borrow()
	f.giveBack(idle)
	f.waitFor("start 1", "clean 1")
	f.borrow()
	lent, name := f.borrow()
	if name != "2" {
		t.Fatalf("lent %s, want 2", name)
	}
	waiting := f.connect()
	if err := f.pool.Close(); err != nil {
		t.Fatal(err)
	}
	<-waiting.call.Done
	if waiting.call.Error == nil {
		t.Error("a borrower got a control plane of a closed pool")
	}
	if err := (borrowed{lent.Client}).Err(); err == nil {
		t.Error("the connection of a borrower outlives the pool")
	}
	for _, stopped := range []string{"stop 1", "stop 2"} {
		if !slices.Contains(f.recorded(), stopped) {
			t.Errorf("events are %q, want %q among them", f.recorded(), stopped)
		}
	}
}
