package rpcserver_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"math"
	"runtime"
	"slices"
	"sort"
	"strings"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	_ "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	_ "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	_ "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	_ "github.com/trivet-dev/trivet/proto/trivet/shadow/v1"
	_ "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	_ "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// maxFactor is how many times its limit the memory of one call may be.
const maxFactor = 16

// rawMessages sends and receives messages as they are encoded.
type rawMessages struct{}

var _ encoding.CodecV2 = rawMessages{}

func (rawMessages) Name() string { return "proto" }

func (rawMessages) Marshal(message any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(message.([]byte))}, nil
}

func (rawMessages) Unmarshal(data mem.BufferSlice, message any) error {
	*message.(*[]byte) = data.Materialize()
	return nil
}

// apiMethods returns all methods of Trivet's API, by their full names.
func apiMethods() map[string]protoreflect.MethodDescriptor {
	found := map[string]protoreflect.MethodDescriptor{}
	for service := range apiServices() {
		for i := range service.Methods().Len() {
			method := service.Methods().Get(i)
			found[fmt.Sprintf("/%s/%s", service.FullName(), method.Name())] = method
		}
	}
	return found
}

func apiServices() func(yield func(protoreflect.ServiceDescriptor) bool) {
	return func(yield func(protoreflect.ServiceDescriptor) bool) {
		protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
			if !strings.HasPrefix(string(file.Package()), "trivet.") || strings.HasPrefix(string(file.Package()), "trivet.test.") {
				return true
			}
			for i := range file.Services().Len() {
				if !yield(file.Services().Get(i)) {
					return false
				}
			}
			return true
		})
	}
}

// registerAll registers all services of the API. Their handlers read one message and answer an
// empty one, as generated code does.
func registerAll(t testing.TB, r grpc.ServiceRegistrar) {
	t.Helper()
	for service := range apiServices() {
		described := &grpc.ServiceDesc{ServiceName: string(service.FullName()), HandlerType: (*any)(nil)}
		for i := range service.Methods().Len() {
			method := service.Methods().Get(i)
			in, out, name := kindOf(t, method.Input()), kindOf(t, method.Output()), string(method.Name())
			if !method.IsStreamingClient() && !method.IsStreamingServer() {
				described.Methods = append(described.Methods, grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, decode func(any) error, chained grpc.UnaryServerInterceptor) (any, error) {
					request := in.New().Interface()
					if err := decode(request); err != nil {
						return nil, err
					}
					info := &grpc.UnaryServerInfo{Server: srv, FullMethod: "/" + string(service.FullName()) + "/" + name}
					return chained(ctx, request, info, func(context.Context, any) (any, error) { return out.New().Interface(), nil })
				}})
				continue
			}
			described.Streams = append(described.Streams, grpc.StreamDesc{
				StreamName: name, ServerStreams: method.IsStreamingServer(), ClientStreams: method.IsStreamingClient(),
				Handler: func(_ any, stream grpc.ServerStream) error {
					if err := stream.RecvMsg(in.New().Interface()); err != nil {
						return err
					}
					return stream.SendMsg(out.New().Interface())
				},
			})
		}
		r.RegisterService(described, struct{}{})
	}
}

