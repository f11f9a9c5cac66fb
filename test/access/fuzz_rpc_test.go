package access

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// streamLimit is how long a fuzz target waits for the first message of a stream that its caller may
// open: a watch may have none. With -fuzz it is short, because further inputs show more.
func streamLimit() time.Duration {
	if flag.Lookup("test.fuzz").Value.String() != "" {
		return 10 * time.Millisecond
	}
	return 50 * time.Millisecond
}

// FuzzRPC calls every method of every server with hostile requests, for several kinds of callers.
//
// where selects the method, by the caller. With form 0 data are the bytes of the request. Otherwise
// data change fields of a valid request, and of form-1 further requests on a stream.
func FuzzRPC(f *testing.F) {
	if coordinates() {
		for i, m := range possibleMethods() {
			f.Add(key(m.String()), byte(len(fuzzedNames)-1), byte(2), walkOf(m, i))
		}
		f.Fuzz(func(*testing.T, uint32, byte, byte, []byte) {})
		return
	}
	w := newFuzzedWorld(f)
	callers := fuzzedCallers(f, w)
	methods := methodsOf(f, callers[len(callers)-1])
	all := newRing(f, methods, method.String)
	possible := possibleMethods()
	for i, m := range all.targets {
		if !slices.ContainsFunc(possible, func(seeded method) bool { return seeded.String() == m.String() }) {
			f.Errorf("%v is without a seed while it is fuzzed: its package is not linked into this test", m)
		}
		seedRPC(f, m, i)
	}
	seen := &outcomes{}
	f.Cleanup(func() {
		f.Logf("%d methods of %d servers, %d callers:\n%v", len(methods), len(w.addresses), len(callers), seen)
	})
	f.Cleanup(func() { w.checkPanics(f) })
	f.Fuzz(func(t *testing.T, where uint32, by, form byte, data []byte) {
		call := hostileCall{method: all.at(where), by: callers[int(by)%len(callers)]}
		call.frames = framesOf(t, call.method, form, data)
		call.run(t)
		call.check(t)
		outcome := fmt.Sprintf("%s %s", status.Code(call.err), rpcerror.ReasonOf(call.err))
		if code := status.Code(call.err); code == codes.Unavailable || code == codes.Internal {
			outcome += " of " + call.method.name
		}
		seen.add(outcome)
	})
}

func (m method) String() string { return m.server + " " + m.name }

// possibleMethods are all methods at all servers, also those that a server does not have. Seeds for
// them need no servers.
func possibleMethods() []method {
	var found []method
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				for _, server := range programs {
					name := fmt.Sprintf("/%s/%s", methods.Get(j).Parent().FullName(), methods.Get(j).Name())
					found = append(found, method{server: server, name: name, descriptor: methods.Get(j)})
				}
			}
		}
		return true
	})
	slices.SortFunc(found, func(a, b method) int { return strings.Compare(a.String(), b.String()) })
	return found
}

var fuzzedNames = []string{"no certificate", "stranger", "own node", "other node", "server", "gateway forwards viewer", "viewer", "operator", "admin"}

// fuzzedCallers are kinds of callers with different rights. The last one may do everything.
func fuzzedCallers(t testing.TB, w *world) []connected {
	t.Helper()
	var found []connected
	for _, name := range fuzzedNames {
		all := callers()
		i := slices.IndexFunc(all, func(c caller) bool { return c.name == name })
		found = append(found, all[i].connect(t, w))
	}
	return found
}

