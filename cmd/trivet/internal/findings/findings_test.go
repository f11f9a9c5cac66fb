package findings_test

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/commandtest"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/findings"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func service(name string) *statusv1.ObjectReference {
	return &statusv1.ObjectReference{ApiVersion: "v1", Kind: "Service", Namespace: "shop", Name: name}
}

// duplicate is open and manual, leaked is pending, missing is repaired.
func duplicate(edits ...func(*bootstrapv1.Finding)) *bootstrapv1.Finding {
	finding := &bootstrapv1.Finding{
		Name: "findings/duplicate-owner.node-ports.30080", Code: bootstrapv1.Finding_CODE_DUPLICATE_OWNER,
		Store: bootstrapv1.Finding_STORE_NODE_PORTS, Subject: "30080", State: bootstrapv1.Finding_STATE_OPEN,
		Message: "Services shop/web and shop/api both use node port 30080.", Owners: []*statusv1.ObjectReference{service("web"), service("api")},
		UnsafeReason: "one of the two must be recreated", FirstSeenTime: commandtest.Ago(time.Hour), LastSeenTime: commandtest.Ago(time.Minute), Sightings: 7,
	}
	for _, edit := range edits {
		edit(finding)
	}
	return finding
}

func leaked(edits ...func(*bootstrapv1.Finding)) *bootstrapv1.Finding {
	finding := &bootstrapv1.Finding{
		Name: "findings/leaked.node-ports.30081", Code: bootstrapv1.Finding_CODE_LEAKED, Store: bootstrapv1.Finding_STORE_NODE_PORTS,
		Subject: "30081", State: bootstrapv1.Finding_STATE_PENDING, Message: "No Service uses node port 30081.",
		Repair: "clear its bit", UnsafeReason: "seen 2 times of 3", FirstSeenTime: commandtest.Ago(time.Hour), LastSeenTime: commandtest.Ago(0), Sightings: 2,
	}
	for _, edit := range edits {
		edit(finding)
	}
	return finding
}

func missing() *bootstrapv1.Finding {
	return &bootstrapv1.Finding{
		Name: "findings/not-allocated.ip-addresses.10.96.0.17", Code: bootstrapv1.Finding_CODE_NOT_ALLOCATED,
		Store: bootstrapv1.Finding_STORE_IP_ADDRESSES, Subject: "10.96.0.17", State: bootstrapv1.Finding_STATE_REPAIRED,
		Message: "Service shop/web uses 10.96.0.17, which has no IPAddress.\x1b[2J", Owners: []*statusv1.ObjectReference{service("web")},
		Repair: "create IPAddress 10.96.0.17", Safe: true, FirstSeenTime: commandtest.Ago(2 * time.Hour), LastSeenTime: commandtest.Ago(2 * time.Hour),
		EndTime: timestamppb.New(commandtest.Ago(2 * time.Hour).AsTime().Add(700 * time.Millisecond)), RepairedBy: "repairs/a1", Sightings: 1,
	}
}

func all() []*bootstrapv1.Finding {
	open := leaked(func(f *bootstrapv1.Finding) {
		f.Name, f.State, f.Safe, f.UnsafeReason = "findings/leaked.node-ports.30099", bootstrapv1.Finding_STATE_OPEN, true, ""
		f.Message = "No Service uses node port 30099."
	})
	return []*bootstrapv1.Finding{missing(), duplicate(), leaked(), open}
}

