package rpcserver_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	authv1 "github.com/trivet-dev/trivet/proto/trivet/auth/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// withUnknownField adds a field that no version of the API has.
func withUnknownField[M proto.Message](message M) M {
	raw := protowire.AppendTag(nil, 4242, protowire.VarintType)
	message.ProtoReflect().SetUnknown(protowire.AppendVarint(raw, 1))
	return message
}

func TestServer_UnknownFieldsAreRefused(t *testing.T) {
	var reached bool
	r := start(t, setup{service: accepting(&reached)})
	for name, c := range map[string]struct {
		request       *leasev1.HeartbeatRequest
		path, message string
	}{
		"in the request": {withUnknownField(validBeat()), "", "trivet.lease.v1.HeartbeatRequest"},
		"in a message": {
			&leasev1.HeartbeatRequest{Beats: validBeat().GetBeats(), ClientInfo: withUnknownField(&metav1.ClientInfo{})},
			"client_info", "trivet.meta.v1.ClientInfo",
		},
		"deep in a list": {
			&leasev1.HeartbeatRequest{Beats: []*leasev1.Beat{validBeat().GetBeats()[0], {Holder: withUnknownField(validBeat().GetBeats()[0].GetHolder())}}},
			"beats[1].holder", "trivet.lease.v1.Holder",
		},
		"before rules": {withUnknownField(&leasev1.HeartbeatRequest{}), "", "trivet.lease.v1.HeartbeatRequest"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.heartbeats.Heartbeat(t.Context(), c.request)
			want := []proto.Message{info("UNKNOWN_FIELD"), &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
				{Field: c.path, Description: "field number 4242 of " + c.message + " is unknown to this server"},
			}}}
			if diff := cmp.Diff(want, details(t, err), protocmp.Transform()); diff != "" || status.Code(err) != codes.InvalidArgument {
				t.Errorf("%v, want %v; details differ (-want +got):\n%s", err, codes.InvalidArgument, diff)
			}
			if !strings.Contains(err.Error(), "4242") || reached {
				t.Errorf("%v, handler reached: %v; want the number of the field and no call", err, reached)
			}
		})
	}
}

func TestServer_CallForAnotherClusterIsRefused(t *testing.T) {
	var reached bool
	r := start(t, setup{service: accepting(&reached), cluster: "prod"})
	other := metadata.AppendToOutgoingContext(t.Context(), rpcserver.ClusterKey, "test")
	if _, err := r.heartbeats.Heartbeat(other, validBeat()); rpcerror.ReasonOf(err) != rpcerror.WrongClusterReason || reached {
		t.Errorf("call for another cluster: %v, handler reached: %v; want WRONG_CLUSTER and no call", err, reached)
	}
	stream, err := r.heartbeats.StreamHeartbeats(other)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); rpcerror.ReasonOf(err) != rpcerror.WrongClusterReason {
		t.Errorf("stream for another cluster: %v, want WRONG_CLUSTER", err)
	}
	own := metadata.AppendToOutgoingContext(t.Context(), rpcserver.ClusterKey, "prod")
	if _, err := r.heartbeats.Heartbeat(own, validBeat()); err != nil || !reached {
		t.Errorf("call for this cluster: %v, handler reached: %v", err, reached)
	}
}

