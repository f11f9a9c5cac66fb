package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

var shadowTime = flag.Duration("install.shadow", 3*time.Minute, "how long loops in dry run are compared with upstream's")

// Loops in dry run find nothing that upstream's loops do otherwise, while Pods become ready and
// unready and are deleted, and write nothing. While upstream's loop stands still, they find the
// difference.
func TestInstalled_ShadowFindsNoDifference(t *testing.T) {
	f := bareCluster(t)
	f.upgrade(t, "servers.slicesvc.loops=", "servers.slicesvc.dryRun={endpointslices}",
		"servers.leasesvc.dryRun={node-health,taint-eviction}")
	defer f.upgrade(t) // the context of a test is over when its clean-up begins
	for _, duty := range []string{"slices", "nodes"} {
		mustEventually(t, 2*time.Minute, func(context.Context) error {
			_, err := f.try(t, "trivet shadow "+duty)
			return err
		})
	}
	l := f.load(t, "shadowed")
	began := time.Now()
	var both sync.WaitGroup
	for _, duty := range []string{"slices", "nodes"} {
		both.Go(func() {
			output, err := f.try(t, fmt.Sprintf("trivet shadow %s --for %s", duty, *shadowTime))
			if err != nil {
				t.Errorf("differences of %s: %v", duty, err)
			}
			figure(t, fmt.Sprintf("trivet shadow %s, for %s of churn", duty, *shadowTime), fmt.Sprintf("%d lines of differences with a reason", max(strings.Count(output, "\n")-1, 0)), "0 without a reason")
		})
	}
	both.Wait()
	l.check(t, began, "slices of upstream beside a dry run", managerRestart)
	for _, slice := range objects[*discoveryv1.EndpointSlice](l.history) {
		for _, field := range slice.ManagedFields {
			if field.Manager != managerPod {
				t.Errorf("EndpointSlice %s was written by %q", slice.Name, field.Manager)
			}
		}
	}
	f.checkDifferenceIsFound(t, l)
}

// checkDifferenceIsFound stops kube-controller-manager for so long that a difference settles.
func (f *fixture) checkDifferenceIsFound(t *testing.T, l *loaded) {
	t.Helper()
	first := f.node(t, stayingNode)
	if err := first.Signal(managerPod, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	err := errors.Join(f.setReady(t.Context(), objects[*corev1.Pod](l.history)[0], false),
		eventually(t.Context(), 70*time.Second, func(context.Context) error {
			_, err := f.try(t, "trivet shadow slices")
			if failed, ok := errors.AsType[*exec.ExitError](err); !ok || failed.ExitCode() != 1 {
				return fmt.Errorf("no difference is found while upstream stands still: %w", err)
			}
			return nil
		}))
	if err := errors.Join(err, first.Signal(managerPod, syscall.SIGCONT)); err != nil {
		t.Fatal(err)
	}
	f.makeReady(t, l.history)
	l.await(t, 2*time.Minute, func() error { return atRest(l.history, webReplicas) })
}
