package rpcserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/audit"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

// named takes the user of a call from metadata "user", and fails for the user "revoked".
type named struct{ recheck func() error }

func (n named) Authenticate(_ context.Context, request authn.Request) (*authn.Caller, error) {
	caller := &authn.Caller{User: authn.Anonymous(), Peer: authn.Anonymous(), Address: request.Address}
	switch users := request.Values("user"); {
	case len(users) == 0:
		return caller, nil
	case users[0] == "revoked":
		return nil, authn.NotAuthenticated("the token is not valid")
	case users[0] == "panic":
		panic("boom")
	default:
		caller.User = authn.User{Name: users[0]}
		caller.Peer = caller.User
	}
	if n.recheck != nil {
		caller.Recheck = func(context.Context) error { return n.recheck() }
	}
	return caller, nil
}

// rights allows the users that it has.
type rights struct {
	mu    sync.Mutex // guards the fields below
	users map[string]bool
	err   error
	asked []authz.Attributes
}

func (r *rights) Review(_ context.Context, user authn.User, asked authz.Attributes) (authz.Decision, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, asked)
	return authz.Decision{Allowed: r.users[user.Name]}, r.err
}

func (r *rights) set(user string, allowed bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users[user], r.err = allowed, err
}

func as(ctx context.Context, user string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "user", user, "authorization", "Bearer canary-of-the-header")
}

func TestServer_DecidesAboutEachCaller(t *testing.T) {
	var calls int
	service := &leases{
		get: func(ctx context.Context, _ *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
			calls++
			return &leasev1.GetLeaseResponse{}, nil
		},
		beat: func(context.Context, *leasev1.HeartbeatRequest) (*leasev1.HeartbeatResponse, error) {
			calls++
			return &leasev1.HeartbeatResponse{}, nil
		},
	}
	allowed := &rights{users: map[string]bool{"ann": true}}
	r := start(t, setup{service: service, authenticator: named{}, authorizer: authz.New(allowed)})
	invalid := &leasev1.GetLeaseRequest{Name: "no name"}
	get := func(request *leasev1.GetLeaseRequest) func(context.Context) error {
		return func(ctx context.Context) error { _, err := r.client.GetLease(ctx, request); return err }
	}
	health := func(ctx context.Context) error {
		_, err := healthv1.NewHealthClient(r.conn).Check(ctx, &healthv1.HealthCheckRequest{})
		return err
	}
	beat := func(ctx context.Context) error { _, err := r.heartbeats.Heartbeat(ctx, validBeat()); return err }
	unknown := func(ctx context.Context) error {
		return r.conn.Invoke(ctx, "/trivet.lease.v1.LeaseService/DeleteEverything", validGet(), &leasev1.GetLeaseResponse{})
	}
	reflect := func(ctx context.Context) error {
		stream, err := reflectionv1.NewServerReflectionClient(r.conn).ServerReflectionInfo(ctx)
		if err == nil { // how the stream ended, if it has, is told by Recv
			_ = stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
			_, err = stream.Recv()
		}
		return err
	}
	for name, c := range map[string]struct {
		call  func(context.Context) error
		user  string
		code  codes.Code
		calls int
	}{
		"allowed":                             {get(validGet()), "ann", codes.OK, 1},
		"allowed, invalid":                    {get(invalid), "ann", codes.InvalidArgument, 0},
		"denied":                              {get(validGet()), "bob", codes.PermissionDenied, 0},
		"denied before validation":            {get(invalid), "bob", codes.PermissionDenied, 0},
		"anonymous":                           {get(validGet()), "", codes.Unauthenticated, 0},
		"anonymous, invalid":                  {get(invalid), "", codes.Unauthenticated, 0},
		"not authenticated":                   {get(validGet()), "revoked", codes.Unauthenticated, 0},
		"the authenticator panics":            {get(validGet()), "panic", codes.Internal, 0},
		"heartbeat of any caller with a name": {beat, "bob", codes.OK, 1}, // its handler decides about each item
		"heartbeat of an anonymous caller":    {beat, "", codes.Unauthenticated, 0},
		"health without a name":               {health, "", codes.OK, 0},
		"health with a token that is revoked": {health, "revoked", codes.OK, 0},
		"reflection without a name":           {reflect, "", codes.Unauthenticated, 0},
		"reflection":                          {reflect, "bob", codes.OK, 0},
		"unknown method without a name":       {unknown, "", codes.Unauthenticated, 0},
		"unknown method":                      {unknown, "bob", codes.Unimplemented, 0},
	} {
		t.Run(name, func(t *testing.T) {
			calls = 0
			ctx := t.Context()
			if c.user != "" {
				ctx = as(ctx, c.user)
			}
			err := c.call(ctx)
			if status.Code(err) != c.code || calls != c.calls {
				t.Errorf("%v after %d calls of the handler, want %v after %d", err, calls, c.code, c.calls)
			}
			if err != nil && rpcerror.ReasonOf(err) == "" {
				t.Errorf("%v has no reason", err)
			}
		})
	}
	if got := r.log.calls(t, "GetLease"); !slices.ContainsFunc(got, func(line map[string]string) bool { return line["user"] == "bob" }) {
		t.Errorf("no line names the user bob: %v", got)
	}
	if strings.Contains(r.log.String(), "canary-of-the-header") {
		t.Error("the log has the token of the header")
	}
}

