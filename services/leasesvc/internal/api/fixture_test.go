package api

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// unlimited is a rate that no test reaches.
const unlimited = 10_000_000

// setup is what a test changes in its fixture.
type setup struct {
	maxSessions, maxRegistrations, maxMessages int
	furtherClasses                             []class.Class
	agents                                     []string
	authorizer                                 *authz.Authorizer
	maxLeasesPerIdentity                       int
}

// fixture is a Server with a running session controller that holds all shards. It has no gRPC
// server: a test calls the responders of streams.
type fixture struct {
	t        testing.TB
	server   *Server
	sessions *sessioncontroller.Controller
}

func newFixture(t testing.TB, s setup) *fixture {
	t.Helper()
	const shards = 64
	if s.maxSessions == 0 {
		s.maxSessions = 200_000
	}
	if s.maxRegistrations == 0 {
		s.maxRegistrations = 5000
	}
	if s.maxMessages == 0 {
		s.maxMessages = 5000
	}
	classes := append([]class.Class{class.DefaultNode()}, s.furtherClasses...)
	writes := class.DefaultWrites()
	var sessionClasses []sessioncontroller.Class
	for _, c := range classes {
		sessionClasses = append(sessionClasses, sessioncontroller.Class{
			Namespace: c.Namespace, Unowned: !c.OwnedByNode, Session: c.Session(), Writes: writes.For(&c),
		})
	}
	f := &fixture{t: t, sessions: sessioncontroller.New(sessioncontroller.Config{
		Classes: sessionClasses, Shards: shards, Limit: s.maxSessions, SessionsPerOwner: s.maxLeasesPerIdentity, Logger: slog.New(slog.DiscardHandler),
	})}
	owners := make(Owners, shards)
	for number := range owners {
		owners[number] = term.ShardStatus{Shard: number, Here: true}
	}
	f.server = New(Config{
		Service: "leasesvc", Cluster: "cluster-1", Replica: "replica-1", Version: "v1.2.3", Catalog: class.NewCatalog(classes, shards, s.agents...),
		MaxLeasesPerIdentity: s.maxLeasesPerIdentity, TokenReviewInterval: 10 * time.Second, Authorizer: s.authorizer,
		MaxRegistrations: s.maxRegistrations, MaxMessages: s.maxMessages,
		Sessions: func() Sessions { return f.sessions }, Owners: func() Owners { return owners },
		OnDelete: func(error) {},
	})
	f.run(shards)
	return f
}

