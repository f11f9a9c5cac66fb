package shadow_test

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	shadowv1 "github.com/trivet-dev/trivet/proto/trivet/shadow/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func comparison(loop, replica string, changes ...func(*shadowv1.Comparison)) *shadowv1.Comparison {
	c := &shadowv1.Comparison{
		Loop: loop, ReplicaId: replica, ComparedCount: 1200, SettleDuration: durationpb.New(30 * time.Second),
		SinceTime: commandtest.Ago(time.Hour), PassTime: commandtest.Ago(time.Second), PassCount: 360,
	}
	for _, change := range changes {
		change(c)
	}
	return c
}

// differences returns one of each kind of interest: unexplained, intended, and packing.
func differences() []*shadowv1.Difference {
	slice := func(kind shadowv1.Difference_Kind, name, reason string) *shadowv1.Difference {
		return &shadowv1.Difference{
			Name: "differences/endpointslices/x/endpointslice/shop/" + name, Loop: "endpointslices", Kind: kind, Subject: "services/shop/web", Reason: reason,
			Object: &metav1.ObjectReference{Kind: "EndpointSlice", Namespace: "shop", Name: name}, Message: "ENDPOINTS_CHANGED: 0 endpoints added, 0 removed, 1 changed",
			Writer: "kube-controller-manager", ResourceVersion: "4711", SinceTime: commandtest.Ago(time.Hour), ReplicaId: "slicesvc-1",
		}
	}
	content := slice(shadowv1.Difference_KIND_CONTENT, "web-\x1b[2J", "")
	content.FieldCount = 3
	content.FieldChanges = []*metav1.FieldChange{{Path: `endpoints["10.0.0.1 web-0"].conditions.ready`, Before: "true", After: "false"}}
	hints := slice(shadowv1.Difference_KIND_CONTENT, "web-2", "HINTS_ALLOCATED_OTHERWISE")
	hints.FieldChanges = []*metav1.FieldChange{{Path: `endpoints["10.0.0.2 web-1"].hints`, After: "{}"}}
	return []*shadowv1.Difference{content, hints, slice(shadowv1.Difference_KIND_PACKING, "web-3", "SLICES_PACKED_OTHERWISE")}
}

func settling(c *shadowv1.Comparison) {
	c.SettlingCount, c.Undetermined = 2, "it compares since 5s and a difference counts after 30s"
}

func verdicts(c *shadowv1.Comparison) {
	c.VerdictCount, c.EarlierCount = 3, 2
	for _, lead := range []time.Duration{29 * time.Second, 31 * time.Second, -time.Second} {
		c.Verdicts = append(c.Verdicts, &shadowv1.Verdict{Node: "n", Lead: durationpb.New(lead)})
	}
}

func answer(differences []*shadowv1.Difference, comparisons ...*shadowv1.Comparison) *commandtest.Gateway {
	return &commandtest.Gateway{
		Differences: []*shadowv1.ListDifferencesResponse{{Differences: differences, Comparisons: comparisons}},
		Shards:      []*statusv1.ShardStatus{{Name: "shards/slicesvc/0", Service: "slicesvc", Shard: proto.Int32(0), LeaderId: "slicesvc-1"}},
	}
}

