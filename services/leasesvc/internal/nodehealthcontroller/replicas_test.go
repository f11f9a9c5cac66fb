package nodehealthcontroller_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// replica is one of several that run on a fake cluster, with its own cache.
type replica struct {
	*fakeCluster
	name      string
	changed   map[string]struct{}
	terms     *sessioncontroller.HeldShards
	publisher *nodehealthcontroller.Publisher
	registry  *prometheus.Registry

	mu             sync.Mutex // guards what follows
	sessions       map[string]session.State
	observes       map[string]bool
	sessionChanges map[string]struct{}
}

// replicas run side by side in a bubble until end is called.
func replicas(t *testing.T, f *fakeCluster, shards int, names ...string) (all []*replica, end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, name := range names {
		r := &replica{
			fakeCluster: f, name: name, changed: map[string]struct{}{}, terms: sessioncontroller.NewHeldShards(), publisher: nodehealthcontroller.NewPublisher(),
			sessions: map[string]session.State{}, observes: map[string]bool{}, sessionChanges: map[string]struct{}{},
			registry: prometheus.NewRegistry(),
		}
		f.change(func() {
			f.replicas = append(f.replicas, r)
			for node := range f.live.nodes {
				r.changed[node] = struct{}{}
			}
		})
		metrics, err := nodehealthcontroller.NewMetrics(r.registry)
		if err != nil {
			t.Fatal(err)
		}
		cfg := config(t, metrics, shards)
		cfg.Publisher = r.publisher
		all = append(all, r)
		running.Go(func() {
			cluster := nodehealthcontroller.Cluster{Cache: r, Writer: r, Events: f, Sessions: sessions{of: r}, Evictions: noEvictions{}, HeldShards: r.terms}
			if err := nodehealthcontroller.New(cfg).Run(ctx, cluster, func(error) {}); err != nil {
				t.Errorf("run of %s: %v", name, err)
			}
		})
	}
	synctest.Wait()
	return all, func() {
		cancel()
		running.Wait()
	}
}

func (r *replica) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (r *replica) Synced() <-chan struct{} {
	synced := make(chan struct{})
	close(synced)
	return synced
}

func (r *replica) Changed() map[string]struct{} {
	r.fakeCluster.mu.Lock()
	defer r.fakeCluster.mu.Unlock()
	changed := r.changed
	r.changed = map[string]struct{}{}
	return changed
}

// Write notes the name of the replica.
func (r *replica) Write(ctx context.Context, step nodehealth.Step) (*corev1.Node, error) {
	node, err := r.fakeCluster.Write(ctx, step)
	if err == nil {
		r.change(func() { r.writes[len(r.writes)-1] = r.name + ": " + r.writes[len(r.writes)-1] })
	}
	return node, err
}

// sessions are those of a replica.
type sessions struct{ of *replica }

func (s sessions) Changed() map[string]struct{} {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	news := s.of.sessionChanges
	s.of.sessionChanges = map[string]struct{}{}
	return news
}

func (sessions) Expired() <-chan struct{} { return nil }

func (s sessions) Session(node string) nodehealthcontroller.NodeSession {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return nodehealthcontroller.NodeSession{State: s.of.sessions[node], Observes: s.of.observes[node]}
}

// received returns what the replica receives: a stream for each session.

// observe says that the agent of a node observes its kubelet.
func (r *replica) observe(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observes[node] = true
}

func (r *replica) session(node string, state session.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions[node] = state
	r.sessionChanges[node] = struct{}{}
}

// hold gives a replica shards until lose is called.
func (r *replica) hold(ctx context.Context, shards ...int) (lose func()) {
	ctx, cancel := context.WithCancel(ctx)
	var held []*sessioncontroller.HeldShard
	for _, number := range shards {
		of := sessioncontroller.NewHeldShard(ctx, number, 1)
		r.terms.Add(of)
		held = append(held, of)
	}
	return func() {
		cancel()
		for _, of := range held {
			r.terms.Remove(of)
			of.Drain()
		}
	}
}

func TestRun_ReplicasDivideTheNodesAndOneHasTheZones(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(12)
		all, end := replicas(t, f, 2, "a", "b")
		defer all[0].hold(t.Context(), 0)()
		defer all[1].hold(t.Context(), 1)()
		f.beat(50*time.Second, "n0", "n1")
		f.expectWrites(t)
		f.beat(12*time.Second, "n0", "n1")
		end()
		// The leader of its shard marks a node. Only a has the zones, in which one node gets its
		// taint at once and the other ten seconds later.
		for _, write := range f.written() {
			var by, what, node string
			if _, err := fmt.Sscanf(write, "%1s: %s %s", &by, &what, &node); err != nil {
				continue // of a pod
			}
			if owner := map[string]string{"n0": "a", "n1": "b"}[node]; what == "add-no-execute" && by != "a" || what != "add-no-execute" && by != owner {
				t.Errorf("%s is not for %s to do", write, by)
			}
		}
		for _, name := range []string{"n0", "n1"} {
			if taints := f.live.nodes[name].Spec.Taints; len(taints) != 2 || f.ready(name) != corev1.ConditionUnknown {
				t.Errorf("%s: Ready %s, taints %v", name, f.ready(name), taints)
			}
		}
	})
}

func TestRun_TermEndsOnlyAfterItsWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(12)
		all, end := replicas(t, f, 2, "a")
		defer end()
		lose := all[0].hold(t.Context(), 0, 1)
		f.change(func() { f.stuck["n0"] = true })
		f.beat(51*time.Second, "n0") // the write that marks it hangs
		lost := make(chan struct{})
		go func() {
			defer close(lost)
			lose()
		}()
		synctest.Wait()
		<-lost // the write was cut off with the term, and has returned
		f.change(func() { f.stuck["n0"] = false })
		f.beat(2*time.Minute, "n0", "n1")
		f.expectWrites(t)
	})
}

func TestRun_GainedShardHasANewGracePeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(12)
		all, end := replicas(t, f, 2, "a", "b")
		defer end()
		lose := all[0].hold(t.Context(), 0, 1)
		for i := range 12 {
			all[0].session(fmt.Sprintf("n%d", i), session.Alive)
		}
		time.Sleep(5 * time.Minute) // beats write no Lease here, and b gets no sign of life
		lose()
		defer all[1].hold(t.Context(), 0, 1)()
		time.Sleep(10 * time.Second)
		for i := range 11 {
			all[1].session(fmt.Sprintf("n%d", i+1), session.Alive)
		}
		time.Sleep(40 * time.Second)
		f.expectWrites(t)
		time.Sleep(2 * time.Second)
		f.expectWrites(t, "b: mark-unknown n0", "b: add-no-execute n0", "unready pod-n0")
	})
}

// A node that beats every 5 s and may miss four is marked within 20.5 s of its last beat: the
// session takes 20.1 s, and the controller less than half a second.
func TestRun_ExpiredSessionIsWrittenWithinHalfASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(12)
		all, end := replicas(t, f, 1, "a")
		defer end()
		defer all[0].hold(t.Context(), 0)()
		for i := range 12 {
			all[0].session(fmt.Sprintf("n%d", i), session.Alive)
		}
		time.Sleep(5*time.Minute + 70*time.Millisecond)
		all[0].session("n0", session.Suspect)
		time.Sleep(7500 * time.Millisecond)
		f.expectWrites(t)
		all[0].session("n0", session.Expired)
		time.Sleep(400 * time.Millisecond)
		if got := f.ready("n0"); got != corev1.ConditionUnknown {
			t.Errorf("Ready of n0 is %s", got)
		}
	})
}

// A sign of life before the session is no beat of the session.
func TestRun_ExpiredSessionHasNoTimeOfItsLastBeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(12)
		all, end := replicas(t, f, 1, "a")
		defer end()
		defer all[0].hold(t.Context(), 0)()
		f.beat(20 * time.Second)
		for i := range 12 {
			all[0].observe(fmt.Sprintf("n%d", i))
			all[0].session(fmt.Sprintf("n%d", i), session.Alive)
		}
		time.Sleep(5 * time.Minute)
		all[0].session("n0", session.Expired)
		seen := map[nodehealth.Health]bool{}
		for range 200 {
			time.Sleep(5 * time.Millisecond)
			node := all[0].publisher.Snapshot().Node("n0")
			if node.Session != session.Expired {
				continue
			}
			seen[node.Assessment.Health] = true
			if node.Assessment.By != nodehealth.SessionBeat || node.Assessment.Heard != 0 {
				t.Errorf("%s: last heard at %d by %s, want an unknown time by its session", node.Assessment.Health, node.Assessment.Heard, node.Assessment.By)
			}
		}
		if !seen[nodehealth.Silent] || !seen[nodehealth.Dead] {
			t.Errorf("seen %v, want it to be silent and then dead", seen)
		}
	})
}

// A node may beat again while it is being marked, without a renewal of its Lease.
func TestRun_BeatBeforeTheWriteCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(12)
		all, end := replicas(t, f, 1, "a")
		defer end()
		defer all[0].hold(t.Context(), 0)()
		for i := range 12 {
			all[0].session(fmt.Sprintf("n%d", i), session.Alive)
		}
		time.Sleep(time.Minute + 70*time.Millisecond)
		all[0].session("n0", session.Suspect)
		time.Sleep(time.Second)
		read := make(chan struct{}, 1)
		f.change(func() {
			f.onCompare = func(samples []nodehealth.Sample) {
				if len(samples) == 1 && samples[0].Node == "n0" {
					all[0].session("n0", session.Alive)
					read <- struct{}{}
				}
			}
		})
		all[0].session("n0", session.Expired)
		<-read
		time.Sleep(time.Second)
		f.expectWrites(t)
	})
}

func TestRun_PublishesTheNodesOfHeldShards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		all, end := replicas(t, f, 2, "a")
		feed := all[0].publisher.Feed()
		nodes := follow(t, feed)
		lose := all[0].hold(t.Context(), 1)
		time.Sleep(time.Second)
		nodes.expect("added n1 alive", "added n3 alive")
		if got := feed.Shards(); !slices.Equal(got.IDs, []int{1}) {
			t.Errorf("shards %v, want 1", got)
		}
		f.beat(20 * time.Second)
		nodes.expect() // renewals are no change
		f.beat(30*time.Second, "n1")
		nodes.expect("modified n1 suspect")
		shardsChanged := feed.ShardsChanged()
		lose()
		time.Sleep(time.Second)
		<-shardsChanged
		nodes.expect("lost n1", "lost n3")
		if got := feed.Shards(); len(got.IDs) > 0 {
			t.Errorf("shards %v, want none", got)
		}
		end()
		<-feed.Ended()
		if all[0].publisher.Snapshot() != nil {
			t.Error("what was seen is shown after the end")
		}
	})
}
