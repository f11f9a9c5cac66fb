package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

const (
	// restTime is how long an idle cluster is observed.
	restTime = 45 * time.Second
	// cpuBound and rssBound exceed the goals: other work on the machine evicts caches, and how many
	// pages of its file a program has resident is the kernel's choice. anonBound is what it
	// allocates.
	cpuBound, rssBound, anonBound = 5.0, 35 << 10, 15 << 10 // millicores, KiB, KiB
)

// TestNodes_BeatsByBothModes shows that leasesvc keeps every node alive, by the agent in its mode.
func TestNodes_BeatsByBothModes(t *testing.T) {
	f := sharedCluster(t)
	conn, err := f.dial("gateway", gatewayAddress)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	want := map[string]string{}
	for _, name := range f.nodeNames() {
		want[leaseName(name)] = "STATE_ALIVE probe"
	}
	want[leaseName(endpointNode)] = "STATE_ALIVE endpoint"
	mustEventually(t, time.Minute, func(ctx context.Context) error {
		response, err := leasev1.NewLeaseServiceClient(conn).ListLeases(ctx, &leasev1.ListLeasesRequest{Parent: "namespaces/" + corev1.NamespaceNodeLease})
		if err != nil {
			return err
		}
		got := map[string]string{}
		for _, lease := range response.GetLeases() {
			got[lease.GetName()] = lease.GetState().String() + " " + lease.GetAgent().GetMode()
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("leases, with the modes of their agents: %v, want %v", got, want)
		}
		return nil
	})
}

// TestNodes_AtRest measures agents of an idle cluster and counts writes of Leases. The probed
// kubelet writes its own, so the count sees kubelets' writes.
func TestNodes_AtRest(t *testing.T) {
	f := sharedCluster(t)
	h := watchAll(t, f.kube, corev1.NamespaceDefault)
	mustEventually(t, 2*time.Minute, func(ctx context.Context) error {
		active, err := f.metric(ctx, endpointNode, "trivet_agent_endpoint_passthrough")
		if err == nil && active != 0 {
			err = errors.New("Lease writes still pass through")
		}
		return err
	})
	before, began := map[string]usage{}, time.Now()
	for _, name := range f.nodeNames() {
		before[name] = f.agentUsage(t, name)
	}
	letPass(t, restTime)
	elapsed := time.Since(began)
	for _, name := range f.nodeNames() {
		after := f.agentUsage(t, name)
		millicores := 1000 * (after.cpu - before[name].cpu).Seconds() / elapsed.Seconds()
		figure(t, "Agent of "+name+": CPU at rest", fmt.Sprintf("%.2f millicores", millicores), "goal ≤ 1, test ≤ 5")
		figure(t, "Agent of "+name+": RSS", fmt.Sprintf("%.1f MiB, %.1f of them allocated", float64(after.memKB)/1024, float64(after.anonKB)/1024), "goal ≤ 25 MiB, test ≤ 35")
		if after.pid != before[name].pid || millicores > cpuBound || after.memKB > rssBound || after.anonKB > anonBound {
			t.Errorf("agent of %s: before %+v, after %+v", name, before[name], after)
		}
	}
	versions, byKubelet := leaseVersions(h, endpointNode, began)
	due := f.lease(t, endpointNode).GetWrite()
	until := due.GetDueTime().AsTime().Sub(due.GetWriteTime().AsTime())
	figure(t, "Lease writes of the quiet node "+endpointNode, fmt.Sprintf("%d in %s, next due %s after the last", len(versions), milliseconds(elapsed), milliseconds(until)), "≤ 1 in 300 s")
	figure(t, "… of them by its kubelet", fmt.Sprint(len(byKubelet)), "0")
	if len(versions) > 1 || len(byKubelet) > 0 {
		t.Errorf("the Lease of %s was written %d times, %d times by its kubelet", endpointNode, len(versions), len(byKubelet))
	}
	if _, byKubelet := leaseVersions(h, probeNode, began); len(byKubelet) < int(restTime/(10*time.Second))-1 {
		t.Errorf("the kubelet of %s wrote its Lease %d times in %v: the count of writes misses some", probeNode, len(byKubelet), elapsed)
	}
	checkNoNodeDeclared(t, h, began)
}

// awaitBeats waits until leasesvc has accepted a beat of each node after a time.
func (f *fixture) awaitBeats(t *testing.T, after time.Time) {
	t.Helper()
	conn, err := f.dial("leasesvc", leasesvcAddress)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	mustEventually(t, time.Minute, func(ctx context.Context) error {
		for _, name := range f.nodeNames() {
			response, err := leasev1.NewLeaseServiceClient(conn).GetLease(ctx, &leasev1.GetLeaseRequest{Name: leaseName(name)})
			if err != nil {
				return err
			}
			if beat := response.GetLease().GetLastBeatTime().AsTime(); beat.Before(after) {
				return fmt.Errorf("the last beat of %s is %v before that", name, after.Sub(beat))
			}
		}
		return nil
	})
}