func TestShadow_Transcripts(t *testing.T) {
	whole := comparison("endpointslices", "slicesvc-1")
	timeless := differences()[:1]
	timeless[0].SinceTime = nil
	leaderless := answer(nil, whole)
	leaderless.Shards = append(leaderless.Shards, &statusv1.ShardStatus{Name: "shards/slicesvc/1", Service: "slicesvc", Shard: proto.Int32(1)})
	writes := answer(nil, whole)
	writes.Shards = append(writes.Shards, &statusv1.ShardStatus{Name: "shards/slicesvc/1", Service: "slicesvc", Shard: proto.Int32(1), LeaderId: "slicesvc-2"})
	missing := answer(nil, whole)
	missing.Differences[0].Missing = []*metav1.MissingPart{{Service: "slicesvc", ReplicaId: "slicesvc-2", Message: "no answer within 1s"}, {Service: "leasesvc", Message: "no replica is registered"}}
	unsettled := answer(nil, comparison("endpointslices", "slicesvc-1", settling))
	for _, test := range []struct {
		name    string
		gateway *commandtest.Gateway
		args    []string
		code    int
	}{
		{name: "none", gateway: answer(nil, whole), args: []string{"slices"}, code: exit.OK},
		{name: "all", gateway: answer(differences(), whole), args: []string{"slices"}, code: exit.Findings},
		{name: "wide", gateway: answer(differences(), whole), args: []string{"slices", "-o", "wide"}, code: exit.Findings},
		{name: "intended", gateway: answer(differences()[1:], whole), args: []string{"slices"}, code: exit.OK},
		{name: "names", gateway: answer(differences(), whole), args: []string{"slices", "-o", "name"}, code: exit.Findings},
		{name: "json", gateway: answer(timeless, &shadowv1.Comparison{Loop: "endpointslices", ReplicaId: "slicesvc-1"}), args: []string{"slices", "-o", "json"}, code: exit.Findings},
		{name: "settling", gateway: unsettled, args: []string{"slices"}, code: exit.Undetermined},
		{name: "not-in-dry-run", gateway: answer(nil), args: []string{"endpoints"}, code: exit.Undetermined},
		{name: "leaderless", gateway: leaderless, args: []string{"slices"}, code: exit.Undetermined},
		{name: "writes", gateway: writes, args: []string{"slices"}, code: exit.Undetermined},
		{name: "missing", gateway: missing, args: []string{"slices"}, code: exit.Undetermined},
		{name: "verdicts", gateway: answer(nil, comparison("node-health", "leasesvc-1", verdicts)), args: []string{"nodes"}, code: exit.OK},
		{name: "error", gateway: &commandtest.Gateway{Err: errors.New("broken")}, args: []string{"nodes"}, code: exit.Undetermined},
		{name: "usage", gateway: answer(nil), args: []string{"slices", "web", "--for=-1s", "-o", "xml"}, code: exit.Usage},
		{name: "help", gateway: answer(nil), args: []string{"slices", "--help"}, code: exit.OK},
		{name: "help-shadow", gateway: answer(nil), args: []string{"--help"}, code: exit.OK},
	} {
		t.Run(test.name, func(t *testing.T) {
			args := test.args
			if test.name != "help-shadow" {
				args = append(args, "--server", commandtest.Serve(t, test.gateway))
			}
			got := commandtest.Run(t, commandtest.Terminal{}, shadow.NewCommand, args...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
		})
	}
}

// A difference that is gone at the end is listed, and what settled meanwhile is not missing.
func TestShadow_ForAsksAgainAndListsWhatWasThere(t *testing.T) {
	t.Parallel() // it mostly waits: it asks every two seconds
	gateway := answer(nil)
	gateway.Differences = []*shadowv1.ListDifferencesResponse{
		{Comparisons: []*shadowv1.Comparison{comparison("endpointslices", "slicesvc-1", settling)}},
		{Differences: differences()[:1], Comparisons: []*shadowv1.Comparison{comparison("endpointslices", "slicesvc-1")}},
		{Comparisons: []*shadowv1.Comparison{comparison("endpointslices", "slicesvc-1")}},
	}
	got := commandtest.Run(t, commandtest.Terminal{}, shadow.NewCommand, "slices", "--for=6s", "--timeout=4s", "-o", "name", "--server", commandtest.Serve(t, gateway))
	if got.Code != exit.Findings {
		t.Errorf("exit code = %d, want %d:\n%s", got.Code, exit.Findings, got)
	}
	if asked := len(commandtest.RequestsOf[*shadowv1.ListDifferencesRequest](gateway)); asked < 3 {
		t.Errorf("asked %d times, want three at least", asked)
	}
}

// A verdict that upstream makes later is intended for a time, and then it is not.
func TestShadow_ForListsAgainWhatIsNotIntendedAnyMore(t *testing.T) {
	t.Parallel() // it mostly waits: it asks every two seconds
	late := func(reason string) []*shadowv1.Difference {
		return []*shadowv1.Difference{{
			Name: "differences/node-health/condition/node/n1", Loop: "node-health", Kind: shadowv1.Difference_KIND_CONDITION, Reason: reason,
			Object: &metav1.ObjectReference{Kind: "Node", Name: "n1"},
		}}
	}
	gateway := answer(nil)
	gateway.Shards = nil
	compared := []*shadowv1.Comparison{comparison("node-health", "leasesvc-1")}
	gateway.Differences = []*shadowv1.ListDifferencesResponse{
		{Differences: late("EARLIER_VERDICT"), Comparisons: compared}, {Differences: late(""), Comparisons: compared}, {Comparisons: compared},
	}
	got := commandtest.Run(t, commandtest.Terminal{}, shadow.NewCommand, "nodes", "--for=6s", "--timeout=4s", "-o", "name", "--server", commandtest.Serve(t, gateway))
	if got.Code != exit.Findings {
		t.Errorf("exit code = %d, want %d:\n%s", got.Code, exit.Findings, got)
	}
}
