package alerts

import (
	"context"
	"fmt"
	"time"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// promtoolOnly are the alerts that no fault of this package makes fire, each with a reason.
func promtoolOnly() map[string]string {
	return map[string]string{
		"TrivetWatchesBreak": "a watch counts as dead after 90 seconds of silence, whatever the scale, and seven of them do not fit into a scaled hour",
	}
}

// realTime has the shipped `for` of the alerts whose conditions depend on times that the scale does
// not change: a session with etcd lasts five seconds, and bookmarks of a watch come once a minute.
func realTime() map[string]time.Duration {
	return map[string]time.Duration{"TrivetNoLeader": time.Minute, "TrivetSliceWatchSilent": time.Minute}
}

// quiet are operations that must let no alert fire.
func quiet() []fault {
	return []fault{
		{What: "nothing happens", Inject: func(*world) func() {
			testkit.Pause(context.Background(), 20*time.Second)
			return func() {}
		}},
		{What: "a rolling update", Inject: func(w *world) func() {
			for _, r := range w.lab.Replicas {
				w.must(r.Stop())
				w.mustStart(r)
				w.await(startTimeout, w.works)
			}
			return func() {}
		}},
		{What: "the leader of leasesvc is killed and comes back", Inject: crash("leasesvc")},
		{What: "the leader of slicesvc is killed and comes back", Inject: crash("slicesvc")},
		{What: "the leader of bootstrapsvc is killed and comes back", Inject: crash("bootstrapsvc")},
		{What: "a node dies and comes back", Inject: func(w *world) func() {
			node := w.fleet.Nodes()[3]
			w.die(node)
			w.await(time.Minute, func(ctx context.Context) error {
				unknown, err := w.metrics.Now(ctx, `sum(trivet_node_health{health="dead"}) > 0`)
				if err == nil && len(unknown) == 0 {
					err = fmt.Errorf("no node is unknown")
				}
				return err
			})
			return func() { w.live(node, "boot-after-"+w.stamp()) }
		}},
		{What: "all certificates are renewed", Inject: func(w *world) func() {
			for _, r := range w.lab.Replicas {
				w.setLifetime(r, leafLifetime)
			}
			return func() {}
		}},
	}
}

func crash(service string) func(*world) func() {
	return func(w *world) func() {
		r, _ := w.leader(service)
		r.Kill()
		w.mustStart(r)
		return func() {}
	}
}
