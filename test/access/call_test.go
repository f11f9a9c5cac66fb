package access

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// callLimit bounds one call. A refusal comes at once; a watch may take this long for its first
// event.
const callLimit = 20 * time.Second

// method is one method of one server.
type method struct {
	server, name string
	descriptor   protoreflect.MethodDescriptor
}

// methodsOf asks each server which services it has, as grpcurl does, and returns all methods.
func methodsOf(t testing.TB, by connected) []method {
	t.Helper()
	var found []method
	for server, conn := range by.conns {
		stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(by.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
			t.Fatal(err)
		}
		reply, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		for _, service := range reply.GetListServicesResponse().GetService() {
			descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service.GetName()))
			if err != nil {
				t.Fatalf("%s has a service %s: %v", server, service.GetName(), err)
			}
			methods := descriptor.(protoreflect.ServiceDescriptor).Methods()
			for i := range methods.Len() {
				found = append(found, method{server: server, name: fmt.Sprintf("/%s/%s", service.GetName(), methods.Get(i).Name()), descriptor: methods.Get(i)})
			}
		}
	}
	checkAllServed(t, found)
	return found
}

// checkAllServed fails for a method of Trivet that no server has.
func checkAllServed(t testing.TB, found []method) {
	t.Helper()
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			served := slices.ContainsFunc(found, func(m method) bool { return m.descriptor.Parent().FullName() == service.FullName() })
			if strings.HasPrefix(string(file.Package()), "trivet.") && !served {
				t.Errorf("no server has the service %s", service.FullName())
			}
		}
		return true
	})
}

// requestOf returns a request that is valid, names objects that do not exist where it would change
// them, and is about the own node and the tenant's namespace.
func requestOf(t testing.TB, m method) proto.Message {
	t.Helper()
	holder := `{"class": "node", "name": "` + ownNode + `", "bootId": "boot-1"}`
	byName := map[string]string{
		"Heartbeat":            `{"beats": [{"holder": ` + holder + `, "sequence": "1"}]}`,
		"StreamHeartbeats":     `{"sequence": "1", "registrations": [{"holder": ` + holder + `}]}`,
		"ReleaseLease":         `{"holder": ` + holder + `}`,
		"ForwardHeartbeats":    `{"replicaId": "leasesvc-0", "beats": [{"beat": {"holder": ` + holder + `, "sequence": "1"}}]}`,
		"ApplyRepairPlan":      `{"name": "repairplans/none", "etag": "none"}`,
		"CreateRepairPlan":     `{"findings": ["findings/none"]}`,
		"GetZone":              `{"name": "zones/none"}`,
		"GetAPIServer":         `{"name": "apiservers/none"}`,
		"GetRepairPlan":        `{"name": "repairplans/none"}`,
		"GetRepair":            `{"name": "repairs/none"}`,
		"CancelRepair":         `{"name": "repairs/none"}`,
		"GetLease":             `{"name": "namespaces/` + tenantNamespace + `/leases/none"}`,
		"GetNodeHealth":        `{"name": "nodes/` + ownNode + `"}`,
		"ExplainNodeHealth":    `{"name": "nodes/` + ownNode + `"}`,
		"SwitchLoop":           `{"name": "loops/none", "service": "none"}`,
		"ServerReflectionInfo": `{"listServices": ""}`,
	}
	text, given := byName[string(m.descriptor.Name())]
	if !given {
		text = defaultRequest(m.descriptor.Input())
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(m.descriptor.Input().FullName())
	if err != nil {
		t.Fatal(err)
	}
	request := kind.New().Interface()
	if err := protojson.Unmarshal([]byte(text), request); err != nil {
		t.Fatalf("%s: %v", m.name, err)
	}
	return request
}

func defaultRequest(message protoreflect.MessageDescriptor) string {
	switch fields := message.Fields(); {
	case fields.ByName("parent") != nil:
		return `{"parent": "namespaces/` + tenantNamespace + `"}`
	case fields.ByName("name") == nil:
		return `{}`
	case strings.Contains(string(message.Name()), "Finding"):
		return `{"name": "findings/none"}`
	default:
		return `{"name": "namespaces/` + tenantNamespace + `/serviceslices/none"}`
	}
}

// leaderPause is the time between two calls of a replica whose terms have not begun.
const leaderPause = 50 * time.Millisecond

// call makes one call, and returns how the server decided and what it said. A server that asks the
// caller to come back later has not decided, and a leasesvc without a term refuses a stream before
// it knows for which holder the stream is.
func (c connected) call(t testing.TB, m method, request proto.Message) (answer, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, callLimit)
	defer cancel()
	for {
		reply, err := c.try(ctx, m, request)
		pause := rpcerror.RetryAfterOf(err)
		switch {
		case rpcerror.ReasonOf(err) == rpcerror.NoLeaderReason:
			pause = leaderPause
		case status.Code(err) != codes.ResourceExhausted || pause == 0:
			return decision(reply, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return decision(reply, err)
		}
	}
}

// try returns the first response, or why there is none. A stream that ends in order has none.
func (c connected) try(ctx context.Context, m method, request proto.Message) (proto.Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(m.descriptor.Output().FullName())
	if err != nil {
		return nil, err
	}
	reply := kind.New().Interface()
	if !m.descriptor.IsStreamingClient() && !m.descriptor.IsStreamingServer() {
		return reply, c.conns[m.server].Invoke(ctx, m.name, request, reply)
	}
	stream, err := c.conns[m.server].NewStream(ctx, &grpc.StreamDesc{ClientStreams: m.descriptor.IsStreamingClient(), ServerStreams: true}, m.name)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := stream.RecvMsg(reply); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return reply, nil
}

// decision reads the refusal of a call, or of the only item of its batch.
func decision(reply proto.Message, err error) (answer, string) {
	if err != nil {
		return decisionOf(status.Code(err), string(rpcerror.ReasonOf(err)), err.Error())
	}
	var rejection *leasev1.Rejection
	switch reply := reply.(type) {
	case *leasev1.HeartbeatResponse:
		rejection = reply.GetResults()[0].GetRejection()
	case *leasev1.StreamHeartbeatsResponse:
		rejection = reply.GetRegistrationResults()[0].GetRejection()
	}
	if rejection == nil {
		return allowed, "OK"
	}
	return decisionOf(codes.Code(rejection.GetCode()), rejection.GetReason(), rejection.GetMessage())
}

func decisionOf(code codes.Code, reason, message string) (answer, string) {
	refused := map[codes.Code]answer{codes.Unauthenticated: notAuthenticated, codes.PermissionDenied: notAuthorized}[code]
	switch {
	case reason == "": // every error of a handler has one; this is gRPC's own
		return answer(fmt.Sprintf("%s without a reason", code)), message
	case string(refused) == reason:
		return refused, message
	case refused == "" && reason != string(notAuthenticated) && reason != string(notAuthorized):
		return allowed, fmt.Sprintf("%s %s", code, reason)
	default:
		return answer(fmt.Sprintf("%s with reason %s", code, reason)), message
	}
}
