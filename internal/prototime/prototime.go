// Package prototime keeps times within the range of protobuf.
//
// The times of Kubernetes objects are chosen by their writers. Kubernetes' own protobuf carries any
// number of seconds, but the JSON of google.protobuf.Timestamp has the years 1 to 9999 only. One
// time outside of them would fail the whole answer that it is in.
package prototime

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The limits of Timestamp and Duration, in seconds.
const (
	minTimestamp = -62135596800 // 0001-01-01T00:00:00Z
	maxTimestamp = 253402300799 // 9999-12-31T23:59:59Z
	maxDuration  = 315576000000
	maxNanos     = 999999999
)

// New returns nil for the zero time, and the nearest valid time for one out of range.
func New(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	at := &timestamppb.Timestamp{Seconds: t.Unix(), Nanos: int32(t.Nanosecond())}
	limitTimestamp(at)
	return at
}

// Limited returns a copy of a message in which each time and duration is the nearest valid one.
func Limited(message proto.Message) proto.Message {
	limited := proto.Clone(message)
	limit(limited.ProtoReflect())
	return limited
}

func limit(message protoreflect.Message) {
	switch typed := message.Interface().(type) {
	case *timestamppb.Timestamp:
		limitTimestamp(typed)
		return
	case *durationpb.Duration:
		limitDuration(typed)
		return
	}
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
			if field.MapValue().Message() != nil {
				value.Map().Range(func(_ protoreflect.MapKey, value protoreflect.Value) bool {
					limit(value.Message())
					return true
				})
			}
		case field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				limit(value.List().Get(i).Message())
			}
		default:
			limit(value.Message())
		}
		return true
	})
}

func limitTimestamp(at *timestamppb.Timestamp) {
	switch {
	case at.GetSeconds() < minTimestamp:
		at.Seconds, at.Nanos = minTimestamp, 0
	case at.GetSeconds() > maxTimestamp:
		at.Seconds, at.Nanos = maxTimestamp, maxNanos
	default:
		at.Nanos = min(max(at.GetNanos(), 0), maxNanos)
	}
}

// limitDuration drops nanoseconds whose sign is not that of the seconds.
func limitDuration(d *durationpb.Duration) {
	d.Seconds = min(max(d.GetSeconds(), -maxDuration), maxDuration)
	d.Nanos = min(max(d.GetNanos(), -maxNanos), maxNanos)
	if d.GetSeconds() > 0 && d.GetNanos() < 0 || d.GetSeconds() < 0 && d.GetNanos() > 0 {
		d.Nanos = 0
	}
}
