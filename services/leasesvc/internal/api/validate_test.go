package api

import (
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// agree compares validate with the rules of the .proto.
func agree(t rapid.TB, m *leasev1.StreamHeartbeatsRequest) {
	t.Helper()
	want, got := protovalidate.Validate(m), validate(m)
	if (want == nil) != (got == nil) {
		t.Fatalf("validate: %v\nlease.proto: %v\nfor %v", got, want, m)
	}
	if got == nil {
		return
	}
	if status.Code(got) != codes.InvalidArgument || rpcerror.ReasonOf(got) != rpcerror.ValidationFailedReason {
		t.Fatalf("refused with %v", got)
	}
	for _, detail := range status.Convert(got).Details() {
		if bad, ok := detail.(*errdetails.BadRequest); ok && strings.Contains(want.Error(), bad.FieldViolations[0].Field) {
			return
		}
	}
	t.Fatalf("validate: %v\nlease.proto: %v\nthe fields differ", got, want)
}

func TestValidate_AgreesWithTheProto(t *testing.T) {
	text := rapid.OneOf(
		rapid.StringMatching(`[a-z0-9]([-a-z0-9.]{0,8}[a-z0-9])?`),
		rapid.StringMatching(`[-A-Za-z0-9._:/ ]{0,6}`),
		rapid.StringMatching(`[a-z0-9.]{250,256}`),
		rapid.StringMatching(`[a-z0-9]{62,66}`),
		rapid.String(),
	)
	holder := rapid.Custom(func(t *rapid.T) *leasev1.Holder {
		return &leasev1.Holder{Class: text.Draw(t, "class"), Name: text.Draw(t, "name"), BootId: text.Draw(t, "boot id")}
	})
	rapid.Check(t, func(t *rapid.T) {
		agree(t, &leasev1.StreamHeartbeatsRequest{
			Sequence: rapid.Uint64Range(0, 3).Draw(t, "sequence"),
			Holders:  rapid.SliceOfN(holder, 0, 3).Draw(t, "holders"),
			Handles:  rapid.SliceOfN(rapid.Uint32(), 0, 3).Draw(t, "handles"),
		})
	})
}

func TestValidate_AgreesAtTheLimits(t *testing.T) {
	good := &leasev1.Holder{Class: "node", Name: "n1", BootId: "1"}
	for _, n := range []int{1000, 1001} {
		holders := make([]*leasev1.Holder, n)
		for i := range holders {
			holders[i] = good
		}
		agree(t, &leasev1.StreamHeartbeatsRequest{Sequence: 1, Holders: holders})
	}
	for _, n := range []int{10_000, 10_001} {
		agree(t, &leasev1.StreamHeartbeatsRequest{Sequence: 1, Handles: make([]uint32, n)})
	}
}

func FuzzValidate(f *testing.F) {
	for _, name := range []string{"n1", "", "a.b-c", "-a", "a-", "a..b", "A", "a\x00", "a\u202e", "../a", strings.Repeat("a", 254)} {
		f.Add(uint64(1), "node", name, "boot:1")
		f.Add(uint64(1), name, "n1", name)
	}
	f.Fuzz(func(t *testing.T, sequence uint64, class, name, boot string) {
		agree(t, &leasev1.StreamHeartbeatsRequest{
			Sequence: sequence,
			Holders: []*leasev1.Holder{{
				Class: strings.ToValidUTF8(class, "?"), Name: strings.ToValidUTF8(name, "?"), BootId: strings.ToValidUTF8(boot, "?"),
			}},
		})
	})
}
