package api

import (
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// agree compares validate with the rules of the .proto.
func agree(t rapid.TB, m *leasev1.StreamHeartbeatsRequest) {
	t.Helper()
	want, got := protovalidate.Validate(m), validate(m)
	if (want == nil) != (got == nil) {
		t.Fatalf("validate: %v\nheartbeat.proto: %v\nfor %v", got, want, m)
	}
	if got == nil {
		return
	}
	if status.Code(got) != codes.InvalidArgument || rpcerror.ReasonOf(got) != rpcerror.ValidationFailedReason {
		t.Fatalf("rejected with %v", got)
	}
	for _, detail := range status.Convert(got).Details() {
		if bad, ok := detail.(*errdetails.BadRequest); ok && strings.Contains(want.Error(), bad.FieldViolations[0].Field) {
			return
		}
	}
	t.Fatalf("validate: %v\nheartbeat.proto: %v\nthe fields differ", got, want)
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
	valid := &leasev1.Holder{Class: "node", Name: "n1", BootId: "1"}
	registration := rapid.Custom(func(t *rapid.T) *leasev1.Registration {
		return &leasev1.Registration{
			Holder: rapid.OneOf(holder, rapid.Just(valid), rapid.Just[*leasev1.Holder](nil)).Draw(t, "holder"),
			Report: reports().Draw(t, "report"),
		}
	})
	report := rapid.Custom(func(t *rapid.T) *leasev1.HandleReport {
		return &leasev1.HandleReport{Handle: rapid.Uint32().Draw(t, "handle"), Report: reports().Draw(t, "report")}
	})
	rapid.Check(t, func(t *rapid.T) {
		agree(t, &leasev1.StreamHeartbeatsRequest{
			Sequence:      rapid.Uint64Range(0, 3).Draw(t, "sequence"),
			Registrations: rapid.SliceOfN(registration, 0, 3).Draw(t, "registrations"),
			Handles:       rapid.SliceOfN(rapid.Uint32(), 0, 3).Draw(t, "handles"),
			Reports:       rapid.SliceOfN(report, 0, 3).Draw(t, "reports"),
			ClientInfo:    clientInfos(text).Draw(t, "client info"),
		})
	})
}

// ages are absent, valid, or one of the ways to be invalid.
func ages() *rapid.Generator[*durationpb.Duration] {
	return rapid.SampledFrom([]*durationpb.Duration{
		nil, {}, {Seconds: 3, Nanos: 999_999_999}, {Seconds: 315_576_000_000}, {Seconds: 315_576_000_001}, {Seconds: -1},
		{Nanos: -1}, {Nanos: 1_000_000_000}, {Seconds: 1, Nanos: -1}, {Seconds: -1, Nanos: 1},
	})
}

func reports() *rapid.Generator[*leasev1.Report] {
	kinds := rapid.OneOf(rapid.StringMatching(`[A-Za-z][A-Za-z0-9]{0,8}`), rapid.StringMatching(`[-A-Za-z0-9_]{0,3}`), rapid.StringMatching(`[a-z]{62,64}`))
	reasons := rapid.OneOf(rapid.StringMatching(`[A-Za-z0-9_]{0,8}`), rapid.StringMatching(`[-A-Z0-9_ä]{0,3}`), rapid.StringMatching(`[A-Z]{62,64}`))
	messages := rapid.OneOf(rapid.String(), rapid.StringMatching(`[äx]{255,257}`))
	condition := rapid.Custom(func(t *rapid.T) *leasev1.ReportedCondition {
		return &leasev1.ReportedCondition{
			Type: kinds.Draw(t, "type"), Status: metav1.Condition_Status(rapid.Int32Range(-1, 5).Draw(t, "status")),
			Reason: reasons.Draw(t, "reason"), Message: messages.Draw(t, "message"), TransitionAge: ages().Draw(t, "transition age"),
		}
	})
	report := rapid.Custom(func(t *rapid.T) *leasev1.Report {
		return &leasev1.Report{ObservedAge: ages().Draw(t, "observed age"), CutOffAge: ages().Draw(t, "cut-off age"), Conditions: rapid.SliceOfN(condition, 0, 2).Draw(t, "conditions")}
	})
	return rapid.OneOf(report, rapid.Just[*leasev1.Report](nil), rapid.Just(&leasev1.Report{}))
}

func clientInfos(text *rapid.Generator[string]) *rapid.Generator[*metav1.ClientInfo] {
	return rapid.Custom(func(t *rapid.T) *metav1.ClientInfo {
		return &metav1.ClientInfo{
			Cluster: text.Draw(t, "cluster"), Agent: text.Draw(t, "agent"), Version: text.Draw(t, "version"),
			Features: rapid.SliceOfN(text, 0, 2).Draw(t, "features"),
		}
	})
}

func TestValidate_AgreesAtTheLimits(t *testing.T) {
	good := &leasev1.Registration{Holder: &leasev1.Holder{Class: "node", Name: "n1", BootId: "1"}}
	for _, n := range []int{1000, 1001} {
		all := make([]*leasev1.Registration, n)
		for i := range all {
			all[i] = good
		}
		agree(t, &leasev1.StreamHeartbeatsRequest{Sequence: 1, Registrations: all})
	}
	for _, n := range []int{10_000, 10_001} {
		agree(t, &leasev1.StreamHeartbeatsRequest{Sequence: 1, Handles: make([]uint32, n)})
		reports := make([]*leasev1.HandleReport, n)
		for i := range reports {
			reports[i] = &leasev1.HandleReport{Handle: 1}
		}
		agree(t, &leasev1.StreamHeartbeatsRequest{Sequence: 1, Reports: reports})
	}
	for _, n := range []int{16, 17} {
		report := &leasev1.Report{}
		for range n {
			report.Conditions = append(report.Conditions, &leasev1.ReportedCondition{Type: "A"})
		}
		agree(t, &leasev1.StreamHeartbeatsRequest{Sequence: 1, Reports: []*leasev1.HandleReport{{Handle: 1, Report: report}}})
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
			Registrations: []*leasev1.Registration{{Holder: &leasev1.Holder{
				Class: strings.ToValidUTF8(class, "?"), Name: strings.ToValidUTF8(name, "?"), BootId: strings.ToValidUTF8(boot, "?"),
			}}},
			Reports: []*leasev1.HandleReport{{Report: &leasev1.Report{Conditions: []*leasev1.ReportedCondition{{
				Type: strings.ToValidUTF8(class, "?"), Reason: strings.ToValidUTF8(boot, "?"), Message: strings.ToValidUTF8(name, "?"),
			}}}}},
		})
	})
}
