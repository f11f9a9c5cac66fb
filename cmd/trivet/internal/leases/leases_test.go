package leases_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/leases"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lease returns an alive lease of a node with a written object.
func lease(name string, edits ...func(*leasev1.Lease)) *leasev1.Lease {
	l := &leasev1.Lease{
		Name: "namespaces/kube-node-lease/leases/" + name, Holder: &leasev1.Holder{Class: "node", Name: name, BootId: "boot-a"},
		State: leasev1.Lease_STATE_ALIVE, Owner: &metav1.Owner{ReplicaId: "node-1-x7k2p", Shard: proto.Int32(3), Epoch: 18231}, StartTime: commandtest.Ago(50 * time.Hour), ObserveTime: commandtest.Ago(time.Hour), ExpireTime: commandtest.Ahead(time.Hour),
		Sequence: 4711,
		Write: &leasev1.Lease_Write{
			State: leasev1.Lease_Write_STATE_WRITTEN, RenewTime: commandtest.Ago(2 * time.Hour), WriteTime: commandtest.Ago(3 * time.Hour), DueTime: commandtest.Ahead(4 * time.Hour),
			ResourceVersion: "812", Reason: "RENEWAL",
		},
	}
	for _, edit := range edits {
		edit(l)
	}
	return l
}

func expired(l *leasev1.Lease) {
	l.State, l.ExpireTime, l.Write.DueTime = leasev1.Lease_STATE_EXPIRED, commandtest.Ago(time.Hour), nil
}

func unwritten(failures int32, why string) func(*leasev1.Lease) {
	return func(l *leasev1.Lease) {
		l.Write = &leasev1.Lease_Write{State: leasev1.Lease_Write_STATE_RETRYING, FailureCount: failures, LastError: why, DueTime: commandtest.Ahead(time.Hour)}
	}
}

func pending(l *leasev1.Lease) {
	l.Write = &leasev1.Lease_Write{State: leasev1.Lease_Write_STATE_PENDING}
}

// withoutNode edits a lease as leasesvc reports it: an attempt without a Node counts as failed.
func withoutNode(l *leasev1.Lease) {
	l.Write = &leasev1.Lease_Write{State: leasev1.Lease_Write_STATE_NO_OWNER, FailureCount: 5, LastError: "the lease has no owner"}
}

func reported(l *leasev1.Lease) {
	l.Conditions = []*metav1.Condition{{Type: "KubeletHealthy", Status: metav1.Condition_STATUS_FALSE, Reason: "TIMEOUT", Message: "no answer within 1s"}}
}

func duplicated(l *leasev1.Lease) {
	l.Duplicate = &leasev1.Lease_Duplicate{BootId: "boot-b", LastRejectionTime: commandtest.Ago(time.Hour), RejectionCount: 12}
}

func allLeases() []*leasev1.Lease {
	sidecar := lease("s-1", func(l *leasev1.Lease) {
		l.Name, l.Holder.Class, l.State = "namespaces/mesh/leases/s-1", "sidecar", leasev1.Lease_STATE_SUSPECT
	})
	return []*leasev1.Lease{
		lease("node-1"), lease("node-2", expired), lease("node-3", unwritten(1, "conflict")), lease("node-4", unwritten(5, "etcdserver: no space")),
		lease("node-5", duplicated), lease("node-6", withoutNode), lease("node-7", pending, reported),
		sidecar,
	}
}

func TestLeases_Transcripts(t *testing.T) {
	all := &commandtest.Gateway{Leases: allLeases(), PageSize: 3}
	warnings := &commandtest.Gateway{Leases: []*leasev1.Lease{allLeases()[0], allLeases()[2], allLeases()[5], allLeases()[7]}}
	tests := []struct {
		name    string
		gateway *commandtest.Gateway
		where   commandtest.Terminal
		args    []string
		code    int
	}{
		{name: "every-state", gateway: all, code: exit.Findings},
		{name: "wide", gateway: all, args: []string{"-o", "wide"}, code: exit.Findings},
		{name: "terminal", gateway: all, where: commandtest.Terminal{Width: 200, Height: 24}, code: exit.Findings},
		{name: "warnings", gateway: warnings, args: []string{"-o", "name"}, code: exit.OK},
		{name: "one", gateway: all, args: []string{"kube-node-lease/node-1"}, code: exit.OK},
		{name: "one-with-a-duplicate", gateway: all, args: []string{"-n", "kube-node-lease", "node-5"}, code: exit.Findings},
		{name: "one-by-api-name", gateway: all, args: []string{"namespaces/mesh/leases/s-1", "--no-headers"}, code: exit.OK},
		{name: "not-found", gateway: all, args: []string{"kube-node-lease/node-9"}, code: exit.Findings},
		{name: "none", gateway: &commandtest.Gateway{}, code: exit.OK},
		{name: "usage", gateway: all, args: []string{"-n", "Kube", "--state=alive,dead", "node_1", "-o", "xml"}, code: exit.Usage},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := commandtest.Run(t, test.where, leases.NewCommand, append([]string{"--server", commandtest.Serve(t, test.gateway)}, test.args...)...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
		})
	}
}