func kindOf(t testing.TB, message protoreflect.MessageDescriptor) protoreflect.MessageType {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(message.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return kind
}

// attack is one encoded message.
type attack struct {
	what  string
	bytes []byte
}

// attacksOn returns messages of a type that fill a size: with each of its fields, also those in
// other messages, repeated at each level above it.
func attacksOn(message protoreflect.MessageDescriptor, size int) iter.Seq[attack] {
	return func(yield func(attack) bool) {
		var visit func(message protoreflect.MessageDescriptor, path []protoreflect.FieldDescriptor) bool
		visit = func(message protoreflect.MessageDescriptor, path []protoreflect.FieldDescriptor) bool {
			for i := range message.Fields().Len() {
				field := message.Fields().Get(i)
				here := append(path[:len(path):len(path)], field)
				for attack := range attacksBy(here, size) {
					if !yield(attack) {
						return false
					}
				}
				if field.Message() != nil && len(here) < 6 && !visit(field.Message(), here) {
					return false
				}
			}
			return true
		}
		_ = yield(attack{"unknown fields", filled(protowire.AppendVarint(protowire.AppendTag(nil, 15000, protowire.VarintType), 0), size)}) &&
			yield(attack{"no message", slices.Repeat([]byte{0xff}, size)}) && visit(message, nil)
	}
}

func attacksBy(path []protoreflect.FieldDescriptor, size int) iter.Seq[attack] {
	name := ""
	for _, field := range path {
		name += "." + string(field.Name())
	}
	last := path[len(path)-1]
	contents := map[string][]byte{"empty": nil} // a number has no other
	switch last.Kind() {
	case protoreflect.StringKind, protoreflect.BytesKind:
		contents["short"], contents["long"] = []byte("a"), slices.Repeat([]byte("a"), max(size-40, 0))
	case protoreflect.MessageKind:
		contents["short"] = []byte("a")
	}
	return func(yield func(attack) bool) {
		for kind, content := range contents {
			for level := range path {
				inner := content
				for i := len(path) - 1; i > level; i-- {
					inner = item(path[i], inner, 1)
				}
				repeated := filled(item(path[level], inner, 1), size)
				if packed := path[level]; level == len(path)-1 && packed.IsPacked() {
					repeated = item(packed, nil, max(size-40, 1))
				}
				for i := level - 1; i >= 0; i-- {
					repeated = wrapped(path[i], repeated)
				}
				if !yield(attack{fmt.Sprintf("%s %s, repeated at level %d", name, kind, level), repeated}) {
					return
				}
			}
			// As many items as the rules allow, at each level.
			most := content
			for i := len(path) - 1; i >= 0; i-- {
				one := item(path[i], most, 1)
				if len(one) == 0 {
					break
				}
				most = slices.Repeat(one, max(1, min(mostItems(path[i]), size/len(one))))
			}
			if !yield(attack{fmt.Sprintf("%s %s, as many as allowed", name, kind), most}) {
				return
			}
		}
	}
}

func mostItems(field protoreflect.FieldDescriptor) int {
	rules, _ := proto.GetExtension(field.Options(), validate.E_Field).(*validate.FieldRules)
	if most := rules.GetRepeated().GetMaxItems(); most > 0 {
		return int(most)
	}
	if field.Cardinality() == protoreflect.Repeated {
		return math.MaxInt
	}
	return 1
}

// item encodes a field; numbers are n zeros, packed if the field is.
func item(field protoreflect.FieldDescriptor, content []byte, n int) []byte {
	switch field.Kind() {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return wrapped(field, content)
	case protoreflect.DoubleKind, protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind:
		return protowire.AppendFixed64(protowire.AppendTag(nil, field.Number(), protowire.Fixed64Type), 0)
	case protoreflect.FloatKind, protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind:
		return protowire.AppendFixed32(protowire.AppendTag(nil, field.Number(), protowire.Fixed32Type), 0)
	}
	if n > 1 {
		return wrapped(field, make([]byte, n))
	}
	return protowire.AppendVarint(protowire.AppendTag(nil, field.Number(), protowire.VarintType), 0)
}

func wrapped(field protoreflect.FieldDescriptor, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, field.Number(), protowire.BytesType), content)
}

func filled(one []byte, size int) []byte {
	return slices.Repeat(one, max(1, (size-24)/max(1, len(one))))
}

// allBatching is a HolderAccess with callers that batch, or none.
type allBatching bool

func (allBatching) Begin(ctx context.Context, _ *authn.Caller, _ string) (context.Context, func(), error) {
	return ctx, func() {}, nil
}

func (b allBatching) Batches(context.Context, *authn.Caller) error {
	if !b {
		return status.Error(codes.PermissionDenied, "no class")
	}
	return nil
}

