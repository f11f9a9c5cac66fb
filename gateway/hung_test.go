package gateway_test

import (
	"fmt"
	"testing"
	"time"

	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
)

// hungNamed bounds how long a replica that hangs is not named, with a timeout of half a second: two
// seconds to the next probe, five timeouts for its answer, and the next attempt.
const hungNamed = 8 * time.Second

// A replica hangs: its connections stay open and nothing arrives. A watch names it in time, goes on
// with the other replica, and has all items again when the replica goes on.
func TestWatch_NamesAReplicaThatHangs(t *testing.T) {
	leasesvc := newLeasesvc("l1", "l2")
	names := map[int]string{} // a Node of each shard
	for i := 0; len(names) < 2; i++ {
		name := fmt.Sprintf("node-%d", i)
		names[leasesvc.shardOf(name)] = name
		leasesvc.put(name, "a", nodev1.NodeHealth_HEALTH_READY)
	}
	_, l1 := leasesvc.start(t, "l1")
	_, l2 := leasesvc.start(t, "l2")
	relay := faultproxy.NewRelay(t, l2.GRPCAddress)
	l2.GRPCAddress = relay.Addr()
	service := startGateway(t, newDirectory(l1, l2), 500*time.Millisecond)
	watch := openCombined(t, nil, service, "/v1/nodes:watch")
	watch.next(t, "whole bookmark", func(line combinedLine) bool { return isBookmarkOf(0)(line) && len(line.Result.Bookmark.Missing) == 0 })

	relay.BlockToTarget(true)
	relay.BlockFromTarget(true)
	hung := time.Now()
	named := watch.next(t, "bookmark that names l2", func(line combinedLine) bool {
		return isBookmarkOf(0)(line) && len(line.Result.Bookmark.Missing) > 0
	})
	if took := time.Since(hung); took > hungNamed {
		t.Errorf("l2 is named after %v, want %v", took, hungNamed)
	}
	if missing := named.Result.Bookmark.Missing; len(missing) != 1 || missing[0].ReplicaID != "l2" {
		t.Errorf("missing = %+v, want l2", missing)
	}
	leasesvc.put(names[0], "b", nodev1.NodeHealth_HEALTH_READY)
	watch.next(t, "change of the other replica", isNode(0, "nodes/"+names[0]))

	relay.BlockToTarget(false)
	relay.BlockFromTarget(false)
	leasesvc.put(names[1], "b", nodev1.NodeHealth_HEALTH_READY)
	watch.next(t, "change of l2", isNode(0, "nodes/"+names[1]))
	watch.next(t, "whole bookmark after l2 went on", func(line combinedLine) bool {
		return isBookmarkOf(0)(line) && len(line.Result.Bookmark.Missing) == 0
	})
}