func TestLeases_RequestHasTheFilters(t *testing.T) {
	gateway := &commandtest.Gateway{Leases: allLeases()}
	server := commandtest.Serve(t, gateway)
	commandtest.Run(t, commandtest.Terminal{}, leases.NewCommand, "--server", server, "-n", "kube-node-lease", "--state", "suspect,expired")
	commandtest.Run(t, commandtest.Terminal{}, leases.NewCommand, "--server", server)
	want := []*leasev1.ListLeasesRequest{
		{Parent: "namespaces/kube-node-lease", States: []leasev1.Lease_State{leasev1.Lease_STATE_SUSPECT, leasev1.Lease_STATE_EXPIRED}, PageSize: 5000},
		{PageSize: 5000},
	}
	if diff := cmp.Diff(want, commandtest.RequestsOf[*leasev1.ListLeasesRequest](gateway), protocmp.Transform()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestLeases_ErrorNamesTheProblem(t *testing.T) {
	server := commandtest.Serve(t, &commandtest.Gateway{Leases: allLeases()})
	for name, want := range map[string]string{
		"node-2": "error: namespaces/kube-node-lease/leases/node-2 needs attention: expired\n",
		"node-4": "error: namespaces/kube-node-lease/leases/node-4 needs attention: its object could not be written: etcdserver: no space\n",
		"node-5": "error: namespaces/kube-node-lease/leases/node-5 needs attention: boot boot-b sends beats under the same name\n",
	} {
		got := commandtest.Run(t, commandtest.Terminal{}, leases.NewCommand, "--server", server, "-n", "kube-node-lease", name)
		if got.Code != exit.Findings || got.Stderr != want {
			t.Errorf("%s: exit code = %d, stderr %q; want %d, %q", name, got.Code, got.Stderr, exit.Findings, want)
		}
	}
}

func TestLeases_JSONIsTheGatewaysAnswer(t *testing.T) {
	bare := &leasev1.Lease{Name: "namespaces/mesh/leases/s-1", State: leasev1.Lease_STATE_ALIVE}
	server := commandtest.Serve(t, &commandtest.Gateway{Leases: []*leasev1.Lease{bare}})
	commandtest.Golden(t, "list.json", commandtest.Run(t, commandtest.Terminal{}, leases.NewCommand, "--server", server, "-o", "json").String())
}

func TestLeases_WrongCommandLines(t *testing.T) {
	for _, args := range [][]string{
		{"node-1"}, {"a/b/c"}, {"/"}, {"UPPER/x"}, {"a/b", "-n", "c"}, {"a/b", "c/d"}, {"a/b", "--state=alive"}, {strings.Repeat("n", 64) + "/x"},
	} {
		if got := commandtest.Run(t, commandtest.Terminal{}, leases.NewCommand, args...); got.Code != exit.Usage || got.Stdout != "" {
			t.Errorf("%q: exit code = %d, stdout %q; want %d and nothing", args, got.Code, got.Stdout, exit.Usage)
		}
	}
}

func TestLeasesWatch_BeatsAndWritesAreNotChanges(t *testing.T) {
	first := lease("node-1")
	beat := proto.CloneOf(first)
	beat.ObserveTime, beat.Sequence, beat.ExpireTime = commandtest.Ago(0), 4712, commandtest.Ahead(2*time.Hour)
	beat.StartTime = proto.CloneOf(first.StartTime)
	beat.StartTime.Nanos ^= 1 // each replica computes it from its clock
	beat.Write.RenewTime, beat.Write.WriteTime, beat.Write.ResourceVersion = commandtest.Ago(0), commandtest.Ago(0), "813"
	orphan, orphanAgain := proto.CloneOf(first), proto.CloneOf(first)
	withoutNode(orphan)
	withoutNode(orphanAgain)
	orphanAgain.Write.FailureCount++
	dead := proto.CloneOf(first)
	expired(dead)
	event := func(kind metav1.EventType, l *leasev1.Lease) *leasev1.WatchLeasesResponse {
		return &leasev1.WatchLeasesResponse{Type: kind, Lease: l}
	}
	const added, modified, deleted = metav1.EventType_EVENT_TYPE_ADDED, metav1.EventType_EVENT_TYPE_MODIFIED, metav1.EventType_EVENT_TYPE_DELETED
	bookmark := &leasev1.WatchLeasesResponse{Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Bookmark: &metav1.Bookmark{InitialEventsEnd: true}}
	server := commandtest.Serve(t, &commandtest.Gateway{LeaseWatches: []commandtest.Watch[leasev1.WatchLeasesResponse]{
		{Events: []*leasev1.WatchLeasesResponse{event(added, first), bookmark, event(modified, beat), event(modified, orphan), event(modified, orphanAgain), event(modified, dead)}, Err: rpcerror.ShuttingDown()},
		{Events: []*leasev1.WatchLeasesResponse{event(added, dead), bookmark, event(deleted, lease("node-1"))}},
	}})
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"deleted"}}, leases.NewCommand, "--server", server, "-w", "-n", "kube-node-lease")
	if got.Code != exit.Interrupted {
		t.Errorf("exit code = %d, want %d", got.Code, exit.Interrupted)
	}
	commandtest.Golden(t, "watch.txt", got.String())
}

func TestLeases_CompletesNames(t *testing.T) {
	server := commandtest.Serve(t, &commandtest.Gateway{Leases: allLeases()[6:]})
	for _, test := range []struct{ args, want string }{
		{"", "kube-node-lease/node-7\talive\nmesh/s-1\tsuspect\n:4\n"},
		{"--namespace=mesh", "s-1\tsuspect\n:4\n"},
	} {
		args := append([]string{"--server", server}, strings.Fields(test.args)...)
		commandtest.Complete(t, leases.NewCommand, test.want, append(args, "")...)
	}
}

func TestLeases_Help(t *testing.T) {
	commandtest.Golden(t, "help.txt", commandtest.Run(t, commandtest.Terminal{}, leases.NewCommand, "--help").String())
}