// run runs the session controller until the end of the test, and returns when it holds all shards.
func (f *fixture) run(shards int) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		if err := f.sessions.Run(ctx); err != nil {
			f.t.Error(err)
		}
	}()
	term, endTerm := context.WithCancel(ctx)
	ended := make(chan error, shards)
	for number := range shards {
		go func() { ended <- f.sessions.RunShard(sessioncontroller.NewHeldShard(term, number, 1)) }()
	}
	f.t.Cleanup(func() {
		endTerm()
		for range shards {
			if err := <-ended; err != nil {
				f.t.Error(err)
			}
		}
		cancel()
		<-f.sessions.Done()
	})
	for {
		held, err := f.sessions.Silences(ctx)
		if err != nil {
			f.t.Fatal(err)
		}
		if len(held) == shards {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// client is a stream without a connection: the test sends messages to its responder.
type client struct {
	*responder
	t testing.TB
}

// unchecked is a caller of a server with --insecure.
func unchecked() *authn.Caller {
	return &authn.Caller{User: authn.Anonymous(), Peer: authn.Anonymous(), Unchecked: true}
}

// certified returns the caller with a certificate.
func certified(name string, groups ...string) *authn.Caller {
	user := authn.User{Name: name, Groups: append(groups, authn.AuthenticatedGroup)}
	return &authn.Caller{User: user, Peer: user, Credential: authn.Certificate, Expires: time.Now().Add(time.Hour)}
}

// node returns the agent of a Node.
func node(name string) *authn.Caller {
	return certified(authn.NodeUserPrefix+name, authn.NodesGroup)
}

// as returns the context of a call.
func as(t testing.TB, caller *authn.Caller) context.Context {
	return authn.NewContext(t.Context(), caller)
}

// begin returns the context of a call of a caller, as a gRPC server makes it, or why the call is
// refused before it is read.
func (f *fixture) begin(t testing.TB, caller *authn.Caller, method string) (context.Context, error) {
	ctx, end, err := f.server.Begin(as(t, caller), caller, method)
	if err == nil {
		t.Cleanup(end)
	}
	return ctx, err
}

// beat makes a call with beats by name.
func (f *fixture) beat(t testing.TB, caller *authn.Caller, request *leasev1.HeartbeatRequest) (*leasev1.HeartbeatResponse, error) {
	ctx, end, err := f.server.Begin(as(t, caller), caller, leasev1.HeartbeatService_Heartbeat_FullMethodName)
	if err != nil {
		return nil, err
	}
	defer end()
	return f.server.Heartbeat(ctx, request)
}

// open returns a client whose caller is not checked.
func (f *fixture) open(t testing.TB) *client { return f.openAs(t, unchecked()) }

// openAs returns a client of a caller.
func (f *fixture) openAs(t testing.TB, caller *authn.Caller) *client {
	sender := f.server.senders.open(caller)
	if sender != nil {
		sender.credential = f.server.watchCredential(caller)
		t.Cleanup(sender.credential.stop)
	}
	return &client{t: t, responder: newResponder(f.server, f.sessions, caller, sender)}
}

// send returns the response, which is valid until the next message.
func (c *client) send(request *leasev1.StreamHeartbeatsRequest) *leasev1.StreamHeartbeatsResponse {
	c.t.Helper()
	if err := c.respond(context.Background(), request); err != nil {
		c.t.Fatal(err)
	}
	return &c.response
}

// register sends a message that registers holders.
func (c *client) register(holders ...*leasev1.Holder) *leasev1.StreamHeartbeatsResponse {
	c.t.Helper()
	return c.send(&leasev1.StreamHeartbeatsRequest{Sequence: c.sequence + 1, Registrations: registrations(holders)})
}

// beatHandles sends a message that renews sessions.
func (c *client) beatHandles(handles ...uint32) *leasev1.StreamHeartbeatsResponse {
	c.t.Helper()
	return c.send(&leasev1.StreamHeartbeatsRequest{Sequence: c.sequence + 1, Handles: handles})
}

// report sends a message with one report.
func (c *client) report(handle uint32, report *leasev1.Report) *leasev1.StreamHeartbeatsResponse {
	c.t.Helper()
	return c.send(&leasev1.StreamHeartbeatsRequest{
		Sequence: c.sequence + 1, Reports: []*leasev1.HandleReport{{Handle: handle, Report: report}},
	})
}

func registrations(holders []*leasev1.Holder) []*leasev1.Registration {
	list := make([]*leasev1.Registration, len(holders))
	for i, h := range holders {
		list[i] = &leasev1.Registration{Holder: h}
	}
	return list
}

// lease returns the session of a Node.
func (f *fixture) lease(name string) (sessioncontroller.Lease, bool) {
	f.t.Helper()
	return f.leaseOf(&leasev1.Holder{Class: class.Node, Name: name})
}

// leaseOf returns the session of a holder.
func (f *fixture) leaseOf(of *leasev1.Holder) (sessioncontroller.Lease, bool) {
	f.t.Helper()
	holder, served := f.server.convert.holder(of)
	if !served {
		f.t.Fatalf("%v has no class", of)
	}
	key := holder.Key
	lease, found, err := f.sessions.Get(context.Background(), key, f.server.Catalog.ShardOf(key))
	if err != nil {
		f.t.Fatal(err)
	}
	return lease, found
}

// holders returns n holders whose names are numbered from first.
func holders(first, n int) []*leasev1.Holder {
	list := make([]*leasev1.Holder, n)
	for i := range list {
		list[i] = &leasev1.Holder{Class: class.Node, Name: fmt.Sprintf("node-%d", first+i), BootId: "7c1e6f0e-boot"}
	}
	return list
}
