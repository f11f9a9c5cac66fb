package api

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

// Handlers convert the event types of all watches by their numbers.
func TestEventTypes_HaveTheSameNumbers(t *testing.T) {
	want := map[protoreflect.Name]protoreflect.EnumNumber{
		"TYPE_UNSPECIFIED": 0, "TYPE_ADDED": protoreflect.EnumNumber(merge.Added), "TYPE_MODIFIED": protoreflect.EnumNumber(merge.Modified),
		"TYPE_DELETED": protoreflect.EnumNumber(merge.Removed), "TYPE_BOOKMARK": protoreflect.EnumNumber(typeBookmark),
	}
	for _, enum := range []protoreflect.Enum{
		leasev1.WatchNodeHealthResponse_Type(0), leasev1.WatchLeasesResponse_Type(0),
		slicev1.WatchServiceSlicesResponse_Type(0), bootstrapv1.WatchFindingsResponse_Type(0),
	} {
		got := map[protoreflect.Name]protoreflect.EnumNumber{}
		values := enum.Descriptor().Values()
		for i := range values.Len() {
			got[values.Get(i).Name()] = values.Get(i).Number()
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", enum.Descriptor().FullName(), diff)
		}
	}
}

func TestKindOf(t *testing.T) {
	for number, want := range []fanin.Kind{fanin.Unknown, fanin.Put, fanin.Put, fanin.Remove, fanin.Bookmark, fanin.Unknown} {
		if got := kindOf(leasev1.WatchLeasesResponse_Type(number)); got != want {
			t.Errorf("kindOf(%d) = %d, want %d", number, got, want)
		}
	}
}