// wholeBytes is the limit of the server, which callers that batch have.
const wholeBytes = 1 << 20

// openQuota returns the limits of all methods, of messages only.
func openQuota(t *testing.T) (quota.Table, *quota.Quota) {
	t.Helper()
	table := quota.Methods()
	for name, limit := range table {
		limit.Rate, limit.Burst, limit.InFlight = 1e6, 1e6, 1000
		table[name] = limit
	}
	limits, err := quota.New(table, nil)
	if err != nil {
		t.Fatal(err)
	}
	return table, limits
}

// Whatever a caller sends, one call needs at most sixteen times the memory of its limit.
func TestServer_MemoryOfOneCallIsBoundedByItsLimit(t *testing.T) {
	if raceDetector {
		t.Skip("make memory runs this test")
	}
	for _, c := range []struct {
		what  string
		holds allBatching
	}{{"a caller with one holder", false}, {"a caller that batches", true}} {
		t.Run(c.what, func(t *testing.T) {
			table, limits := openQuota(t)
			conn := serveAll(t, limits, c.holds)
			methods := apiMethods()
			maps.DeleteFunc(methods, func(name string, _ protoreflect.MethodDescriptor) bool { return bool(c.holds) && !table[name].Batched })
			type costly struct {
				bytes  uint64
				factor float64
				what   string
			}
			var worst []costly
			calls := 0
			for _, name := range slices.Sorted(maps.Keys(methods)) {
				method := methods[name]
				limit := table[name].MaxBytes
				if limit == 0 || bool(c.holds) {
					limit = wholeBytes
				}
				for _, size := range []int{limit, wholeBytes - 64} {
					tried := 0
					for attack := range attacksOn(method.Input(), size) {
						if tried++; size > limit && tried > 4 { // refused for its length, whatever it says
							break
						}
						calls++
						used := uint64(math.MaxUint64)
						for range 5 { // buffers come from pools, which a collection empties
							one, _ := allocated(t, conn, method, name, attack.bytes)
							if used = min(used, one); used <= uint64(maxFactor*limit) {
								break
							}
						}
						what := fmt.Sprintf("%s: %d bytes, %s", name, len(attack.bytes), attack.what)
						if used > uint64(maxFactor*limit) {
							t.Errorf("%s: %d bytes were allocated, more than %d times the limit of %d", what, used, maxFactor, limit)
						}
						worst = append(worst, costly{used, float64(used) / float64(limit), what})
					}
				}
			}
			slices.SortFunc(worst, func(a, b costly) int { return int(b.factor*1000) - int(a.factor*1000) })
			for _, one := range worst[:min(5, len(worst))] {
				t.Logf("%.1f times the limit, %d bytes: %s", one.factor, one.bytes, one.what)
			}
			t.Logf("%d messages of %d methods", calls, len(methods))
			if calls < 10*len(methods) || len(methods) == 0 {
				t.Error("too few messages were tried")
			}
		})
	}
}

// A caller that batches may fill each list of a message. The items have two items in their own
// lists and all other fields, and the texts fill the limit of the server.
func TestServer_TakesTheLargestMessagesOfCallersThatBatch(t *testing.T) {
	table, limits := openQuota(t)
	conn := serveAll(t, limits, allBatching(true))
	tried := 0
	for name, method := range apiMethods() {
		if table[name].MaxBytes > 0 && !table[name].Batched {
			continue
		}
		tried++
		message := largest(t, kindOf(t, method.Input()), wholeBytes)
		used, err := allocated(t, conn, method, name, message)
		t.Logf("%s: %d bytes of memory for a message of %d", name, used, len(message))
		if err != nil || used > maxFactor*wholeBytes && !raceDetector || len(message) < wholeBytes*9/10 {
			t.Errorf("%s: a message of %d bytes: %v, and %d bytes were allocated; want it to be accepted with %d", name, len(message), err, used, maxFactor*wholeBytes)
		}
	}
	if tried != 3 {
		t.Errorf("%d methods take batches, want 3", tried)
	}
}