// A request of a caller without rights is not decoded.
func TestServer_RefusedCallersHaveNoRequestDecoded(t *testing.T) {
	r := start(t, setup{service: &leases{}, authenticator: named{}})
	malformed := []byte{0xff, 0xff, 0xff}
	invoke := func(ctx context.Context) error {
		return r.conn.Invoke(ctx, leasev1.LeaseService_GetLease_FullMethodName, &malformed, &leasev1.GetLeaseResponse{}, grpc.ForceCodec(raw{}))
	}
	if err := invoke(t.Context()); status.Code(err) != codes.Unauthenticated {
		t.Errorf("anonymous: %v, want %v", err, codes.Unauthenticated)
	}
	if err := invoke(as(t.Context(), "ann")); status.Code(err) != codes.InvalidArgument || rpcerror.ReasonOf(err) != rpcerror.MalformedMessageReason {
		t.Errorf("with a name: %v, want %v of a request that cannot be decoded", err, rpcerror.MalformedMessageReason)
	}
	if r.log.calls(t, "GetLease") == nil {
		t.Error("the log has no line of a request that cannot be decoded")
	}
}

// raw sends bytes as they are, as the proto codec.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(message any) ([]byte, error) {
	if text, ok := message.(*[]byte); ok {
		return *text, nil
	}
	return nil, errors.New("no bytes")
}

func (raw) Unmarshal([]byte, any) error { return nil }

func TestServer_WatchEndsWithItsRight(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*rights, *error)
		want   codes.Code
		within time.Duration
	}{
		"the right is taken away": {func(r *rights, _ *error) { r.set("ann", false, nil) }, codes.PermissionDenied, 70 * time.Second},
		"the token is revoked":    {func(_ *rights, recheck *error) { *recheck = authn.NotAuthenticated("revoked") }, codes.Unauthenticated, 10 * time.Second},
		"no review is possible": {func(r *rights, recheck *error) {
			r.set("ann", true, errors.New("away"))
			*recheck = status.Error(codes.Unavailable, "away")
		}, codes.OK, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var recheck error
				allowed := &rights{users: map[string]bool{"ann": true}}
				service := &leases{watch: func(_ *leasev1.WatchLeasesRequest, stream grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
					<-stream.Context().Done()
					return stream.Context().Err()
				}}
				r := start(t, setup{service: service, authorizer: authz.New(allowed), authenticator: named{recheck: func() error {
					mu.Lock()
					defer mu.Unlock()
					return recheck
				}}})
				ctx, cancel := context.WithTimeout(as(t.Context(), "ann"), 15*time.Minute)
				defer cancel()
				stream, err := r.client.WatchLeases(ctx, &leasev1.WatchLeasesRequest{})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(3 * time.Minute)
				mu.Lock()
				c.change(allowed, &recheck)
				mu.Unlock()
				begun := time.Now()
				if c.want == codes.OK {
					time.AfterFunc(c.within, cancel)
				}
				_, err = stream.Recv()
				if took := time.Since(begun); c.want == codes.OK && took < c.within || c.want != codes.OK && (status.Code(err) != c.want || took > c.within) {
					t.Errorf("the watch ended with %v after %v, want %v within %v", err, took, c.want, c.within)
				}
				r.conn.Close()
			})
		})
	}
}

// counted counts the calls that need an identity.
type counted struct {
	named
	calls atomic.Int64
}

