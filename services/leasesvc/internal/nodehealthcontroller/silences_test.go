package nodehealthcontroller_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// gain gives a replica a shard with what another one has published of it until lose is called.
func (r *replica) gain(t *testing.T, number int, from *replica) (lose func()) {
	t.Helper()
	of, judged := from.publisher.Snapshot().Silences.ByShard[number]
	if !judged {
		t.Fatalf("%s has published nothing of shard %d, which it holds", from.name, number)
	}
	held := sessioncontroller.NewHeldShard(t.Context(), number, 1)
	var silences []sessioncontroller.NodeSilence
	for _, s := range of {
		silences = append(silences, sessioncontroller.NodeSilence(s))
	}
	held.Inherit(silences)
	r.terms.Add(held)
	return func() { r.terms.Remove(held) }
}

func TestRun_SilenceIsPassedOnFromHolderToHolder(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		refused uint64
		marked  time.Duration
	}{
		"observed by all":                    {0, 21 * time.Second},
		"the second holder refused sessions": {3, 50 * time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeCluster(12)
				all, end := replicas(t, f, 2, "a", "b")
				defer end()
				lose := all[0].hold(t.Context(), 0, 1)
				f.beat(30*time.Second, "n0")
				lose0, lose1 := all[1].gain(t, 0, all[0]), all[1].gain(t, 1, all[0])
				defer lose0()
				defer lose1()
				lose()
				f.beat(10*time.Second, "n0")
				all[1].mu.Lock()
				all[1].refused = c.refused
				all[1].mu.Unlock()
				f.beat(c.marked-12*time.Second, "n0")
				f.expectWrites(t)
				f.beat(4*time.Second, "n0")
				f.expectWrites(t, "b: mark-unknown n0", "b: add-no-execute n0", "unready pod-n0")
			})
		})
	}
}

// A replica that gains a shard has published its silences before a checkpoint asks for them.
func TestRun_SilencesOfAGainedShardAreKnownAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(12)
		all, end := replicas(t, f, 2, "a")
		defer end()
		f.beat(20 * time.Second)
		if of, judged := all[0].publisher.Snapshot().Silences.ByShard[0]; judged {
			t.Errorf("silences of a shard that is not held: %v", of)
		}
		defer all[0].hold(t.Context(), 0)()
		time.Sleep(time.Second / 2)
		snapshot := all[0].publisher.Snapshot()
		if of, judged := snapshot.Silences.ByShard[0]; !judged || len(of) > 0 || snapshot.Silences.Doubted {
			t.Errorf("silences %v, judged %t, doubted %t; want none, and no doubt", of, judged, snapshot.Silences.Doubted)
		}
	})
}

// A leader that was stopped observed nothing meanwhile: that is no silence for its successor.
func TestRun_StoppedProcessPassesOnNoSilenceOfItsPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(12)
		all, end := replicas(t, f, 2, "a")
		defer end()
		defer all[0].hold(t.Context(), 0, 1)()
		f.beat(20*time.Second, "n0")
		all[0].mu.Lock()
		all[0].stop = time.Minute
		all[0].mu.Unlock()
		f.beat(time.Minute, "n0")
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			for _, s := range all[0].publisher.Snapshot().Silences.ByShard[0] {
				if s.Name != "n0" || s.For > 31*time.Second {
					t.Fatalf("%s is stored as silent for %v, of which the process observed at most 31 s", s.Name, s.For)
				}
			}
		}
		f.expectWrites(t)
	})
}

// A Node that was deleted and created again between two passes inherits no silence.
func TestRun_RecreatedNodeInheritsNoSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(12)
		all, end := replicas(t, f, 2, "a")
		defer end()
		shards := []*sessioncontroller.HeldShard{sessioncontroller.NewHeldShard(t.Context(), 0, 1), sessioncontroller.NewHeldShard(t.Context(), 1, 1)}
		for _, held := range shards {
			held.Inherit([]sessioncontroller.NodeSilence{{Name: "n0", UID: f.live.nodes["n0"].UID, For: time.Hour}})
			all[0].terms.Add(held)
			defer all[0].terms.Remove(held)
		}
		f.beat(10*time.Second, "n0")
		f.change(func() {
			node := f.live.nodes["n0"].DeepCopy()
			node.UID = "another"
			f.putNode(node)
		})
		f.beat(40*time.Second, "n0")
		f.expectWrites(t)
	})
}
