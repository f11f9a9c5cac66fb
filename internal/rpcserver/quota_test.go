package rpcserver_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// knownCaller is an Authenticator of one caller.
type knownCaller struct{ user string }

func (k knownCaller) Authenticate(context.Context, authn.Request) (*authn.Caller, error) {
	user := authn.User{Name: k.user}
	return &authn.Caller{User: user, Peer: user, Credential: authn.Certificate}, nil
}

// denying is a Reviewer that counts.
type denying struct{ reviews int }

func (d *denying) Review(context.Context, authn.User, authz.Attributes) (authz.Decision, error) {
	d.reviews++
	return authz.Decision{}, nil
}

// serveWithQuota returns a client of a server with a quota, and what Serve returned, if it did.
func serveWithQuota(t *testing.T, table quota.Table, with setup) (leasev1.LeaseServiceClient, <-chan error) {
	t.Helper()
	limits, err := quota.New(table, nil)
	if err != nil {
		t.Fatal(err)
	}
	with.quota = limits
	server := newServer(t, with, rpcserver.Deps{Logger: slog.New(slog.DiscardHandler)})
	listener := bufconn.Listen(64 << 10)
	ctx, cancel := context.WithCancel(context.Background())
	served, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		served <- server.Serve(ctx, listener)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return leasev1.NewLeaseServiceClient(dial(t, listener)), served
}

func TestServer_DoesNotStartWithoutQuotaOfAMethod(t *testing.T) {
	table := quota.Methods()
	delete(table, leasev1.LeaseService_GetLease_FullMethodName)
	_, served := serveWithQuota(t, table, setup{service: &leases{}})
	if err := <-served; err == nil || !strings.Contains(err.Error(), leasev1.LeaseService_GetLease_FullMethodName) {
		t.Errorf("Serve() = %v, want an error that names the method", err)
	}
}

func TestServer_LimitsCallsBeforeTheirReview(t *testing.T) {
	table := quota.Methods()
	table[leasev1.LeaseService_GetLease_FullMethodName] = quota.Limit{Rate: 0.001, Burst: 3, InFlight: 1}
	reviewer := &denying{}
	client, _ := serveWithQuota(t, table, setup{service: &leases{}, authenticator: knownCaller{"ann"}, authorizer: authz.New(reviewer)})
	reasons := map[rpcerror.Reason]int{}
	for range 10 {
		_, err := client.GetLease(t.Context(), validGet())
		reasons[rpcerror.ReasonOf(err)]++
	}
	if reasons["NOT_AUTHORIZED"] != 3 || reasons["TOO_MANY_CALLS"] != 7 || reviewer.reviews > 3 {
		t.Errorf("the calls ended with %v after %d reviews, want 3 NOT_AUTHORIZED and 7 TOO_MANY_CALLS", reasons, reviewer.reviews)
	}
}

func TestServer_CountsWatchesUntilTheyEnd(t *testing.T) {
	table := quota.Methods()
	table[leasev1.LeaseService_WatchLeases_FullMethodName] = quota.Limit{Rate: 1000, Burst: 1000, InFlight: 2}
	started := make(chan struct{}, 10)
	client, _ := serveWithQuota(t, table, setup{authenticator: knownCaller{"ann"}, service: &leases{
		watch: func(_ *leasev1.WatchLeasesRequest, stream grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
			started <- struct{}{}
			<-stream.Context().Done()
			return nil
		},
	}})
	watch := func() (end func(), ended error) {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := client.WatchLeases(ctx, &leasev1.WatchLeasesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		failed := make(chan error, 1)
		go func() {
			_, err := stream.Recv()
			failed <- err
		}()
		select {
		case <-started:
			return func() { cancel(); <-failed }, nil
		case err := <-failed:
			return cancel, err
		}
	}
	endFirst, err := watch()
	if err != nil {
		t.Fatal(err)
	}
	endSecond, err := watch()
	if err != nil {
		t.Fatal(err)
	}
	defer endSecond()
	if end, err := watch(); rpcerror.ReasonOf(err) != "TOO_MANY_CALLS_IN_FLIGHT" {
		t.Errorf("a third watch ended with %v, want TOO_MANY_CALLS_IN_FLIGHT", err)
	} else {
		end()
	}
	endFirst()
	for { // the server ends the first watch later than its client
		end, err := watch()
		end()
		if err == nil {
			return
		}
		if rpcerror.ReasonOf(err) != "TOO_MANY_CALLS_IN_FLIGHT" {
			t.Fatal(err)
		}
	}
}

func TestServer_RefusesLargeRequests(t *testing.T) {
	table := quota.Methods()
	table[leasev1.LeaseService_GetLease_FullMethodName] = quota.Limit{Rate: 1000, Burst: 1000, InFlight: 10, MaxBytes: 100}
	reviewer := &denying{}
	client, _ := serveWithQuota(t, table, setup{service: &leases{}, authenticator: knownCaller{"ann"}, authorizer: authz.New(reviewer)})
	_, err := client.GetLease(t.Context(), &leasev1.GetLeaseRequest{Name: strings.Repeat("a", 100)})
	if rpcerror.ReasonOf(err) != "MESSAGE_TOO_LARGE" || reviewer.reviews > 0 {
		t.Errorf("GetLease() = %v after %d reviews, want MESSAGE_TOO_LARGE before any", err, reviewer.reviews)
	}
}

// Callers choose the names of unknown methods.
func TestServer_UnknownMethodsHaveAQuotaAndShortNames(t *testing.T) {
	limits, err := quota.New(quota.Methods(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, setup{service: &leases{}, authenticator: knownCaller{"ann"}, quota: limits})
	reasons := map[rpcerror.Reason]int{}
	for i := range 200 {
		err := r.conn.Invoke(t.Context(), fmt.Sprintf("/%s%d/Method", strings.Repeat("x", 4000), i), validGet(), &leasev1.GetLeaseResponse{})
		reasons[rpcerror.ReasonOf(err)]++
		if len(err.Error()) > 1000 {
			t.Fatalf("the answer has %d bytes", len(err.Error()))
		}
	}
	if reasons["TOO_MANY_CALLS"] < 100 || reasons["UNKNOWN_METHOD"] < 50 {
		t.Errorf("the calls ended with %v, want 50 UNKNOWN_METHOD and then TOO_MANY_CALLS", reasons)
	}
	lines := 0
	for line := range strings.Lines(r.log.String()) {
		lines++
		if len(line) > 2000 || !strings.Contains(line, `"level":"DEBUG"`) {
			t.Fatalf("line %.300s… of %d bytes", line, len(line))
		}
	}
	if lines < 200 {
		t.Errorf("%d lines at debug level, want one for each call", lines)
	}
}
