package rpcclient_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

func TestDial_UnaryCallsAreTriedAgainWhileUnavailable(t *testing.T) {
	for name, c := range map[string]struct {
		answers  []error
		want     codes.Code
		attempts int64
	}{
		"at first":              {answers: []error{nil}, want: codes.OK, attempts: 1},
		"after a stop":          {answers: []error{rpcerror.ShuttingDown(), nil}, want: codes.OK, attempts: 2},
		"after an election":     {answers: []error{rpcerror.NotLeader("leasesvc", ""), rpcerror.NotLeader("leasesvc", ""), nil}, want: codes.OK, attempts: 3},
		"three at most":         {answers: []error{rpcerror.ShuttingDown(), rpcerror.ShuttingDown(), rpcerror.ShuttingDown(), nil}, want: codes.Unavailable, attempts: 3},
		"not what is elsewhere": {answers: []error{rpcerror.NotLeader("leasesvc", "10.0.0.7:7601"), nil}, want: codes.FailedPrecondition, attempts: 1},
		"not what will stay":    {answers: []error{rpcerror.New(codes.NotFound, "LEASE_NOT_FOUND", "none"), nil}, want: codes.NotFound, attempts: 1},
		"not what may repeat":   {answers: []error{errors.New("defect"), nil}, want: codes.Internal, attempts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service := &leases{get: func(_ context.Context, attempt int64) error { return c.answers[attempt-1] }}
				_, err := plain(t, service).GetLease(t.Context(), request())
				if got := service.attempts.Load(); status.Code(err) != c.want || got != c.attempts {
					t.Errorf("GetLease() = %v after %d attempts, want %v after %d", err, got, c.want, c.attempts)
				}
			})
		})
	}
}

func TestDial_StreamsAreNotTriedAgain(t *testing.T) {
	service := &leases{watch: rpcerror.ShuttingDown}
	watch, err := plain(t, service).WatchLeases(t.Context(), &leasev1.WatchLeasesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable || service.attempts.Load() != 1 {
		t.Errorf("the watch got %v after %d attempts, want %v after one", err, service.attempts.Load(), codes.Unavailable)
	}
}

func TestDial_DetailsArriveUnchanged(t *testing.T) {
	service := &leases{get: func(context.Context, int64) error { return rpcerror.NotLeader("leasesvc", "10.0.0.7:7601") }}
	_, err := plain(t, service).GetLease(t.Context(), request())
	if got := rpcerror.MetadataOf(err, rpcerror.RedirectAddressKey); rpcerror.ReasonOf(err) != rpcerror.NotLeaderReason || got != "10.0.0.7:7601" {
		t.Errorf("%v with address %q, want NOT_LEADER with 10.0.0.7:7601", err, got)
	}
}

func TestDial_PingsDoNotOffendTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := plain(t, &leases{get: func(context.Context, int64) error { return nil }})
		for range 3 {
			if _, err := client.GetLease(t.Context(), request()); err != nil {
				t.Fatal(err)
			}
			// Dozens of pings without a stream; a server that took them for a flood would hang up.
			time.Sleep(8 * time.Minute)
		}
		if got := client.dials.Load(); got != 1 {
			t.Errorf("%d connections in 24 idle minutes, want one", got)
		}
	})
}

func TestDial_LongListsFit(t *testing.T) {
	page := &leasev1.ListLeasesResponse{NextPageToken: strings.Repeat("x", 6<<20)}
	client := plain(t, &leases{list: func() *leasev1.ListLeasesResponse { return page }})
	got, err := client.ListLeases(t.Context(), &leasev1.ListLeasesRequest{})
	if err != nil || len(got.GetNextPageToken()) != 6<<20 {
		t.Errorf("ListLeases() of 6 MiB = %d bytes, %v", len(got.GetNextPageToken()), err)
	}
}

func TestDial_UserAgentNamesTheBuild(t *testing.T) {
	var agent []string
	client := plain(t, &leases{get: func(ctx context.Context, _ int64) error {
		agent = metadata.ValueFromIncomingContext(ctx, "user-agent")
		return nil
	}})
	if _, err := client.GetLease(t.Context(), request()); err != nil {
		t.Fatal(err)
	}
	if want := "trivet/" + identity.Version() + " "; len(agent) != 1 || !strings.HasPrefix(agent[0], want) {
		t.Errorf("user agent %q, want one that begins with %q", agent, want)
	}
}

func TestDial_DoesNotWaitForTheServer(t *testing.T) {
	conn, err := rpcclient.Dial("127.0.0.1:1", rpcclient.Config{Insecure: true}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("Dial() of an unused port = %v, want nil", err)
	}
	defer conn.Close()
	if _, err := leasev1.NewLeaseServiceClient(conn).GetLease(t.Context(), request()); status.Code(err) != codes.Unavailable {
		t.Errorf("GetLease() from an unused port = %v, want %v", err, codes.Unavailable)
	}
}

func TestDial_UnreadableFilesAreErrors(t *testing.T) {
	cfg := rpcclient.Config{TLS: identity.Files{CAFile: "/absent/ca.crt"}}
	conn, err := rpcclient.Dial("127.0.0.1:1", cfg, slog.New(slog.DiscardHandler))
	if err == nil {
		conn.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "/absent/ca.crt") {
		t.Errorf("Dial() = %v, want an error that names the file", err)
	}
}
