package rpcserver_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

func TestServer_OversizeUnaryRequestIsRefused(t *testing.T) {
	var reached bool
	r := start(t, setup{service: accepting(&reached)})
	request := beatsOf(strings.Repeat("a", rpcserver.DefaultConfig("").MaxRecvBytes))
	if _, err := r.heartbeats.Heartbeat(t.Context(), request); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("Heartbeat() of more than a message may have: %v, want %v", status.Code(err), codes.ResourceExhausted)
	}
	if reached {
		t.Error("the handler got an oversize request")
	}
	if _, err := r.heartbeats.Heartbeat(t.Context(), validBeat()); err != nil {
		t.Errorf("the next call on the connection: %v", err)
	}
}

func TestServer_OversizeStreamMessageEndsTheStream(t *testing.T) {
	r := start(t, setup{service: accepting(new(bool)), change: func(c *rpcserver.Config) { c.MaxRecvBytes = 1000 }})
	stream, err := r.heartbeats.StreamHeartbeats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&leasev1.StreamHeartbeatsRequest{Sequence: 1, Handles: make([]uint32, 2000)}); err != nil {
		t.Fatal(err)
	}
	if _, err = stream.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("answer to an oversize message: %v, want %v", err, codes.ResourceExhausted)
	}
}

func TestServer_OversizeHeadersAreAnnouncedToClients(t *testing.T) {
	r := start(t, setup{service: accepting(new(bool))})
	// The first call waits for the server's settings; without it the client would not know the
	// limit yet.
	if _, err := r.heartbeats.Heartbeat(t.Context(), validBeat()); err != nil {
		t.Fatal(err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "padding", strings.Repeat("a", 129<<10))
	if _, err := r.heartbeats.Heartbeat(ctx, validBeat()); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "header list size") {
		t.Errorf("Heartbeat() with 129 KiB of headers: %v, want the client to hold it back", err)
	}
}

// Only a gateway needs long headers, for the groups of the callers that it forwards.
func TestServer_LongHeadersAreForGateways(t *testing.T) {
	for role, want := range map[authn.Role]rpcerror.Reason{authn.Client: "MESSAGE_TOO_LARGE", authn.Server: "MESSAGE_TOO_LARGE", authn.Gateway: ""} {
		r := start(t, setup{authenticator: knownPeer(role), service: &leases{get: func(ctx context.Context, _ *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
			return &leasev1.GetLeaseResponse{}, nil
		}}})
		ctx := metadata.AppendToOutgoingContext(t.Context(), "padding", strings.Repeat("a", 100<<10))
		if _, err := r.client.GetLease(ctx, validGet()); rpcerror.ReasonOf(err) != want || (err == nil) != (want == "") {
			t.Errorf("role %d: %v, want %q", role, err, want)
		}
	}
}

// knownPeer is an Authenticator of one peer.
type knownPeer authn.Role

func (k knownPeer) Authenticate(context.Context, authn.Request) (*authn.Caller, error) {
	user := authn.User{Name: "peer"}
	return &authn.Caller{User: user, Peer: user, Credential: authn.Certificate, Role: authn.Role(k)}, nil
}

func TestServer_OversizeHeadersOfRawClientsAreRefused(t *testing.T) {
	var reached bool
	r := start(t, setup{service: accepting(&reached)})
	raw := connectRaw(t, r)
	var padding []hpack.HeaderField
	for i := range 10 {
		padding = append(padding, hpack.HeaderField{Name: fmt.Sprintf("padding-%d", i), Value: strings.Repeat("a", 1000)})
	}
	raw.call(leasev1.HeartbeatService_Heartbeat_FullMethodName, padding...)
	if got := raw.answer(); got != "grpc-status 8" || reached {
		t.Errorf("10 KiB of headers are answered with %q, handler reached: %t; want %q and false", got, reached, "grpc-status 8")
	}
}

// A path without its leading slash once passed authorization that compared full method names
// (CVE-2026-33186).
func TestServer_MalformedPathsAreRefused(t *testing.T) {
	for _, path := range []string{
		"trivet.lease.v1.LeaseService/Heartbeat",
		"//trivet.lease.v1.LeaseService/Heartbeat",
		"/trivet.lease.v1.LeaseService//Heartbeat",
		"/trivet.lease.v1.LeaseService/Heartbeat/",
		"/",
	} {
		t.Run(path, func(t *testing.T) {
			var reached bool
			r := start(t, setup{service: accepting(&reached)})
			raw := connectRaw(t, r)
			raw.call(path)
			if got := raw.answer(); got != "grpc-status 12" {
				t.Errorf("answered with %q, want %q (UNIMPLEMENTED)", got, "grpc-status 12")
			}
			if reached {
				t.Error("the handler was reached")
			}
		})
	}
}

func TestServer_RawCallReachesTheHandler(t *testing.T) {
	// The control of the tests above: the same bytes with a proper path do get through.
	var reached bool
	r := start(t, setup{service: accepting(&reached), unvalidated: []string{leasev1.HeartbeatService_Heartbeat_FullMethodName}})
	raw := connectRaw(t, r)
	raw.call(leasev1.HeartbeatService_Heartbeat_FullMethodName)
	if got := raw.answer(); got != "grpc-status 0" || !reached {
		t.Errorf("answered with %q, handler reached: %t; want %q and true", got, reached, "grpc-status 0")
	}
}

// rawClient sends HTTP/2 frames without the checks of a gRPC client.
type rawClient struct {
	t      *testing.T
	conn   net.Conn
	framer *http2.Framer
}

func connectRaw(t *testing.T, r *running) *rawClient {
	t.Helper()
	conn, err := r.listener.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	c := &rawClient{t: t, conn: conn, framer: http2.NewFramer(conn, conn)}
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	c.must(c.framer.WriteSettings())
	return c
}

// call sends one unary request with an empty message.
func (c *rawClient) call(path string, extra ...hpack.HeaderField) {
	c.t.Helper()
	fields := append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: path},
		{Name: ":authority", Value: "memory"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}, extra...)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range fields {
		c.must(encoder.WriteField(field))
	}
	c.must(c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}))
	c.must(c.framer.WriteData(1, true, make([]byte, 5)))
}

// answer returns how the server ended the call.
func (c *rawClient) answer() string {
	c.t.Helper()
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			c.t.Fatalf("wait for an answer: %v", err)
		}
		switch frame := frame.(type) {
		case *http2.RSTStreamFrame:
			return "RST_STREAM " + frame.ErrCode.String()
		case *http2.GoAwayFrame:
			return "GOAWAY " + frame.ErrCode.String()
		case *http2.MetaHeadersFrame:
			for _, field := range frame.Fields {
				if field.Name == "grpc-status" {
					return field.Name + " " + field.Value
				}
			}
		}
	}
}

func (c *rawClient) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}
