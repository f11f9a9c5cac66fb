package rpcserver

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/trivet-dev/trivet/internal/authn"
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
	of := func(user, peer authn.User) string {
		return callerOf(authn.NewContext(t.Context(), &authn.Caller{User: user, Peer: peer, Forwarded: true}))
	}
	gateway := authn.User{Name: "trivet:gateway"}
	first := of(authn.User{Name: "ann", Groups: []string{"a", "b"}}, gateway)
	for name, c := range map[string]struct {
		user authn.User
		same bool
	}{
		"groups in another order":  {authn.User{Name: "ann", Groups: []string{"b", "a"}}, true},
		"another user":             {authn.User{Name: "bob", Groups: []string{"a", "b"}}, false},
		"another group":            {authn.User{Name: "ann", Groups: []string{"a"}}, false},
		"a user of the same name":  {authn.User{Name: "ann", UID: "2", Groups: []string{"a", "b"}}, false},
		"one group with a space":   {authn.User{Name: "ann", Groups: []string{"a b"}}, false},
		"one group with the quote": {authn.User{Name: "ann", Groups: []string{`a" "b`}}, false},
	} {
		if got := of(c.user, gateway); (got == first) != c.same {
			t.Errorf("%s: caller %s beside %s, want the same: %t", name, got, first, c.same)
		}
	}
	if of(authn.User{Name: "ann"}, gateway) != of(authn.User{Name: "ann"}, authn.User{Name: "trivet:gateway-2"}) {
		t.Error("a user is another caller behind another gateway; a repeated request may come through any")
	}
}
