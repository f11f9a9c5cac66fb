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
	socket string

	mu      sync.Mutex // guards the fields below
	events  []string
	started int
	died    error // the error of all control planes
	dirty   error // the error of cleaning one

	endCleaning chan struct{} // unless nil, a cleaning ends when it is closed
	end         func() error  // of the pool
	endError    error         // what end must return
}

func newFakePool(t *testing.T) *fakePool {
	t.Helper()
	f := &fakePool{t: t, socket: Socket(t.TempDir())}
	listener, err := net.Listen("unix", f.socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- newPool(t.Logf, f.start).Serve(ctx, listener) }()
	f.end = sync.OnceValue(func() error {
		cancel()
		return <-served
	})
	t.Cleanup(func() {
		if err := f.end(); !errors.Is(err, f.endError) {
			t.Errorf("the pool ended with %v, want %v", err, f.endError)
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

func (f *fakePool) set(died, dirty error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.died, f.dirty = died, dirty
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
	return b, b.name()
}

// name returns that of the control plane.
func (b *fakeBorrower) name() string { return b.call.Reply.(*devcluster.Access).Dir }

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
	err, end := p.pool.dirty, p.pool.endCleaning
	p.pool.mu.Unlock()
	_ = p.do("clean", nil)
	if end != nil {
		<-end
	}
	return err
}

func (p *fakePlane) Err() error {
	p.pool.mu.Lock()
	defer p.pool.mu.Unlock()
	return p.pool.died
}

func TestPool_LendsACleanControlPlaneAgain(t *testing.T) {
	f := newFakePool(t)
	first, name := f.borrow()
	f.giveBack(first)
	f.waitFor("start 1", "clean 1")
	_, again := f.borrow()
	if name != "1" || again != "1" {
		t.Errorf("lent %s and then %s, want the same one twice", name, again)
	}
}

func TestPool_NeverLendsOneToTwoBorrowers(t *testing.T) {
	f := newFakePool(t)
	first, one := f.borrow()
	_, two := f.borrow()
	f.giveBack(first)
	f.waitFor("start 1", "start 2", "clean 1")
	_, three := f.borrow()
	_, four := f.borrow()
	if got, want := []string{one, two, three, four}, []string{"1", "2", "1", "3"}; !slices.Equal(got, want) {
		t.Errorf("lent %q, want %q", got, want)
	}
}

// A start takes longer than a cleaning. Only one borrower waits for one cleaning.
func TestPool_WaitsForACleaning(t *testing.T) {
	f := newFakePool(t)
	f.endCleaning = make(chan struct{})
	first, _ := f.borrow()
	f.giveBack(first)
	f.waitFor("start 1", "clean 1")
	second, third := f.connect(), f.connect()
	var waits, other *fakeBorrower
	select {
	case <-second.call.Done:
		waits, other = third, second
	case <-third.call.Done:
		waits, other = second, third
	}
	if name := other.name(); name != "2" {
		t.Errorf("lent %s while 1 is cleaned and 1 borrower waits for it, want 2", name)
	}
	close(f.endCleaning)
	<-waits.call.Done
	if name := waits.name(); name != "1" {
		t.Errorf("lent %s to the borrower that waits for a cleaning, want 1", name)
	}
}

func TestPool_CrashGivesBack(t *testing.T) {
	f := newFakePool(t)
	borrower, _ := f.borrow()
	if err := borrower.conn.Close(); err != nil { // as the kernel does for a dead process
		t.Fatal(err)
	}
	f.waitFor("start 1", "clean 1")
}

func TestPool_CrashOfAWaitingBorrowerLosesNothing(t *testing.T) {
	f := newFakePool(t)
	f.endCleaning = make(chan struct{})
	first, _ := f.borrow()
	f.giveBack(first)
	f.waitFor("start 1", "clean 1")
	if err := f.connect().conn.Close(); err != nil {
		t.Fatal(err)
	}
	close(f.endCleaning)
	f.waitFor("start 1", "clean 1", "clean 1")
	if _, name := f.borrow(); name != "1" {
		t.Errorf("lent %s, want 1", name)
	}
}

func TestPool_DiscardsABrokenControlPlane(t *testing.T) {
	for name, set := range map[string]struct {
		died, dirty error
		events      []string
	}{
		"died":  {died: errors.New("etcd died"), events: []string{"start 1", "stop 1"}},
		"dirty": {dirty: errors.New("a key remains"), events: []string{"start 1", "clean 1", "stop 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakePool(t)
			borrower, _ := f.borrow()
			f.set(set.died, set.dirty)
			f.endError = set.died
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
	f := newFakePool(t)
	client, _ := f.borrow()
	b := borrowed{client: client.Client}
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

func TestPool_EndStopsAll(t *testing.T) {
	f := newFakePool(t)
	first, _ := f.borrow()
	lent, _ := f.borrow()
	f.giveBack(first)
	f.waitFor("start 1", "start 2", "clean 1")
	if err := f.end(); err != nil {
		t.Fatal(err)
	}
	if err := (borrowed{client: lent.Client}).Err(); err == nil {
		t.Error("the connection of a borrower outlives the pool")
	}
	for _, stopped := range []string{"stop 1", "stop 2"} {
		if !slices.Contains(f.recorded(), stopped) {
			t.Errorf("events are %q, want %q among them", f.recorded(), stopped)
		}
	}
}
