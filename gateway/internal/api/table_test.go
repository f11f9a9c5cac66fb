package api

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/internal/term"
	authv1 "github.com/trivet-dev/trivet/proto/trivet/auth/v1"
)

// noReplicas is a Directory without members.
type noReplicas struct{}

func (noReplicas) Members() []term.Member   { return nil }
func (noReplicas) Check() error             { return nil }
func (noReplicas) Changed() <-chan struct{} { return nil }

// registrar records the methods of services.
type registrar map[string]bool

func (r registrar) RegisterService(desc *grpc.ServiceDesc, _ any) {
	for _, method := range desc.Methods {
		r[desc.ServiceName+"."+method.MethodName] = false
	}
	for _, stream := range desc.Streams {
		r[desc.ServiceName+"."+stream.StreamName] = stream.ServerStreams
	}
}

// servedMethods calls do for each RPC that callers other than replicas and nodes may call.
func servedMethods(t *testing.T, do func(protoreflect.MethodDescriptor)) {
	t.Helper()
	for _, name := range []protoreflect.FullName{"trivet.lease.v1", "trivet.node.v1", "trivet.slice.v1", "trivet.bootstrap.v1", "trivet.status.v1", "trivet.gateway.v1", "trivet.shadow.v1"} {
		protoregistry.GlobalFiles.RangeFilesByPackage(name, func(file protoreflect.FileDescriptor) bool {
			for i := range file.Services().Len() {
				if file.Services().Get(i).Name() == "StatusService" {
					continue // each process answers it for itself
				}
				methods := file.Services().Get(i).Methods()
				for j := range methods.Len() {
					access := proto.GetExtension(methods.Get(j).Options(), authv1.E_Access).(*authv1.Access)
					if access.GetResource() != nil {
						do(methods.Get(j))
					}
				}
			}
			return true
		})
	}
}

func TestRegister_ServesEachMethod(t *testing.T) {
	served := registrar{}
	New(Config{Cluster: "test", Directory: noReplicas{}, Connections: fanout.NewPool(nil)}).Register(served)
	methods := 0
	servedMethods(t, func(method protoreflect.MethodDescriptor) {
		methods++
		if streams, known := served[string(method.FullName())]; !known || streams != method.IsStreamingServer() {
			t.Errorf("%s: served %v, as a stream %v; want it as a stream: %v", method.FullName(), known, streams, method.IsStreamingServer())
		}
	})
	if methods != len(served) || methods < 35 {
		t.Errorf("%d methods are served of %d", len(served), methods)
	}
}

// Handlers find fields by their names.
func TestMessages_HaveTheFieldsThatHandlersSet(t *testing.T) {
	servedMethods(t, func(method protoreflect.MethodDescriptor) {
		if method.ParentFile().Package() == "trivet.gateway.v1" {
			return
		}
		fields := method.Output().Fields()
		want := []protoreflect.Name{"sources"}
		if method.IsStreamingServer() {
			want = []protoreflect.Name{"type", "resume_token", "bookmark"}
		}
		for _, name := range want {
			if fields.ByName(name) == nil {
				t.Errorf("%s has no field %s", method.Output().FullName(), name)
			}
		}
		if !method.IsStreamingServer() {
			return
		}
		item := fields.ByName(itemField(method.Output())).Message()
		requests := method.Input().Fields()
		for i := range requests.Len() {
			filter := requests.Get(i)
			if name := filter.Name(); name == "parent" || name == "resume_token" {
				continue
			}
			if filteredField(filter, item) == nil {
				t.Errorf("%s has no field for the filter %s", item.FullName(), filter.FullName())
			}
		}
	})
}
