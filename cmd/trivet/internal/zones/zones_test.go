package zones_test

import (
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/zones"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func held(message string) []*metav1.Condition {
	return []*metav1.Condition{{Type: "MarkingSuspended", Status: metav1.Condition_STATUS_TRUE, Reason: "PAUSED", Message: message}}
}

func zone(name string, state nodev1.Zone_State, notReady int32) *nodev1.Zone {
	return &nodev1.Zone{
		Name: "zones/" + name, State: state, NodeCount: 7, NotReadyNodeCount: notReady, TaintsPerSecond: 0.1,
		Owner: &metav1.Owner{ReplicaId: "node-1-x7k2p", Shard: proto.Int32(0), Epoch: 18231},
	}
}

// disrupted returns a zone of each state.
func disrupted() *nodev1.ListZonesResponse {
	partial := zone("eu:b", nodev1.Zone_STATE_PARTIAL_DISRUPTION, 4)
	partial.WaitingNodeCount, partial.Conditions = 2, held("12 nodes became silent within 5s")
	return &nodev1.ListZonesResponse{
		Conditions: held("the process was paused for 7s"),
		Zones:      []*nodev1.Zone{zone("eu:a", nodev1.Zone_STATE_NORMAL, 0), partial, zone("none", nodev1.Zone_STATE_FULL_DISRUPTION, 7)},
	}
}

func TestZones_Transcripts(t *testing.T) {
	normal := &nodev1.ListZonesResponse{Zones: disrupted().Zones[:1]}
	missing := proto.CloneOf(normal)
	missing.Missing = []*metav1.MissingPart{{Service: "leasesvc", Shards: []int32{0}, Message: "no leader"}}
	tests := []struct {
		name  string
		zones *nodev1.ListZonesResponse
		args  []string
		code  int
	}{
		{name: "disrupted", zones: disrupted(), code: exit.Findings},
		{name: "wide", zones: disrupted(), args: []string{"-o", "wide"}, code: exit.Findings},
		{name: "normal", zones: normal, code: exit.OK},
		{name: "missing", zones: missing, code: exit.Undetermined},
		{name: "json", zones: normal, args: []string{"-o", "json"}, code: exit.OK},
		{name: "yaml", zones: normal, args: []string{"-o", "yaml"}, code: exit.OK},
		{name: "one", zones: disrupted(), args: []string{"eu:a"}, code: exit.OK},
		{name: "one-disrupted", zones: disrupted(), args: []string{"zones/none"}, code: exit.Findings},
		{name: "not-found", zones: disrupted(), args: []string{"eu:z"}, code: exit.Findings},
		{name: "no-leader", code: exit.Undetermined},
		{name: "usage", args: []string{"a/b", "-o", "xml"}, code: exit.Usage},
		{name: "help", args: []string{"--help"}, code: exit.OK},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := commandtest.Serve(t, &commandtest.Gateway{Zones: test.zones})
			got := commandtest.Run(t, commandtest.Terminal{}, zones.NewCommand, append(test.args, "--server", server)...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
		})
	}
}

func TestZones_WatchShowsChanges(t *testing.T) {
	event := func(kind metav1.EventType, z *nodev1.Zone) *nodev1.WatchZonesResponse {
		return &nodev1.WatchZonesResponse{Type: kind, Zone: z}
	}
	const added, modified, deleted = metav1.EventType_EVENT_TYPE_ADDED, metav1.EventType_EVENT_TYPE_MODIFIED, metav1.EventType_EVENT_TYPE_DELETED
	faster := zone("eu:a", nodev1.Zone_STATE_NORMAL, 0)
	faster.TaintsPerSecond, faster.Owner.Epoch = 0.2, 18300
	gateway := &commandtest.Gateway{Zones: disrupted(), ZoneWatches: []commandtest.Watch[nodev1.WatchZonesResponse]{{Events: []*nodev1.WatchZonesResponse{
		event(added, zone("eu:a", nodev1.Zone_STATE_NORMAL, 0)), {Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Bookmark: &metav1.Bookmark{InitialEventsEnd: true}},
		event(modified, faster), event(modified, zone("eu:a", nodev1.Zone_STATE_FULL_DISRUPTION, 7)), event(deleted, zone("eu:a", nodev1.Zone_STATE_FULL_DISRUPTION, 7)),
	}}}}
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"deleted", "paused"}}, zones.NewCommand, "-w", "--server", commandtest.Serve(t, gateway))
	commandtest.Golden(t, "watch.txt", got.Stdout)
	if got.Code != exit.Interrupted {
		t.Errorf("exit code = %d, want %d", got.Code, exit.Interrupted)
	}
}

func TestZones_CompletesNames(t *testing.T) {
	server := commandtest.Serve(t, &commandtest.Gateway{Zones: disrupted()})
	commandtest.Complete(t, zones.NewCommand, "eu:a\tnormal\neu:b\tpartial-disruption\n:4\n", "--server", server, "eu")
}
