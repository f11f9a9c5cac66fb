package prototime_test

import (
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/prototime"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

func TestNew_IsAlwaysValid(t *testing.T) {
	if got := prototime.New(time.Time{}); got != nil {
		t.Errorf("the zero time is %v, want none", got)
	}
	exact := time.Date(2026, 11, 23, 1, 2, 3, 4, time.UTC)
	if got := prototime.New(exact); !got.AsTime().Equal(exact) {
		t.Errorf("%v became %v", exact, got.AsTime())
	}
	for seconds, want := range map[int64]int{
		math.MinInt64: 1, -1 << 40: 1, -62167219200: 1, -62135596799: 1, 253402300799: 9999, 253402300800: 9999, 1 << 40: 9999,
	} {
		got := prototime.New(time.Unix(seconds, 0))
		if err := got.CheckValid(); err != nil || got.AsTime().Year() != want && seconds != math.MinInt64 {
			t.Errorf("%d s: %v is in year %d, want %d; %v", seconds, got, got.AsTime().Year(), want, err)
		}
	}
}

// A message of another process may have any numbers, at any depth.
func TestLimited_MakesEachMessageFitForJSON(t *testing.T) {
	hostile := &gatewayv1.ClusterStatus{
		MergeTime: &timestamppb.Timestamp{Seconds: math.MaxInt64, Nanos: -1},
		Services: []*gatewayv1.ServiceStatus{{Replicas: []*gatewayv1.ReplicaResult{{
			Latency: &durationpb.Duration{Seconds: math.MinInt64, Nanos: 5},
			Status:  &statusv1.ReplicaStatus{Loops: []*statusv1.Loop{{LastRunTime: &timestamppb.Timestamp{Seconds: 1, Nanos: math.MaxInt32}}}, Counts: map[string]int64{"a": 1}},
		}}}},
	}
	if _, err := protojson.Marshal(hostile); err == nil {
		t.Fatal("the message is fit for JSON already")
	}
	if _, err := protojson.Marshal(prototime.Limited(hostile)); err != nil {
		t.Error(err)
	}
	if hostile.GetMergeTime().GetSeconds() != math.MaxInt64 {
		t.Error("the message itself has been changed")
	}
}
