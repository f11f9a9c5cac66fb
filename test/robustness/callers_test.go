package robustness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

const (
	// callPace is the time between two calls of one caller.
	callPace = 300 * time.Millisecond
	// callTimeout is far above the time of an answer on a loaded machine.
	callTimeout = 15 * time.Second
)

// call is a call through the gateway.
type call struct {
	method string
	do     func(context.Context, grpc.ClientConnInterface) error
}

// calls returns one call to each service behind the gateway, and one that the gateway answers from
// all of them.
func calls() []call {
	return []call{
		{"trivet.gateway.v1.ClusterService/GetClusterStatus", func(ctx context.Context, conn grpc.ClientConnInterface) error {
			_, err := gatewayv1.NewClusterServiceClient(conn).GetClusterStatus(ctx, &gatewayv1.GetClusterStatusRequest{})
			return err
		}},
		{"trivet.lease.v1.LeaseService/ListLeases", func(ctx context.Context, conn grpc.ClientConnInterface) error {
			_, err := leasev1.NewLeaseServiceClient(conn).ListLeases(ctx, &leasev1.ListLeasesRequest{PageSize: 5})
			return err
		}},
		{"trivet.bootstrap.v1.FindingService/ListFindings", func(ctx context.Context, conn grpc.ClientConnInterface) error {
			_, err := bootstrapv1.NewFindingServiceClient(conn).ListFindings(ctx, &bootstrapv1.ListFindingsRequest{PageSize: 5})
			return err
		}},
		{"trivet.slice.v1.SliceService/GetServiceSlices", func(ctx context.Context, conn grpc.ClientConnInterface) error {
			_, err := slicev1.NewSliceServiceClient(conn).GetServiceSlices(ctx, &slicev1.GetServiceSlicesRequest{Name: "namespaces/" + namespace + "/serviceslices/app-000"})
			return err
		}},
	}
}

// callAll calls the gateway in turn until ctx ends, once over a connection that lasts and once over
// a new one, and records each call.
func (w *world) callAll(ctx context.Context) {
	gateway := w.leader(history.Gateway)
	for n := 0; ctx.Err() == nil; n++ {
		each := calls()[n%len(calls())]
		w.recordCall(ctx, each.method, history.Gateway, func(ctx context.Context) error {
			if n/len(calls())%2 == 0 {
				return each.do(ctx, w.gateway)
			}
			conn, err := w.dialAsAdministrator(gateway.GRPC, history.Gateway)
			if err != nil {
				return err
			}
			return errors.Join(each.do(ctx, conn), conn.Close())
		})
		testkit.Pause(ctx, callPace)
	}
}

func (w *world) recordCall(ctx context.Context, method, target string, do func(context.Context) error) {
	made := history.Call{Method: method, Target: target, From: w.now()}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := do(call)
	if ctx.Err() != nil {
		return // The run ends.
	}
	if made.To = w.now(); err != nil {
		made.Failed = err.Error()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.record.Calls = append(w.record.Calls, made)
}

// unlimited is above each quantity.
const unlimited = 1e12

// level records a quantity with its limits.
func (w *world) level(s *slot, what string, value, least, most float64) {
	level := history.Level{At: w.now(), Service: s.Service, Process: s.ProcessName(), What: what, Value: value, Least: least, Most: most}
	w.Logf("%v: %s: %s: %g of %g to %g", level.At.Round(time.Millisecond), level.Process, what, value, least, most)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.record.Levels = append(w.record.Levels, level)
}

// metric returns the sum of a metric of a replica over all series with a label, such as
// reason="expired"; over all series without one.
func (w *world) metric(ctx context.Context, s *slot, name, label string) (float64, error) {
	text, err := s.get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	sum, found := 0.0, false
	for line := range strings.Lines(text) {
		series, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		of, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		if of != name || label != "" && !slices.Contains(strings.Split(labels, ","), label) {
			continue
		}
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, fmt.Errorf("%s of %s: %w", name, s.Name, err)
		}
		sum, found = sum+value, true
	}
	if !found && label == "" {
		return 0, fmt.Errorf("%s has no metric %s", s.Name, name)
	}
	return sum, nil
}

// mostMemory is far above what a replica of the largest world needs, in MiB.
const mostMemory = 400

// measureMemory records the memory of each process at the end of a run.
func (w *world) measureMemory() {
	for _, s := range w.slots {
		memory, err := s.residentMemory()
		if err != nil {
			w.note(err)
			continue
		}
		w.level(s, "resident memory, in MiB", memory, 0, mostMemory)
	}
}

// residentMemory returns the resident memory of the present process of a slot, in MiB.
func (s *slot) residentMemory() (float64, error) {
	resident, err := s.Process().Resident()
	return float64(resident) / (1 << 20), err
}
