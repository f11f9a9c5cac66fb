package damage

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/testkit"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/test/faults/damage/internal/oracle"
)

// mendedWithin is what is promised of damage that is mended without asking; upstream's repairers take up to three minutes.
const repairTime = time.Second

func TestDamage_IsFoundAndRepairedUnderLoad(t *testing.T) {
	inj := newInjector(t)
	replica := startReplica(t, setting{})
	replica.waitForAudit(t)
	recorder := recordFindings(t, replica)
	if err := recorder.checkOpen(nil); err != nil {
		t.Fatalf("before any damage: %v", err)
	}
	load := startChurn(t, inj.kube, testkit.Namespace(t, inj.kube), *services)

	damages := map[string]damage{}
	planted := map[subject]bool{}
	for _, name := range slices.Sorted(maps.Keys(damageKinds())) {
		done := damageKinds()[name](inj)
		began := time.Now()
		damages[name], planted[done.subject], planted[done.or] = done, true, true
		t.Run(name, func(t *testing.T) {
			testkit.Eventually(t, waitTimeout, func() error { return recorder.hasSeen(done.subject, done.or) })
			if done.outcome == repairedAtOnce {
				testkit.Eventually(t, waitTimeout, func() error { return errors.Join(recorder.isGone(done.subject), allAllocated(inj, done.used)) })
				checkRepairTime(t, repairTime, time.Since(began))
			}
		})
	}
	load.end(t)
	checkUnused(t, inj, recorder)

	checkUnrepaired(t, recorder, damages)
	checkAllocator(t, inj, damages)
	if *long {
		waitForLeakRepairs(t, inj, recorder, damages)
	}
	resolveRemaining(t, inj, recorder, damages, planted)
	for _, about := range recorder.unexpectedFindings(planted) {
		if !inj.observer.releasedByUpdate(about) {
			t.Errorf("nobody planted %v, and it was called open", about)
		}
	}
	inj.observer.checkViolations(t, func(b oracle.Violation) bool { return b.ReallocatedAt > 0 && isFreedByRepair(damages, b.Subject) })
}

// held compares a time with what is promised.
func checkRepairTime(t *testing.T, promise, took time.Duration) {
	t.Helper()
	t.Logf("mended after %v, promised within %v", took.Round(time.Millisecond), promise)
	if took > promise+loadMargin {
		t.Errorf("mended after %v, promised within %v", took.Round(time.Millisecond), promise)
	}
}

// heldAll returns an error unless all subjects are allocated.
func allAllocated(inj *injector, subjects []string) error {
	for _, text := range subjects {
		if !inj.observer.isAllocated(text) {
			return errors.New(text + " is not allocated")
		}
	}
	return nil
}

func isFreedByRepair(damages map[string]damage, text string) bool {
	for _, done := range damages {
		if done.freedByRepair && done.text == text {
			return true
		}
	}
	return false
}

// checkPending compares what seems to be allocated and unused with what is.
func checkUnused(t *testing.T, inj *injector, recorder *findingRecorder) {
	t.Helper()
	testkit.Eventually(t, waitTimeout, func() error {
		inj.observer.waitUntilCurrent(t)
		unused := inj.observer.unused()
		if seeming := recorder.unused(); !slices.Equal(seeming, unused) {
			return fmt.Errorf("seemingly unused are %v, unused are %v", seeming, unused)
		}
		return nil
	})
}

// checkWhatWaits holds findings to what is promised of those that nobody mends at once: with a reason, and not safe.
func checkUnrepaired(t *testing.T, recorder *findingRecorder, damages map[string]damage) {
	t.Helper()
	for name, done := range damages {
		if done.outcome == repairedAtOnce {
			continue
		}
		finding := recorder.current(done.subject)
		switch {
		case finding == nil && done.outcome == repairedAfterGrace: // kube-apiserver's own repairer may have been there first
		case finding == nil:
			t.Errorf("%s: there is no finding", name)
		case finding.GetSafe() && finding.GetState() == bootstrapv1.Finding_STATE_PENDING || finding.GetSafe() && done.outcome == needsDecision:
			t.Errorf("%s: it is called safe to mend: %v", name, finding)
		case !finding.GetSafe() && finding.GetUnsafeReason() == "" || finding.GetMessage() == "":
			t.Errorf("%s: it does not say what is wrong, or why nobody may mend it: %v", name, finding)
		}
	}
}

// checkAllocator asks kube-apiserver for what is used.
func checkAllocator(t *testing.T, inj *injector, damages map[string]damage) {
	t.Helper()
	for name, done := range damages {
		for _, used := range done.used {
			if err := checkRefused(t, inj.kube, inj.namespace, used); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// ripeWithin is the longest that a leak may last: it must have been watched for more than a request can take.
const leakRepairTimeout = 2 * time.Minute

// awaitRipe waits until leaks are freed and asks the allocator for them.
func waitForLeakRepairs(t *testing.T, inj *injector, recorder *findingRecorder, damages map[string]damage) {
	t.Helper()
	began := time.Now()
	for name, done := range damages {
		if done.outcome != repairedAfterGrace {
			continue
		}
		testkit.Eventually(t, leakRepairTimeout, func() error {
			if inj.observer.isAllocated(done.text) {
				return errors.New(done.text + " is still allocated")
			}
			return recorder.isGone(done.subject)
		})
		t.Logf("%s: freed %v after everything else", name, time.Since(began).Round(time.Second))
		checkGranted(t, inj.kube, inj.namespace, done.text)
	}
}

// decide does what a person would about damage that waits for one. Deleting one of two Services that share something makes
// kube-apiserver free it under the other: that is mended at once.
func resolveRemaining(t *testing.T, inj *injector, recorder *findingRecorder, damages map[string]damage, planted map[subject]bool) {
	t.Helper()
	for name, done := range damages {
		if done.resolve == nil {
			continue
		}
		done.resolve()
		for _, text := range done.used {
			planted[subject{code: bootstrapv1.Finding_CODE_NOT_ALLOCATED, store: done.store, text: text}] = true
		}
		testkit.Eventually(t, waitTimeout, func() error { return errors.Join(recorder.isGone(done.subject), allAllocated(inj, done.used)) })
		t.Logf("%s: decided", name)
	}
	testkit.Eventually(t, waitTimeout, func() error { return recorder.checkOpen(nil) })
}
