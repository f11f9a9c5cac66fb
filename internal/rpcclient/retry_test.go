package rpcclient

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"google.golang.org/protobuf/proto"
)

func TestUnaryMethods_AreOursAndOrderedAndNoStreams(t *testing.T) {
	files := new(protoregistry.Files)
	for _, file := range []*descriptorpb.FileDescriptorProto{
		fileOf("trivet/zebra/v1/zebra.proto", "trivet.zebra.v1", "ZebraService"),
		fileOf("trivet/aardvark/v1/aardvark.proto", "trivet.aardvark.v1", "AardvarkService"),
		fileOf("grpc/health/v1/health.proto", "grpc.health.v1", "Health"),
	} {
		descriptor, err := protodesc.NewFile(file, files)
		if err != nil {
			t.Fatal(err)
		}
		if err := files.RegisterFile(descriptor); err != nil {
			t.Fatal(err)
		}
	}
	want := []methodNameJSON{
		{Service: "trivet.aardvark.v1.AardvarkService", Method: "Get"},
		{Service: "trivet.zebra.v1.ZebraService", Method: "Get"},
	}
	if diff := cmp.Diff(want, unaryMethods(files)); diff != "" {
		t.Errorf("methods differ (-want +got):\n%s", diff)
	}
}

// fileOf describes a service with a method of each kind.
func fileOf(path, pkg, service string) *descriptorpb.FileDescriptorProto {
	method := func(name string, client, server bool) *descriptorpb.MethodDescriptorProto {
		return &descriptorpb.MethodDescriptorProto{
			Name: proto.String(name), InputType: proto.String("." + pkg + ".M"), OutputType: proto.String("." + pkg + ".M"),
			ClientStreaming: proto.Bool(client), ServerStreaming: proto.Bool(server),
		}
	}
	return &descriptorpb.FileDescriptorProto{
		Name: proto.String(path), Package: proto.String(pkg), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{Name: proto.String("M")}},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: proto.String(service), Method: []*descriptorpb.MethodDescriptorProto{
			method("Upload", true, false), method("Get", false, false), method("Watch", false, true), method("Talk", true, true),
		}}},
	}
}