func (c *counted) Authenticate(ctx context.Context, request authn.Request) (*authn.Caller, error) {
	c.calls.Add(1)
	return c.named.Authenticate(ctx, request)
}

func TestServer_BeatsOnAStreamAskNothing(t *testing.T) {
	callers, allowed := &counted{}, &rights{users: map[string]bool{}}
	service := &leases{stream: func(stream grpc.BidiStreamingServer[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]) error {
		if user := authn.FromContext(stream.Context()).User.Name; user != "system:node:a" {
			t.Errorf("the handler sees the user %q", user)
		}
		for {
			if _, err := stream.Recv(); err != nil {
				return nil
			}
			if err := stream.Send(&leasev1.StreamHeartbeatsResponse{}); err != nil {
				return err
			}
		}
	}}
	r := start(t, setup{service: service, authenticator: callers, authorizer: authz.New(allowed), unvalidated: []string{leasev1.HeartbeatService_StreamHeartbeats_FullMethodName}})
	stream, err := r.heartbeats.StreamHeartbeats(as(t.Context(), "system:node:a"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if err := stream.Send(&leasev1.StreamHeartbeatsRequest{Sequence: uint64(i)}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	allowed.mu.Lock()
	defer allowed.mu.Unlock()
	if callers.calls.Load() != 1 || len(allowed.asked) != 0 {
		t.Errorf("100 beats: %d callers authenticated and %d rights reviewed, want 1 and 0", callers.calls.Load(), len(allowed.asked))
	}
}

// conflicting fails each mutation.
type conflicting struct {
	slicev1.UnimplementedSliceServiceServer
}

func (conflicting) ReconcileServiceSlices(context.Context, *slicev1.ReconcileServiceSlicesRequest) (*slicev1.ReconcileServiceSlicesResponse, error) {
	return nil, status.Error(codes.Aborted, "another writer was first")
}

func TestServer_MutationsAndDenialsHaveOneRecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.New(audit.Config{File: file, MaxBytes: 1 << 20, Backups: 1}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	limits, err := quota.New(quota.Methods(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- log.Run(ctx) }()
	service := &leases{get: func(context.Context, *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
		return &leasev1.GetLeaseResponse{}, nil
	}}
	r := start(t, setup{service: service, more: func(r grpc.ServiceRegistrar) { slicev1.RegisterSliceServiceServer(r, conflicting{}) }, authenticator: named{}, authorizer: authz.New(&rights{users: map[string]bool{"ann": true}}), audit: log, quota: limits})
	const token = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJlLW9m"
	reconcile := func(user, name string) {
		// The record says what came of it.
		_, _ = slicev1.NewSliceServiceClient(r.conn).ReconcileServiceSlices(as(t.Context(), user), &slicev1.ReconcileServiceSlicesRequest{Name: name})
	}
	for _, user := range []string{"ann", "bob", "revoked"} {
		_, _ = r.client.GetLease(as(t.Context(), user), validGet())
		reconcile(user, "namespaces/a/serviceslices/b")
	}
	reconcile("bob", "namespaces/a/serviceslices/"+token)
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(text)) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatal(err)
		}
		field := func(key string) string { value, _ := entry[key].(string); return value }
		got = append(got, strings.Join([]string{
			field("decision"), field("user"), field("method")[strings.LastIndex(field("method"), "/")+1:], field("object"), field("code"), field("reason"),
		}, " "))
	}
	want := []string{
		"allow ann ReconcileServiceSlices namespaces/a/serviceslices/b Aborted ABORTED",
		"deny bob GetLease namespaces/kube-node-lease/leases/node-1 PermissionDenied NOT_AUTHORIZED",
		"deny bob ReconcileServiceSlices namespaces/a/serviceslices/b PermissionDenied NOT_AUTHORIZED",
		"deny system:anonymous GetLease  Unauthenticated NOT_AUTHENTICATED",
		"deny system:anonymous ReconcileServiceSlices  Unauthenticated NOT_AUTHENTICATED",
		"deny bob ReconcileServiceSlices namespaces/a/serviceslices/<token> PermissionDenied NOT_AUTHORIZED",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("audit log (-want +got):\n%s", diff)
	}
	for place, content := range map[string]string{"audit log": string(text), "log": r.log.String()} {
		if strings.Contains(content, token) || strings.Contains(content, "canary-of-the-header") {
			t.Errorf("the %s has a token", place)
		}
	}
}
