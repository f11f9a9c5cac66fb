package sessioncontroller_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpoint"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// Older versions stored Nodes without a session as holders of the class "node.lease".
func TestCheckpoints_EntriesOfOlderVersionsAreSkipped(t *testing.T) {
	client := testkit.Etcd(t)
	store := sessioncontroller.NewCheckpointStore(client, t.Name(), "leasesvc")
	served := []class.Class{class.DefaultNode()}
	checkpoints := sessioncontroller.NewCheckpoints(sessioncontroller.CheckpointsConfig{
		Store: store, Catalog: class.NewCatalog(served, 1), Classes: served, Logger: slog.New(slog.DiscardHandler),
	})
	held := claim(t, client, 0)
	older := checkpoint.Encode([]checkpoint.Entry{
		{Class: class.Node, Name: "n1", Boot: "1", Silence: time.Hour},
		{Class: "node.lease", Name: "n1", Boot: "5f0c7a52-91c0-4bd2-b2ff-0123456789ab", Silence: time.Hour},
		{Class: "node.lease", Name: "n2", Boot: "5f0c7a52-91c0-4bd2-b2ff-0123456789ac", Silence: time.Hour},
	})
	if err := store.Put(t.Context(), held, older); err != nil {
		t.Fatal(err)
	}
	silences, empty := checkpoints.Restore(t.Context(), held)
	want := []session.Silence{{Holder: node("n1", "1"), For: time.Hour}}
	if diff := cmp.Diff(want, silences); diff != "" || empty {
		t.Errorf("empty %t (-want +got):\n%s", empty, diff)
	}
}
