package testkit_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// faulty panics in the first call and so shows that recovery is in the chain.
type faulty struct {
	statusv1.UnimplementedStatusServiceServer
}

func (faulty) GetStatus(context.Context, *statusv1.GetStatusRequest) (*statusv1.GetStatusResponse, error) {
	panic("out of order")
}

func TestServe_RunsTheProductionChain(t *testing.T) {
	connection := testkit.Serve(t, func(r grpc.ServiceRegistrar) {
		statusv1.RegisterStatusServiceServer(r, faulty{})
	})
	_, err := statusv1.NewStatusServiceClient(connection).GetStatus(t.Context(), &statusv1.GetStatusRequest{})
	if status.Code(err) != codes.Internal || rpcerror.ReasonOf(err) != rpcerror.PanicReason {
		t.Errorf("a panic arrives as %v with reason %q, want %v with %q", err, rpcerror.ReasonOf(err), codes.Internal, rpcerror.PanicReason)
	}
	health, err := healthv1.NewHealthClient(connection).Check(t.Context(), &healthv1.HealthCheckRequest{Service: "trivet.status.v1.StatusService"})
	if err != nil {
		t.Fatal(err)
	}
	if health.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("health is %v, want SERVING", health.GetStatus())
	}
}

func TestServe_StopsWithAnOpenStream(t *testing.T) {
	t.Run("leave a watch open", func(t *testing.T) {
		connection := testkit.Serve(t, func(r grpc.ServiceRegistrar) {
			statusv1.RegisterStatusServiceServer(r, faulty{})
		})
		watch, err := healthv1.NewHealthClient(connection).Watch(context.Background(), &healthv1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
	})
}