// TestNodes_LeasesvcRolledAndAway replaces leasesvc's container, and then leaves it away for a
// minute, in which the endpoint passes the kubelet's writes on.
func TestNodes_LeasesvcRolledAndAway(t *testing.T) {
	f := sharedCluster(t)
	server := f.node(t, "cp1")
	h := watchAll(t, f.kube, corev1.NamespaceDefault)
	manifest, err := server.Pod("leasesvc")
	if err != nil {
		t.Fatal(err)
	}
	processes := func() []int {
		found, err := server.Processes("leasesvc")
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	began, old := time.Now(), processes()
	t.Cleanup(func() {
		if err := server.SetPod("leasesvc", manifest); err != nil {
			t.Error(err)
		}
	})
	if err := server.SetPod("leasesvc", annotated(t, manifest, "trivet.dev/rolled", "1")); err != nil {
		t.Fatal(err)
	}
	mustEventually(t, 2*time.Minute, func(context.Context) error {
		if now := processes(); len(now) != 1 || slices.Equal(now, old) {
			return fmt.Errorf("leasesvc is %v, was %v", now, old)
		}
		return nil
	})
	f.awaitBeats(t, time.Now())
	figure(t, "leasesvc rolled: beats of all nodes again", milliseconds(time.Since(began)), "≤ 3m; never declared")
	checkNoNodeDeclared(t, h, began)

	// Away.
	if err := server.RemovePod("leasesvc"); err != nil {
		t.Fatal(err)
	}
	mustEventually(t, time.Minute, func(context.Context) error {
		if now := processes(); len(now) > 0 {
			return fmt.Errorf("leasesvc still runs: %v", now)
		}
		return nil
	})
	away := time.Now()
	letPass(t, time.Minute)
	_, written := leaseVersions(h, endpointNode, away)
	gap, last := time.Duration(0), away
	for _, at := range written {
		gap, last = max(gap, at.Sub(last)), at
	}
	gap = max(gap, time.Since(last))
	figure(t, "leasesvc away: writes that pass to the real Lease of "+endpointNode, fmt.Sprintf("%d in %s, longest gap %s", len(written), milliseconds(time.Since(away)), milliseconds(gap)), "gap ≤ 16.4 s and one request")
	if len(written) < 3 || gap > 20*time.Second {
		t.Errorf("while leasesvc was away the kubelet's Lease was written %d times, with a gap of %v", len(written), gap)
	}
	if active, err := f.metric(t.Context(), endpointNode, "trivet_agent_endpoint_passthrough"); err != nil || active != 1 {
		t.Errorf("the agent says passthrough %v, %v; want 1", active, err)
	}
	checkNoNodeDeclared(t, h, began)

	// Back.
	back := time.Now()
	if err := server.SetPod("leasesvc", manifest); err != nil {
		t.Fatal(err)
	}
	mustEventually(t, 2*time.Minute, func(ctx context.Context) error {
		active, err := f.metric(ctx, endpointNode, "trivet_agent_endpoint_passthrough")
		if err == nil && active != 0 {
			err = errors.New("Lease writes still pass through")
		}
		return err
	})
	figure(t, "leasesvc back: the endpoint's writes are beats again", milliseconds(time.Since(back)), "≤ 2m")
	quiet := time.Now()
	f.awaitBeats(t, quiet)
	letPass(t, grace+2*time.Second)
	if _, written := leaseVersions(h, endpointNode, quiet.Add(time.Second)); len(written) > 0 {
		t.Errorf("the kubelet of %s wrote its real Lease %d times after leasesvc was back", endpointNode, len(written))
	}
	checkNoNodeDeclared(t, h, began)
}

// leaseVersions returns the versions of a node's Lease since then, and how many of them the kubelet
// has written itself, which kube-apiserver records.
func leaseVersions(h *history, name string, then time.Time) (versions []*coordinationv1.Lease, byKubelet []time.Time) {
	for _, c := range h.since(then) {
		lease, ok := c.object.(*coordinationv1.Lease)
		if !ok || c.deleted || lease.Name != name {
			continue
		}
		versions = append(versions, lease)
		if lastWriter(lease) == "kubelet" {
			byKubelet = append(byKubelet, c.at)
		}
	}
	return versions, byKubelet
}

// lastWriter is the newest of the field managers.
func lastWriter(lease *coordinationv1.Lease) string {
	writer, newest := "", time.Time{}
	for _, entry := range lease.ManagedFields {
		if entry.Time != nil && !entry.Time.Time.Before(newest) {
			writer, newest = entry.Manager, entry.Time.Time
		}
	}
	return writer
}

// letPass lets time pass in which nothing may happen.
func letPass(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}
