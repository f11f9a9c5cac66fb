package bootstrapsvc

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
)

// newDryRun is a fixture with all loops that can be in dry run.
func newDryRun(t *testing.T) (*fixture, *shadow.Trackers) {
	t.Helper()
	loops := []string{baselinecontroller.NamespacesLoop, baselinecontroller.ServiceLoop, apiserverscontroller.EndpointsLoop}
	cfg := shadow.DefaultConfig(loops...)
	cfg.Loops = loops
	trackers, err := shadow.New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return newShadowFixture(t, DefaultConfig(), trackers), trackers
}

// found returns the differences of a loop: kind, subject and the paths that differ.
func found(t *testing.T, trackers *shadow.Trackers, loop string) []string {
	t.Helper()
	comparison := trackers.Tracker(loop).Comparison(100)
	if comparison.Undetermined != "" {
		return []string{"undetermined: " + comparison.Undetermined}
	}
	var all []string
	for _, difference := range comparison.Differences {
		line := string(difference.Kind) + " " + difference.Subject
		for _, field := range difference.Fields {
			line += " " + field.Path
		}
		all = append(all, line)
	}
	slices.Sort(all)
	return all
}

func expectFound(t *testing.T, trackers *shadow.Trackers, loop string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, found(t, trackers, loop)); diff != "" {
		t.Errorf("differences of %s (-want +got):\n%s", loop, diff)
	}
}

func TestDryRun_ComparesAndWritesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, trackers := newDryRun(t)
		f.start(t)
		time.Sleep(moment)
		for _, tracker := range trackers.All() {
			if comparison := tracker.Comparison(1); comparison.Idle || len(comparison.Differences) > 0 {
				t.Errorf("at first %s has %+v, want nothing that counts", comparison.Loop, comparison)
			}
		}
		time.Sleep(3 * time.Minute)
		expectFound(t, trackers, baselinecontroller.NamespacesLoop,
			"missing namespaces/default", "missing namespaces/kube-node-lease", "missing namespaces/kube-public", "missing namespaces/kube-system")
		expectFound(t, trackers, baselinecontroller.ServiceLoop, "missing services/default/kubernetes")

		f.publish("10.1.0.1")
		time.Sleep(time.Minute)
		expectFound(t, trackers, apiserverscontroller.EndpointsLoop)
		f.publish("10.1.0.9")
		time.Sleep(time.Minute)
		expectFound(t, trackers, apiserverscontroller.EndpointsLoop,
			"content endpoints/default/kubernetes subsets[0].addresses[0].ip", "content endpointslices/default/kubernetes endpoints[0].addresses[0]")

		for _, reconciler := range f.reconcilers() {
			if _, err := reconciler.Reconcile(t.Context()); !errors.Is(err, baselinecontroller.ErrDryRun) {
				t.Errorf("reconcile of %s = %v, want it refused", reconciler.Loop, err)
			}
			if status := f.statusOf(t, reconciler.Loop); !status.DryRun || status.Failures > 0 {
				t.Errorf("status of %s = %+v, want a dry run without failures", reconciler.Loop, status)
			}
		}
		f.end(t) // a replica that stops does not withdraw its address
		if got := f.objects.writes(); len(got) > 0 {
			t.Errorf("writes = %v, want none", got)
		}
		for _, tracker := range trackers.All() {
			if !tracker.Comparison(1).Idle {
				t.Errorf("after its term this replica still compares %s", tracker.Comparison(1).Loop)
			}
		}
	})
}

// A hand-over needs no restart, and the way back neither.
func TestDryRun_WritesWhileItIsSwitchedOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, trackers := newDryRun(t)
		f.start(t)
		time.Sleep(time.Minute)
		if got := f.objects.writes(); len(got) > 0 {
			t.Errorf("a dry run wrote %v", got)
		}
		all := trackers.Loops()
		f.Loops().SetSwitched(all)
		time.Sleep(time.Minute)
		f.wantPublished(t, "10.1.0.1")
		for _, tracker := range trackers.All() {
			if !tracker.Comparison(1).Idle {
				t.Errorf("loop %s writes and compares", tracker.Comparison(1).Loop)
			}
		}
		f.Loops().SetSwitched(nil)
		synctest.Wait()
		for _, loop := range all {
			if status := f.statusOf(t, loop); !status.DryRun {
				t.Errorf("loop %s is switched off: %+v", loop, status)
			}
		}
		f.publish("10.1.0.9")
		before := len(f.objects.writes())
		time.Sleep(3 * time.Minute)
		if got := f.objects.writes(); len(got) > before {
			t.Errorf("loops that are switched off wrote %v", got[before:])
		}
		expectFound(t, trackers, apiserverscontroller.EndpointsLoop,
			"content endpoints/default/kubernetes subsets[0].addresses[0].ip", "content endpointslices/default/kubernetes endpoints[0].addresses[0]")
		expectFound(t, trackers, baselinecontroller.NamespacesLoop)
		f.end(t)
	})
}

func TestDryRun_WithoutAReadyServerNothingIsDetermined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, trackers := newDryRun(t)
		f.publish("10.1.0.9")
		f.prober.set(true)
		f.start(t)
		defer f.end(t)
		time.Sleep(3 * time.Minute)
		if got := found(t, trackers, apiserverscontroller.EndpointsLoop); len(got) != 1 || got[0][:13] != "undetermined:" {
			t.Errorf("found %v, want that nothing is determined", got)
		}
		expectFound(t, trackers, baselinecontroller.ServiceLoop, "missing services/"+corev1.NamespaceDefault+"/kubernetes")
	})
}
