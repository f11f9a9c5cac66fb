package rpcserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// answering calls the handler through a, and says whether it was called.
func answering(t *testing.T, a *answers, id string, response proto.Message) (called bool) {
	t.Helper()
	checks := newRequestChecks((&leasev1.ReleaseLeaseRequest{}).ProtoReflect().Descriptor(), nil, map[protoreflect.FullName]*messageShape{})
	var handler grpc.UnaryHandler = func(context.Context, any) (any, error) {
		called = true
		return response, nil
	}
	if _, err := a.answer(t.Context(), checks, &leasev1.ReleaseLeaseRequest{RequestId: id}, "/m", handler); err != nil {
		t.Fatal(err)
	}
	return called
}

func TestAnswers_AreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnswers()
		answering(t, a, "first", nil)
		time.Sleep(answerAge - 1)
		if answering(t, a, "first", nil) {
			t.Error("an answer of less than ten minutes is forgotten")
		}
		time.Sleep(1)
		if !answering(t, a, "first", nil) {
			t.Error("an answer of ten minutes is kept")
		}
		for i := range maxAnswers {
			answering(t, a, fmt.Sprint(i), nil)
		}
		if !answering(t, a, "first", nil) {
			t.Error("the oldest of too many answers is kept")
		}
		large := wrapperspb.Bytes(make([]byte, maxAnswerBytes/2))
		answering(t, a, "large 1", large)
		answering(t, a, "large 2", large)
		if a.kept.Len() != 1 || len(a.byKey) != 1 || a.bytes != proto.Size(large) {
			t.Errorf("%d answers with %d bytes are kept, want the last one", a.kept.Len(), a.bytes)
		}
	})
}

func TestFind_LooksIntoMapsAndRecursiveMessages(t *testing.T) {
	// google.protobuf.Struct has maps of messages that contain themselves.
	message, err := structpb.NewStruct(map[string]any{"a": map[string]any{"b": []any{1.0, "text"}}})
	if err != nil {
		t.Fatal(err)
	}
	shape := shapeOf(message.ProtoReflect().Descriptor(), map[protoreflect.FullName]*messageShape{})
	if found := shape.find(message.ProtoReflect()); found != nil {
		t.Fatalf("find() = %v, want nothing", found)
	}
	inner := message.GetFields()["a"].GetStructValue().GetFields()["b"].GetListValue().GetValues()[1]
	inner.ProtoReflect().SetUnknown(protoreflect.RawFields{0xf8, 0x01, 0x01})
	found := shape.find(message.ProtoReflect())
	if found == nil {
		t.Fatal("find() = nil, want a field")
	}
	want := `invalid request: fields["a"].struct_value.fields["b"].list_value.values[1]: field number 31 of google.protobuf.Value is unknown`
	if got := found.status().Error(); !strings.Contains(got, want) {
		t.Errorf("error %q, want it to contain %q", got, want)
	}
}

func TestFind_AllocatesNothingForEachMessage(t *testing.T) {
	for name, c := range map[string]struct {
		message proto.Message
		limit   float64
	}{
		"small": {&leasev1.GetLeaseRequest{Name: "a"}, 0},
		"batch": {batch(100), 1}, // protobuf allocates one for each list
	} {
		message := c.message
		shape := shapeOf(message.ProtoReflect().Descriptor(), map[protoreflect.FullName]*messageShape{})
		allocations := testing.AllocsPerRun(100, func() {
			if shape.find(message.ProtoReflect()) != nil {
				t.Error("a known field is unknown")
			}
		})
		if allocations > c.limit {
			t.Errorf("%s: %v allocations, want %v", name, allocations, c.limit)
		}
	}
}

func batch(beats int) *leasev1.HeartbeatRequest {
	request := &leasev1.HeartbeatRequest{}
	for range beats {
		request.Beats = append(request.Beats, &leasev1.Beat{Holder: &leasev1.Holder{Class: "node", Name: "node-1", BootId: "b"}, Sequence: 1})
	}
	return request
}

func BenchmarkFind(b *testing.B) {
	for name, message := range map[string]proto.Message{"small": &leasev1.GetLeaseRequest{Name: "a"}, "batch of 100": batch(100)} {
		b.Run(name, func(b *testing.B) {
			shape := shapeOf(message.ProtoReflect().Descriptor(), map[protoreflect.FullName]*messageShape{})
			b.ReportAllocs()
			for b.Loop() {
				if shape.find(message.ProtoReflect()) != nil {
					b.Fatal("a known field is unknown")
				}
			}
		})
	}
}

func TestCallerOf_DiffersForDifferentIdentities(t *testing.T) {
	of := func(certificate *x509.Certificate) string {
		info := credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}}}
		return callerOf(peer.NewContext(t.Context(), &peer.Peer{AuthInfo: info}))
	}
	uri := &url.URL{Scheme: "spiffe", Host: "a", Path: "/b"}
	group := of(&x509.Certificate{Subject: pkix.Name{CommonName: "x", Organization: []string{uri.String()}}})
	named := of(&x509.Certificate{Subject: pkix.Name{CommonName: "x"}, URIs: []*url.URL{uri}})
	if group == named || named != of(&x509.Certificate{Subject: pkix.Name{CommonName: "x"}, URIs: []*url.URL{uri}}) {
		t.Errorf("callers %q and %q", group, named)
	}
}