// seedRPC adds inputs for one method. Each caller gets some methods, and the administrator all.
func seedRPC(f *testing.F, m method, i int) {
	f.Helper()
	where, admin, other := key(m.String()), byte(len(fuzzedNames)-1), byte(i%len(fuzzedNames))
	f.Add(where, admin, byte(1), []byte(nil))
	f.Add(where, other, byte(1), []byte(nil))
	f.Add(where, admin, byte(0), []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Add(where, admin, byte(0), []byte{0x0a, 0x02, 0xff, 0xfe})
	f.Add(where, admin, byte(2), walkOf(m, i))
}

// walkOf returns choices that change each field of a request once.
func walkOf(m method, i int) []byte {
	var walk []byte
	for field := range m.descriptor.Input().Fields().Len() {
		walk = append(walk, byte(field), byte(i%14), byte(i+field))
	}
	return walk
}

// hostileCall is one call and how it ended.
type hostileCall struct {
	method  method
	by      connected
	frames  [][]byte
	replies [][]byte
	err     error
	took    time.Duration
}

// framesOf returns the messages of a call.
func framesOf(t *testing.T, m method, form byte, data []byte) [][]byte {
	if form == 0 {
		return [][]byte{data}
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(m.descriptor.Input().FullName())
	if err != nil {
		t.Fatal(err)
	}
	frames := 1
	if m.descriptor.IsStreamingClient() {
		frames = 1 + int(form-1)%4
	}
	var found [][]byte
	valid := requestOf(t, m)
	c := &choices{rest: data}
	for i := range frames {
		message := kind.New()
		if i == 0 || len(c.rest) > 0 && c.rest[0]%2 == 0 {
			proto.Merge(message.Interface(), valid) // a later one without registrations needs none
		}
		disturb(message, c)
		frame, err := encode(message.Interface())
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, frame)
	}
	return found
}

// frames is a codec that sends and keeps bytes as they are.
type frames struct{}

func (frames) Name() string { return "proto" }

func (frames) Marshal(message any) ([]byte, error) {
	if frame, ok := message.(*[]byte); ok {
		return *frame, nil
	}
	return nil, errors.New("no frame")
}

func (frames) Unmarshal(data []byte, message any) error {
	into, ok := message.(*[]byte)
	if !ok {
		return errors.New("no frame")
	}
	*into = slices.Clone(data)
	return nil
}

func (c *hostileCall) streams() bool {
	return c.method.descriptor.IsStreamingClient() || c.method.descriptor.IsStreamingServer()
}

// right returns what the table of expectations says.
func (c *hostileCall) right() answer {
	return expected(may, c.by.right, kindOf(c.method.name))
}

func (c *hostileCall) run(t *testing.T) {
	if c.streams() {
		c.by.awaitReset(t, c.method.server)
	}
	ctx, cancel := context.WithTimeout(c.by.ctx, callLimit)
	defer cancel()
	began := time.Now()
	defer func() { c.took = time.Since(began) }()
	conn := c.by.conns[c.method.server]
	if !c.streams() {
		var reply []byte
		if c.err = conn.Invoke(ctx, c.method.name, &c.frames[0], &reply, grpc.ForceCodec(frames{})); c.err == nil {
			c.replies = append(c.replies, reply)
		}
		return
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, c.method.name, grpc.ForceCodec(frames{}))
	if err != nil {
		c.err = err
		return
	}
	endless := c.right() == allowed
	if endless {
		defer time.AfterFunc(streamLimit(), cancel).Stop()
	}
	for i := range c.frames {
		if err := stream.SendMsg(&c.frames[i]); err != nil {
			break // the server has ended the stream; its receiver has the cause
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for range len(c.frames) {
		var reply []byte
		if c.err = stream.RecvMsg(&reply); c.err != nil {
			break
		}
		c.replies = append(c.replies, reply)
	}
	if errors.Is(c.err, io.EOF) || status.Code(c.err) == codes.Canceled && endless {
		c.err = nil
	}
}

func (c *hostileCall) String() string {
	return fmt.Sprintf("%s %s, %s, %.200q: %v after %v", c.method.server, c.method.name, c.by.name, c.frames, c.err, c.took)
}

// check fails if the end of the call breaks a rule that no request may break.
func (c *hostileCall) check(t *testing.T) {
	for _, reply := range c.replies {
		c.checkReply(t, reply)
	}
	if c.err == nil {
		if right := c.right(); right == notAuthenticated || right == notAuthorized && !c.decidesEachItem() {
			t.Errorf("%v, want %s", c, right)
		}
		return
	}
	said := status.Convert(c.err)
	reason := string(rpcerror.ReasonOf(c.err))
	checkText(t, c.method.name+": message", said.Message())
	if grpcOwn := !strings.HasPrefix(c.method.name, "/trivet."); !grpcOwn || reason == "NOT_AUTHENTICATED" {
		if code, registered := registeredReasons()[reason]; (!registered || code != said.Code()) && !isTooLarge(said) {
			t.Errorf("%v: reason %q is not registered with the code", c, reason)
		}
		if said.Code() == codes.Internal || said.Code() == codes.Unknown || said.Code() == codes.DeadlineExceeded {
			t.Errorf("%v: a request causes %s", c, said.Code())
		}
	}
	if reason == string(rpcerror.ValidationFailedReason) && !namesField(said) {
		t.Errorf("%v: no field is named", c)
	}
	if right := c.right(); right != allowed && !c.refuses(right, said.Code(), reason) {
		t.Errorf("%v, want %s", c, right)
	}
}

// decidesEachItem says whether an allowed call may have items that are refused.
func (c *hostileCall) decidesEachItem() bool { return kindOf(c.method.name) == heartbeat }

// refuses says whether a call without a right ended as it may: its bytes and the size of its
// request may be refused before its right is decided.
func (c *hostileCall) refuses(right answer, code codes.Code, reason string) bool {
	return string(right) == reason || right != notAuthenticated && (code == codes.InvalidArgument || code == codes.ResourceExhausted) ||
		c.decidesEachItem() && right != notAuthenticated
}

// isTooLarge says whether gRPC itself refused a message, which docs/reasons.md describes.
func isTooLarge(said *status.Status) bool {
	return said.Code() == codes.ResourceExhausted && strings.HasPrefix(said.Message(), "grpc: received message larger than max")
}

func namesField(said *status.Status) bool {
	for _, detail := range said.Details() {
		if request, ok := detail.(*errdetails.BadRequest); ok {
			return len(request.GetFieldViolations()) > 0
		}
	}
	return false
}

// checkReply fails if a reply is no message of the method, or grants a lease to a caller that may
// not renew it.
func (c *hostileCall) checkReply(t *testing.T, encoded []byte) {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(c.method.descriptor.Output().FullName())
	if err != nil {
		t.Fatal(err)
	}
	reply := kind.New().Interface()
	if err := proto.Unmarshal(encoded, reply); err != nil {
		t.Errorf("%v: the reply cannot be decoded: %v", c, err)
	}
	switch reply := reply.(type) {
	case *leasev1.HeartbeatResponse:
		for i, result := range reply.GetResults() {
			if result.GetGrant() != nil {
				c.checkGrant(t, i)
			}
			c.checkRejection(t, result.GetRejection())
		}
	case *leasev1.StreamHeartbeatsResponse:
		for _, result := range reply.GetRegistrationResults() {
			c.checkRejection(t, result.GetRejection())
		}
		if reply.GetGrant() != nil && c.by.right != ownNodes && c.by.right != otherNodes {
			t.Errorf("%v: a lease is granted", c)
		}
	case *leasev1.ForwardHeartbeatsResponse:
		for _, result := range reply.GetResults() {
			c.checkRejection(t, result.GetRejection())
		}
	}
}

// checkGrant fails if the holder of a granted beat is not the node of the caller.
func (c *hostileCall) checkGrant(t *testing.T, i int) {
	request := &leasev1.HeartbeatRequest{}
	if err := proto.Unmarshal(c.frames[0], request); err != nil {
		t.Fatal(err)
	}
	own := map[right]string{ownNodes: ownNode, otherNodes: otherNode}[c.by.right]
	if holder := request.GetBeats()[i].GetHolder(); holder.GetClass() != "node" || holder.GetName() != own {
		t.Errorf("%v: a lease is granted to %v", c, holder)
	}
}

func (c *hostileCall) checkRejection(t *testing.T, rejection *leasev1.Rejection) {
	if rejection == nil {
		return
	}
	checkText(t, c.method.name+": message of a rejection", rejection.GetMessage())
	if code, registered := registeredReasons()[rejection.GetReason()]; !registered || code != codes.Code(rejection.GetCode()) {
		t.Errorf("%v: rejection %v has no registered reason", c, rejection)
	}
}
