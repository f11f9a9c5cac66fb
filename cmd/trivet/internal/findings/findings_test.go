package findings_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/findings"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func service(name string) *metav1.ObjectReference {
	return &metav1.ObjectReference{ApiVersion: "v1", Kind: "Service", Namespace: "shop", Name: name}
}

// duplicate is open and manual, leaked is pending, missing is repaired.
func duplicate(edits ...func(*bootstrapv1.Finding)) *bootstrapv1.Finding {
	finding := &bootstrapv1.Finding{
		Name: "findings/duplicate-owner.node-ports.30080", Code: "DUPLICATE_OWNER",
		Store: bootstrapv1.Store_STORE_NODE_PORTS, Subject: "30080", State: bootstrapv1.Finding_STATE_OPEN,
		Message: "Services shop/web and shop/api both use node port 30080.", Objects: []*metav1.ObjectReference{service("web"), service("api")},
		RepairMode: bootstrapv1.Finding_REPAIR_MODE_MANUAL, RepairModeMessage: "one of the two must be recreated",
		FirstObserveTime: commandtest.Ago(time.Hour), LastObserveTime: commandtest.Ago(time.Hour), ObservationCount: 7,
	}
	for _, edit := range edits {
		edit(finding)
	}
	return finding
}

func leaked(edits ...func(*bootstrapv1.Finding)) *bootstrapv1.Finding {
	finding := &bootstrapv1.Finding{
		Name: "findings/leaked.node-ports.30081", Code: "LEAKED", Store: bootstrapv1.Store_STORE_NODE_PORTS,
		Subject: "30081", State: bootstrapv1.Finding_STATE_PENDING, Message: "No Service uses node port 30081.",
		Repair: "clear its bit", RepairModeMessage: "observed 2 times of 3", FirstObserveTime: commandtest.Ago(time.Hour),
		LastObserveTime: commandtest.Ago(time.Hour), ObservationCount: 2,
	}
	for _, edit := range edits {
		edit(finding)
	}
	return finding
}

func missing() *bootstrapv1.Finding {
	return &bootstrapv1.Finding{
		Name: "findings/not-allocated.ip-addresses.10.96.0.17", Code: "NOT_ALLOCATED",
		Store: bootstrapv1.Store_STORE_IP_ADDRESSES, Subject: "10.96.0.17", State: bootstrapv1.Finding_STATE_REPAIRED,
		Message: "Service shop/web uses 10.96.0.17, which has no IPAddress.\x1b[2J", Objects: []*metav1.ObjectReference{service("web")},
		Repair: "create IPAddress 10.96.0.17", RepairMode: bootstrapv1.Finding_REPAIR_MODE_AUTO,
		FirstObserveTime: commandtest.Ago(2 * time.Hour), LastObserveTime: commandtest.Ago(2 * time.Hour),
		EndTime: timestamppb.New(commandtest.Ago(2 * time.Hour).AsTime().Add(700 * time.Millisecond)), RepairedBy: "repairs/a1", ObservationCount: 1,
	}
}

func all() []*bootstrapv1.Finding {
	open := leaked(func(f *bootstrapv1.Finding) {
		f.Name, f.State, f.RepairMode, f.RepairModeMessage = "findings/leaked.node-ports.30099", bootstrapv1.Finding_STATE_OPEN, bootstrapv1.Finding_REPAIR_MODE_AUTO, ""
		f.Message = "No Service uses node port 30099."
	})
	ignored := leaked(func(f *bootstrapv1.Finding) {
		f.Name, f.State = "findings/orphan.ip-addresses.10.96.0.5", bootstrapv1.Finding_STATE_IGNORED
		f.Code, f.Message, f.Ignore = "ORPHAN", "No Service owns 10.96.0.5.", &bootstrapv1.Finding_Ignore{
			Caller: &metav1.Caller{User: "ada"}, Comment: "reserved", ExpireTime: timestamppb.New(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)),
		}
	})
	return []*bootstrapv1.Finding{missing(), duplicate(), leaked(), open, ignored}
}