// largest returns the encoded message with the longest texts that fits a size.
func largest(t *testing.T, kind protoreflect.MessageType, size int) []byte {
	t.Helper()
	encoded := func(textBytes int) []byte {
		message := kind.New()
		fill(message, textBytes, math.MaxInt)
		raw, err := proto.Marshal(message.Interface())
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	return encoded(sort.Search(300, func(textBytes int) bool { return len(encoded(textBytes+1)) > size }))
}

// fill sets all fields of a message, with as many items in its lists as the rules allow, at most
// most.
func fill(message protoreflect.Message, textBytes, most int) {
	fields := message.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if !field.IsList() {
			message.Set(field, filledValue(field, message.NewField, textBytes))
			continue
		}
		list := message.Mutable(field).List()
		for range min(most, mostItems(field)) {
			list.Append(filledValue(field, func(protoreflect.FieldDescriptor) protoreflect.Value { return list.NewElement() }, textBytes))
		}
	}
}

func filledValue(field protoreflect.FieldDescriptor, empty func(protoreflect.FieldDescriptor) protoreflect.Value, textBytes int) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.MessageKind:
		value := empty(field)
		fill(value.Message(), textBytes, 2)
		return value
	case protoreflect.StringKind:
		rules, _ := proto.GetExtension(field.Options(), validate.E_Field).(*validate.FieldRules)
		longest := cmp.Or(int(rules.GetString().GetMaxLen()), textBytes)
		return protoreflect.ValueOfString(strings.Repeat("a", min(textBytes, longest)))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(1)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(1)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(1)
	default:
		return protoreflect.ValueOfInt64(1)
	}
}

func serveAll(t *testing.T, limits *quota.Quota, holders rpcserver.HolderAccess) *grpc.ClientConn {
	t.Helper()
	server := newServer(t, setup{authenticator: knownPeer(authn.Server), quota: limits, more: func(r grpc.ServiceRegistrar) { registerAll(t, r) }},
		rpcserver.Deps{Logger: slog.New(slog.DiscardHandler), Holders: holders, Unvalidated: []string{leasev1.HeartbeatService_StreamHeartbeats_FullMethodName}})
	listener := bufconn.Listen(64 << 10)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	conn := dial(t, listener)
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return conn
}

// allocated returns the bytes that one call allocates, also those of its client, and how the call
// ends.
func allocated(t *testing.T, conn *grpc.ClientConn, method protoreflect.MethodDescriptor, name string, request []byte) (bytes uint64, ended error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: method.IsStreamingClient(), ServerStreams: true}, name, grpc.ForceCodecV2(rawMessages{}))
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.SendMsg(request) // the answer says more
	_ = stream.CloseSend()
	var reply []byte
	for err == nil {
		err = stream.RecvMsg(&reply)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, err
}

// Decoders and the check of rights must read the same name, whatever the bytes are.
func FuzzRequestName(f *testing.F) {
	name := func(text string) []byte {
		encoded, err := proto.Marshal(&leasev1.GetLeaseRequest{Name: text})
		if err != nil {
			f.Fatal(err)
		}
		return encoded
	}
	f.Add(name("namespaces/a/leases/b"))
	f.Add(append(name("namespaces/a/leases/b"), name("namespaces/c/leases/d")...))
	f.Add(append(name("namespaces/a/leases/b"), 0x0a, 0x00))
	f.Add(append(name("a"), 0x08, 0x01))
	f.Add(append(name("a"), 0x0b, 0x0a, 0x01, 0x62, 0x0c)) // in a group
	f.Fuzz(func(t *testing.T, encoded []byte) {
		request := &leasev1.GetLeaseRequest{}
		if proto.Unmarshal(encoded, request) != nil {
			return
		}
		field := request.ProtoReflect().Descriptor().Fields().ByName("name")
		if got := rpcserver.LastString(encoded, field); got != request.GetName() {
			t.Errorf("%x: name %q, and the decoder reads %q", encoded, got, request.GetName())
		}
	})
}