func TestFindings_Transcripts(t *testing.T) {
	open := &commandtest.Bootstrap{Findings: all(), PageSize: 2}
	tests := []struct {
		name   string
		serves *commandtest.Bootstrap
		where  commandtest.Terminal
		args   []string
		code   int
	}{
		{name: "open", serves: open, code: exit.Findings},
		{name: "ended", serves: open, args: []string{"--ended"}, code: exit.Findings},
		{name: "wide", serves: open, args: []string{"-o", "wide", "--ended"}, code: exit.Findings},
		{name: "terminal", serves: open, where: commandtest.Terminal{Width: 130, Height: 24}, code: exit.Findings},
		{name: "names-of-code", serves: open, args: []string{"-o", "name", "--code", "leaked"}, code: exit.Findings},
		{name: "pending", serves: &commandtest.Bootstrap{Findings: []*bootstrapv1.Finding{leaked()}}, code: exit.OK},
		{name: "none", serves: &commandtest.Bootstrap{}, code: exit.OK},
		{name: "json", serves: &commandtest.Bootstrap{Findings: []*bootstrapv1.Finding{{Name: "findings/a", State: bootstrapv1.Finding_STATE_PENDING}}}, args: []string{"-o", "json"}, code: exit.OK},
		{name: "one", serves: open, args: []string{"duplicate-owner.node-ports.30080"}, code: exit.Findings},
		{name: "one-repaired", serves: open, args: []string{"findings/not-allocated.ip-addresses.10.96.0.17"}, code: exit.OK},
		{name: "not-found", serves: open, args: []string{"leaked.node-ports.1"}, code: exit.Undetermined},
		{name: "no-leader", serves: &commandtest.Bootstrap{Err: rpcerror.New(codes.Unavailable, rpcerror.NotLeaderReason, "no replica of bootstrapsvc holds the term")}, code: exit.Undetermined},
		{name: "usage", serves: open, args: []string{"Leaked", "--code", "lost", "-w", "--ended"}, code: exit.Usage},
		{name: "help", serves: open, args: []string{"--help"}, code: exit.OK},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			address := commandtest.Serve(t, &commandtest.Gateway{Bootstrap: test.serves})
			got := commandtest.Run(t, test.where, findings.NewCommand, append(test.args, "--server", address)...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
		})
	}
}

// A further observation is not a change; a change of the state and the end are.
func TestFindings_WatchShowsChanges(t *testing.T) {
	event := func(kind bootstrapv1.WatchFindingsResponse_Type, finding *bootstrapv1.Finding) *gatewayv1.WatchFindingsResponse {
		return &gatewayv1.WatchFindingsResponse{Type: kind, Finding: finding}
	}
	// All versions of a finding have the same time of the first observation.
	first := commandtest.Ago(time.Hour)
	at := func(finding *bootstrapv1.Finding) *bootstrapv1.Finding {
		finding.FirstSeenTime = first
		return finding
	}
	modified := bootstrapv1.WatchFindingsResponse_TYPE_MODIFIED
	address := commandtest.Serve(t, &commandtest.Gateway{Bootstrap: &commandtest.Bootstrap{FindingWatches: [][]*gatewayv1.WatchFindingsResponse{{
		event(bootstrapv1.WatchFindingsResponse_TYPE_ADDED, at(duplicate())),
		event(bootstrapv1.WatchFindingsResponse_TYPE_ADDED, at(leaked())),
		event(bootstrapv1.WatchFindingsResponse_TYPE_BOOKMARK, nil),
		event(modified, at(duplicate(func(f *bootstrapv1.Finding) { f.Sightings, f.LastSeenTime = 8, commandtest.Ago(0) }))),
		event(modified, leaked(func(f *bootstrapv1.Finding) {
			f.State, f.Safe, f.UnsafeReason = bootstrapv1.Finding_STATE_OPEN, true, ""
		})),
		event(bootstrapv1.WatchFindingsResponse_TYPE_DELETED, at(leaked(func(f *bootstrapv1.Finding) {
			f.State, f.EndTime = bootstrapv1.Finding_STATE_REPAIRED, timestamppb.Now()
		}))),
	}}}})
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"repaired"}}, findings.NewCommand, "-w", "--server", address)
	commandtest.Golden(t, "watch.txt", got.String())
	if got.Code != exit.Interrupted {
		t.Errorf("exit code = %d, want %d", got.Code, exit.Interrupted)
	}
}

func TestDocPage_EveryCodeHasOne(t *testing.T) {
	for code, want := range map[bootstrapv1.Finding_Code]string{
		bootstrapv1.Finding_CODE_UNSPECIFIED:    "",
		bootstrapv1.Finding_CODE_NOT_ALLOCATED:  "docs/findings/not-allocated.md",
		bootstrapv1.Finding_CODE_RANGE_MISMATCH: "docs/findings/range-mismatch.md",
		bootstrapv1.Finding_Code(4711):          "",
	} {
		if got := findings.DocPage(code); got != want {
			t.Errorf("DocPage(%s) = %q, want %q", code, got, want)
		}
	}
}

func TestParseName_AcceptsTheNamesOfTheList(t *testing.T) {
	const want = "findings/not-allocated.ip-addresses.fd00::17"
	for _, text := range []string{want, findings.ShortName(want)} {
		if got, err := findings.ParseName(text); got != want || err != nil {
			t.Errorf("ParseName(%q) = %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", "findings/", "a/b", "A", "a b", "\x1b[2J", strings.Repeat("a", 250)} {
		if got, err := findings.ParseName(text); err == nil {
			t.Errorf("ParseName(%q) = %q, want an error", text, got)
		}
	}
}
