package rpcserver

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// A client cannot observe this: a draining server refuses new calls and ends streams.
func TestSetServing_HasNoEffectAfterStop(t *testing.T) {
	server, err := New(with(DefaultConfig("127.0.0.1:0"), func(c *Config) { c.Insecure = true }), Deps{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server.SetServing(true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := server.Serve(ctx, bufconn.Listen(1)); err != nil {
		t.Fatal(err)
	}
	server.SetServing(true)
	response, err := server.health.Check(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil || response.GetStatus() != healthv1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health of a stopped server is %v (%v), want NOT_SERVING", response.GetStatus(), err)
	}
}

func TestNewValidator_RulesThatDoNotCompileAreFoundInside(t *testing.T) {
	outer := messageWithRule(t, "this.size() > 'many'")
	messages := map[protoreflect.FullName]protoreflect.MessageDescriptor{}
	collect(outer, messages)
	if _, err := newValidator(messages); err == nil || !strings.Contains(err.Error(), `"trivet.test.Inner"`) {
		t.Errorf("newValidator() = %v, want an error that names the inner message", err)
	}
}

func TestNewValidator_RulesThatCompileAreAccepted(t *testing.T) {
	messages := map[protoreflect.FullName]protoreflect.MessageDescriptor{}
	collect(messageWithRule(t, "this.size() > 3"), messages)
	if _, err := newValidator(messages); err != nil {
		t.Errorf("newValidator() = %v, want nil", err)
	}
}

// messageWithRule returns a message whose only field holds a message whose only field has the rule.
func messageWithRule(t *testing.T, expression string) protoreflect.MessageDescriptor {
	t.Helper()
	options := &descriptorpb.FieldOptions{}
	proto.SetExtension(options, validate.E_Field, validate.FieldRules_builder{
		Cel: []*validate.Rule{validate.Rule_builder{Id: proto.String("test"), Expression: proto.String(expression)}.Build()},
	}.Build())
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("trivet/test/test.proto"), Package: proto.String("trivet.test"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: proto.String("Outer"), Field: []*descriptorpb.FieldDescriptorProto{{
				Name: proto.String("inner"), Number: proto.Int32(1), Label: descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum(),
				Type: descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), TypeName: proto.String(".trivet.test.Inner"),
			}}},
			{Name: proto.String("Inner"), Field: []*descriptorpb.FieldDescriptorProto{{
				Name: proto.String("name"), Number: proto.Int32(1), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
				Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Options: options,
			}}},
		},
	}, new(protoregistry.Files))
	if err != nil {
		t.Fatal(err)
	}
	return file.Messages().ByName("Outer")
}

// A stranger makes calls without credentials, each of which is a warning.
func TestAdapt_LimitsWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written bytes.Buffer
		log := adapt(slog.New(slog.NewTextHandler(&written, nil)))
		for range 10_000 {
			log.Log(t.Context(), logging.LevelWarn, "refused")
		}
		if lines := bytes.Count(written.Bytes(), []byte("\n")); lines != warningBurst {
			t.Errorf("%d lines at once, want %d", lines, warningBurst)
		}
		time.Sleep(time.Second / warningsPerSecond)
		log.Log(t.Context(), logging.LevelWarn, "refused")
		if want := fmt.Sprintf(" suppressed=%d ", 10_000-warningBurst); strings.Count(written.String(), want) != 1 {
			t.Errorf("not one line says %q", want)
		}
	})
}