func TestFindings_Transcripts(t *testing.T) {
	open := &commandtest.Gateway{Findings: all(), PageSize: 2}
	tests := []struct {
		name   string
		serves *commandtest.Gateway
		where  commandtest.Terminal
		args   []string
		code   int
	}{
		{name: "open", serves: open, code: exit.Findings},
		{name: "ended", serves: open, args: []string{"--ended"}, code: exit.Findings},
		{name: "wide", serves: open, args: []string{"-o", "wide", "--ended"}, code: exit.Findings},
		{name: "terminal", serves: open, where: commandtest.Terminal{Width: 130, Height: 24}, code: exit.Findings},
		{name: "names-of-code", serves: open, args: []string{"-o", "name", "--code", "leaked,orphan"}, code: exit.Findings},
		{name: "later-code", serves: open, args: []string{"--code", "NEW_CODE"}, code: exit.OK},
		{name: "states", serves: open, args: []string{"--state", "ignored,repaired"}, code: exit.OK},
		{name: "missing", serves: &commandtest.Gateway{Missing: []*metav1.MissingPart{{Service: "bootstrapsvc", Shards: []int32{0}, Message: "no leader"}}}, code: exit.Undetermined},
		{name: "pending", serves: &commandtest.Gateway{Findings: []*bootstrapv1.Finding{leaked()}}, code: exit.OK},
		{name: "none", serves: &commandtest.Gateway{}, code: exit.OK},
		{name: "json", serves: &commandtest.Gateway{Findings: []*bootstrapv1.Finding{{Name: "findings/a", State: bootstrapv1.Finding_STATE_PENDING}}}, args: []string{"-o", "json"}, code: exit.OK},
		{name: "one", serves: open, args: []string{"duplicate-owner.node-ports.30080"}, code: exit.Findings},
		{name: "one-repaired", serves: open, args: []string{"findings/not-allocated.ip-addresses.10.96.0.17"}, code: exit.OK},
		{name: "not-found", serves: open, args: []string{"leaked.node-ports.1"}, code: exit.Findings},
		{name: "no-leader", serves: &commandtest.Gateway{Err: rpcerror.New(codes.Unavailable, "NO_LEADER", "no replica of bootstrapsvc leads shard 0")}, code: exit.Undetermined},
		{name: "usage", serves: open, args: []string{"Leaked", "--code", "leaked,lost", "-w", "--state", "dead"}, code: exit.Usage},
		{name: "help", serves: open, args: []string{"--help"}, code: exit.OK},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			address := commandtest.Serve(t, test.serves)
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
	event := func(kind metav1.EventType, finding *bootstrapv1.Finding) *bootstrapv1.WatchFindingsResponse {
		return &bootstrapv1.WatchFindingsResponse{Type: kind, Finding: finding}
	}
	const added, modified, deleted = metav1.EventType_EVENT_TYPE_ADDED, metav1.EventType_EVENT_TYPE_MODIFIED, metav1.EventType_EVENT_TYPE_DELETED
	bookmark := &bootstrapv1.WatchFindingsResponse{Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Bookmark: &metav1.Bookmark{InitialEventsEnd: true}}
	// All versions of a finding have the same time of the first observation.
	first := commandtest.Ago(time.Hour)
	at := func(finding *bootstrapv1.Finding) *bootstrapv1.Finding {
		finding.FirstObserveTime = first
		return finding
	}
	address := commandtest.Serve(t, &commandtest.Gateway{FindingWatches: []commandtest.Watch[bootstrapv1.WatchFindingsResponse]{{Events: []*bootstrapv1.WatchFindingsResponse{
		event(added, at(duplicate())),
		event(added, at(leaked())),
		bookmark,
		event(modified, at(duplicate(func(f *bootstrapv1.Finding) { f.ObservationCount, f.LastObserveTime = 8, commandtest.Ago(0) }))),
		event(modified, leaked(func(f *bootstrapv1.Finding) {
			f.State, f.RepairMode, f.RepairModeMessage = bootstrapv1.Finding_STATE_OPEN, bootstrapv1.Finding_REPAIR_MODE_AUTO, ""
		})),
		event(deleted, at(leaked(func(f *bootstrapv1.Finding) {
			f.State, f.EndTime = bootstrapv1.Finding_STATE_REPAIRED, timestamppb.Now()
		}))),
	}}}})
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"repaired"}}, findings.NewCommand, "-w", "--server", address)
	commandtest.Golden(t, "watch.txt", got.String())
	if got.Code != exit.Interrupted {
		t.Errorf("exit code = %d, want %d", got.Code, exit.Interrupted)
	}
}

