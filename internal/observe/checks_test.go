package observe_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/internal/observe"
)

var errDown = errors.New("connection refused")

func pass() error { return nil }
func fail() error { return errDown }

func TestChecks_FailedAreOrderedAndWrapTheirCause(t *testing.T) {
	t.Parallel()
	checks := observe.NewChecks()
	checks.Add("kube-apiserver", fail)
	checks.Add("loops", pass)
	checks.Add("etcd", fail)
	checks.Add("etcd", func() error { return errors.New("second of that name") })
	var got []string
	failed := checks.Failed()
	for _, err := range failed {
		got = append(got, err.Error())
	}
	want := []string{"etcd: connection refused", "etcd: second of that name", "kube-apiserver: connection refused"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("failed (-want +got):\n%s", diff)
	}
	if !errors.Is(failed[0], errDown) {
		t.Errorf("%v does not wrap its cause", failed[0])
	}
}

func TestChecks_WithoutAnyNothingFails(t *testing.T) {
	t.Parallel()
	var none *observe.Checks
	if got := append(none.Failed(), observe.NewChecks().Failed()...); len(got) != 0 {
		t.Errorf("failed: %v", got)
	}
}

func TestChecks_MayBeAddedWhileTheyRun(t *testing.T) {
	t.Parallel()
	checks := observe.NewChecks()
	// A check that asks the same set would deadlock if its lock were held.
	checks.Add("a", func() error {
		checks.Add("b", pass)
		return nil
	})
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			if failed := checks.Failed(); len(failed) != 0 {
				t.Errorf("failed: %v", failed)
			}
		})
	}
	readers.Wait()
}
