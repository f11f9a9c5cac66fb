package rpcserver_test

import (
	"testing"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

func checkHealth(t *testing.T, r *running, service string) (healthv1.HealthCheckResponse_ServingStatus, error) {
	t.Helper()
	response, err := healthv1.NewHealthClient(r.conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
	return response.GetStatus(), err
}

func TestSetServing_HealthFollowsForEveryService(t *testing.T) {
	r := start(t, setup{service: &leases{}})
	for _, step := range []struct {
		name string
		tell func()
		want healthv1.HealthCheckResponse_ServingStatus
	}{
		{name: "at the start", tell: func() {}, want: healthv1.HealthCheckResponse_NOT_SERVING},
		{name: "when told", tell: func() { r.server.SetServing(true) }, want: healthv1.HealthCheckResponse_SERVING},
		{name: "when told again", tell: func() { r.server.SetServing(true) }, want: healthv1.HealthCheckResponse_SERVING},
		{name: "when told otherwise", tell: func() { r.server.SetServing(false) }, want: healthv1.HealthCheckResponse_NOT_SERVING},
	} {
		step.tell()
		for _, service := range []string{"", "trivet.lease.v1.LeaseService"} {
			if got, err := checkHealth(t, r, service); got != step.want || err != nil {
				t.Errorf("%s, service %q is %v (%v), want %v", step.name, service, got, err, step.want)
			}
		}
	}
}