func TestServer_UnknownFieldsAreRefusedInStreams(t *testing.T) {
	r := start(t, setup{service: accepting(new(bool))})
	stream, err := r.heartbeats.StreamHeartbeats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&leasev1.StreamHeartbeatsRequest{Sequence: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	second := &leasev1.StreamHeartbeatsRequest{Sequence: 2, Registrations: []*leasev1.Registration{withUnknownField(&leasev1.Registration{})}}
	if err := stream.Send(second); err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	if fields := fieldsOf(t, err); len(fields) != 1 || fields[0].GetField() != "registrations[0]" {
		t.Errorf("answer to a message with an unknown field: %v, want an error that names registrations[0]", err)
	}
	watch, err := r.client.WatchLeases(t.Context(), withUnknownField(&leasev1.WatchLeasesRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = watch.Recv()
	if diff := cmp.Diff([]proto.Message{info("UNKNOWN_FIELD")}, details(t, err)[:1], protocmp.Transform()); diff != "" {
		t.Errorf("WatchLeases: details differ (-want +got):\n%s", diff)
	}
}

func TestServer_UnvalidatedMethodGetsUnknownFields(t *testing.T) {
	var reached bool
	r := start(t, setup{service: accepting(&reached), unvalidated: []string{leasev1.HeartbeatService_Heartbeat_FullMethodName}})
	if _, err := r.heartbeats.Heartbeat(t.Context(), withUnknownField(validBeat())); err != nil || !reached {
		t.Errorf("Heartbeat() = %v, handler reached: %t; want the handler to decide", err, reached)
	}
}

func TestServer_AsOfTimeIsRefused(t *testing.T) {
	r := start(t, setup{service: &leases{get: func(context.Context, *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
		return &leasev1.GetLeaseResponse{}, nil
	}}})
	request := validGet()
	request.AsOfTime = timestamppb.Now()
	_, err := r.client.GetLease(t.Context(), request)
	if diff := cmp.Diff(info("HISTORY_UNAVAILABLE"), details(t, err)[0], protocmp.Transform()); diff != "" || status.Code(err) != codes.FailedPrecondition {
		t.Errorf("%v, want %v; details differ (-want +got):\n%s", err, codes.FailedPrecondition, diff)
	}
	if _, err := r.client.GetLease(t.Context(), validGet()); err != nil {
		t.Errorf("without as_of_time: %v", err)
	}
}

// A service of a test is described here, because a generated one without access rules would be a
// mistake in the repository.
func TestServe_MethodsNeedAccessRules(t *testing.T) {
	for name, c := range map[string]struct {
		access *authv1.Access
		want   string
	}{
		"missing":    {nil, "is missing"},
		"empty":      {&authv1.Access{}, "has no rule"},
		"no verb":    {resource("", "things", ""), `verb "" is none of`},
		"wrong verb": {resource("grab", "things", ""), `verb "grab" is none of`},
		"resource":   {resource("get", "", ""), "has no resource"},
		"name field": {resource("get", "things", "nombre"), `name_field "nombre" is no string field of`},
		"number":     {resource("get", "things", "size"), `name_field "size" is no string field of`},
		"resource rule": {
			resource("get", "things", "name"), "",
		},
		"collection": {resource("list", "things", ""), ""},
		"public":     {&authv1.Access{Rule: &authv1.Access_Public{Public: &authv1.PublicAccess{}}}, ""},
		"node":       {&authv1.Access{Rule: &authv1.Access_NodeBinding{NodeBinding: &authv1.NodeBinding{}}}, ""},
		"peer":       {&authv1.Access{Rule: &authv1.Access_Peer{Peer: &authv1.PeerAccess{}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			service := describe(t, strings.ReplaceAll(name, " ", "_"), c.access)
			server := newServer(t, setup{}, rpcserver.Deps{Logger: slog.New(slog.DiscardHandler)})
			server.Register(func(r grpc.ServiceRegistrar) { r.RegisterService(&grpc.ServiceDesc{ServiceName: service}, nil) })
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // a server that starts stops at once
			err := server.Serve(ctx, bufconn.Listen(1))
			switch {
			case c.want == "" && err != nil:
				t.Errorf("Serve() = %v, want nil", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), service+"/GetThing")):
				t.Errorf("Serve() = %v, want an error that names the method and says %q", err, c.want)
			}
		})
	}
}

func resource(verb, name, field string) *authv1.Access {
	return &authv1.Access{Rule: &authv1.Access_Resource{Resource: &authv1.ResourceAccess{Verb: verb, Resource: name, NameField: field}}}
}

// describe registers a service with one method and returns its name.
func describe(t *testing.T, name string, access *authv1.Access) string {
	t.Helper()
	options := &descriptorpb.MethodOptions{}
	if access != nil {
		proto.SetExtension(options, authv1.E_Access, access)
	}
	pkg := "trivet.test." + name + ".v1alpha1"
	field := func(name string, number int32, kind descriptorpb.FieldDescriptorProto_Type) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{
			Name: proto.String(name), Number: proto.Int32(number), Type: kind.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String(pkg + ".proto"), Package: proto.String(pkg), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{Name: proto.String("Thing"), Field: []*descriptorpb.FieldDescriptorProto{
			field("name", 1, descriptorpb.FieldDescriptorProto_TYPE_STRING), field("size", 2, descriptorpb.FieldDescriptorProto_TYPE_INT64),
		}}},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("Things"), Method: []*descriptorpb.MethodDescriptorProto{
			{Name: proto.String("GetThing"), InputType: proto.String("." + pkg + ".Thing"), OutputType: proto.String("." + pkg + ".Thing"), Options: options},
		}}},
	}, new(protoregistry.Files))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := protoregistry.GlobalFiles.FindFileByPath(file.Path()); err == nil {
		return pkg + ".Things" // registered by an earlier run of the same process
	}
	if err := protoregistry.GlobalFiles.RegisterFile(file); err != nil {
		t.Fatal(err)
	}
	return pkg + ".Things"
}