func TestFindings_RequestHasTheFilters(t *testing.T) {
	const pending, open, ignored = bootstrapv1.Finding_STATE_PENDING, bootstrapv1.Finding_STATE_OPEN, bootstrapv1.Finding_STATE_IGNORED
	const repaired, resolved, ended = bootstrapv1.Finding_STATE_REPAIRED, bootstrapv1.Finding_STATE_RESOLVED, bootstrapv1.Finding_STATE_ENDED
	gateway := &commandtest.Gateway{}
	server := commandtest.Serve(t, gateway)
	for _, args := range [][]string{{}, {"--ended", "--code=leaked,NEW_CODE"}, {"--state=open", "--ended"}, {"--state=pending,repaired"}} {
		commandtest.Run(t, commandtest.Terminal{}, findings.NewCommand, append(args, "--server", server)...)
	}
	want := []*bootstrapv1.ListFindingsRequest{
		{States: []bootstrapv1.Finding_State{pending, open, ignored}, PageSize: 5000},
		{States: []bootstrapv1.Finding_State{pending, open, ignored, repaired, resolved, ended}, Codes: []string{"LEAKED", "NEW_CODE"}, PageSize: 5000},
		{States: []bootstrapv1.Finding_State{open, repaired, resolved, ended}, PageSize: 5000},
		{States: []bootstrapv1.Finding_State{pending, repaired}, PageSize: 5000},
	}
	if diff := cmp.Diff(want, commandtest.RequestsOf[*bootstrapv1.ListFindingsRequest](gateway), protocmp.Transform()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestFindingsIgnore(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want *bootstrapv1.IgnoreFindingRequest
	}{
		{name: "ignore", args: []string{"ignore", "leaked.node-ports.30081"}, want: &bootstrapv1.IgnoreFindingRequest{}},
		{
			name: "ignore-for", args: []string{"ignore", "findings/leaked.node-ports.30081", "--for=24h", "--comment=until the migration"},
			want: &bootstrapv1.IgnoreFindingRequest{Ttl: durationpb.New(24 * time.Hour), Comment: "until the migration"},
		},
		{name: "ignore-dry-run", args: []string{"ignore", "leaked.node-ports.30081", "--dry-run"}, want: &bootstrapv1.IgnoreFindingRequest{ValidateOnly: true}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			gateway := &commandtest.Gateway{Findings: all()}
			got := commandtest.Run(t, commandtest.Terminal{}, findings.NewCommand, append(test.args, "--server", commandtest.Serve(t, gateway))...)
			if got.Code != exit.OK {
				t.Errorf("exit code = %d, want %d", got.Code, exit.OK)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
			requests := commandtest.RequestsOf[*bootstrapv1.IgnoreFindingRequest](gateway)
			if len(requests) != 1 || uuid.Validate(requests[0].GetRequestId()) != nil {
				t.Fatalf("requests %v, want one with a UUID", requests)
			}
			test.want.Name, test.want.RequestId = "findings/leaked.node-ports.30081", requests[0].GetRequestId()
			if diff := cmp.Diff(test.want, requests[0], protocmp.Transform()); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
	gateway := &commandtest.Gateway{}
	got := commandtest.Run(t, commandtest.Terminal{}, findings.NewCommand, "unignore", "leaked.node-ports.1", "--server", commandtest.Serve(t, gateway))
	if got.Code != exit.Findings || !strings.Contains(got.Stderr, "error[FINDING_NOT_FOUND]") {
		t.Errorf("%s, want exit code %d and the reason", got, exit.Findings)
	}
}

func TestFindingsUnignore(t *testing.T) {
	gateway := &commandtest.Gateway{Findings: all()}
	got := commandtest.Run(t, commandtest.Terminal{}, findings.NewCommand, "unignore", "leaked.node-ports.30081", "--server", commandtest.Serve(t, gateway))
	if got.Code != exit.OK {
		t.Errorf("exit code = %d, want %d", got.Code, exit.OK)
	}
	commandtest.Golden(t, "unignore.txt", got.String())
	requests := commandtest.RequestsOf[*bootstrapv1.UnignoreFindingRequest](gateway)
	if len(requests) != 1 || requests[0].GetName() != "findings/leaked.node-ports.30081" || uuid.Validate(requests[0].GetRequestId()) != nil {
		t.Fatalf("requests %v, want one for the finding with a UUID", requests)
	}
}

func TestFindingsIgnore_WrongCommandLines(t *testing.T) {
	for _, args := range [][]string{
		{"ignore"}, {"ignore", "a", "b"}, {"ignore", "A"}, {"ignore", "a", "--for=0s"}, {"ignore", "a", "--for=-1h"}, {"ignore", "a", "--for=8761h"},
		{"ignore", "a", "--comment=" + strings.Repeat("c", 1025)}, {"ignore", "a", "-o", "table"}, {"unignore"}, {"unignore", "a", "--for=1h"},
	} {
		if got := commandtest.Run(t, commandtest.Terminal{}, findings.NewCommand, args...); got.Code != exit.Usage || got.Stdout != "" {
			t.Errorf("%.60q: exit code = %d, stdout %q; want %d and nothing", args, got.Code, got.Stdout, exit.Usage)
		}
	}
}

func TestDocPage_EveryCodeHasOne(t *testing.T) {
	for code, want := range map[string]string{
		"": "", "NOT_ALLOCATED": "docs/findings/not-allocated.md", "RANGE_MISMATCH": "docs/findings/range-mismatch.md", "NEW_CODE": "",
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
