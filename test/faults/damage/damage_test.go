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
	"github.com/trivet-dev/trivet/test/faults/damage/internal/custody"
)

// mendedWithin is what is promised of damage that is mended without asking; upstream's repairers take up to three minutes.
const mendedWithin = time.Second

func TestDamage_IsFoundAndMendedWhileServicesComeAndGo(t *testing.T) {
	h := newHand(t)
	replica := startReplica(t, setting{})
	replica.audits(t)
	diary := keepDiary(t, replica)
	if err := diary.open(nil); err != nil {
		t.Fatalf("before any damage: %v", err)
	}
	crowd := startChurn(t, h.kube, testkit.Namespace(t, h.kube), *services)

	injuries := map[string]injury{}
	planted := map[subject]bool{}
	for _, name := range slices.Sorted(maps.Keys(kinds())) {
		done := kinds()[name](h)
		began := time.Now()
		injuries[name], planted[done.subject], planted[done.or] = done, true, true
		t.Run(name, func(t *testing.T) {
			testkit.Eventually(t, soon, func() error { return diary.sees(done.subject, done.or) })
			if done.fate == mended {
				testkit.Eventually(t, soon, func() error { return errors.Join(diary.lacks(done.subject), heldAll(h, done.used)) })
				held(t, mendedWithin, time.Since(began))
			}
		})
	}
	crowd.end(t)
	checkPending(t, h, diary)

	checkWhatWaits(t, diary, injuries)
	checkAllocator(t, h, injuries)
	if *long {
		awaitRipe(t, h, diary, injuries)
	}
	decide(t, h, diary, injuries, planted)
	for _, about := range diary.falseFindings(planted) {
		if !h.witness.yielded(about) {
			t.Errorf("nobody planted %v, and it was called open", about)
		}
	}
	h.witness.verdict(t, func(b custody.Breach) bool { return b.Healed > 0 && isReseated(injuries, b.Subject) })
}

// held compares a time with what is promised.
func held(t *testing.T, promise, took time.Duration) {
	t.Helper()
	t.Logf("mended after %v, promised within %v", took.Round(time.Millisecond), promise)
	if took > promise+starved {
		t.Errorf("mended after %v, promised within %v", took.Round(time.Millisecond), promise)
	}
}

// heldAll returns an error unless all subjects are allocated.
func heldAll(h *hand, subjects []string) error {
	for _, text := range subjects {
		if !h.witness.isHeld(text) {
			return errors.New(text + " is not allocated")
		}
	}
	return nil
}

func isReseated(injuries map[string]injury, text string) bool {
	for _, done := range injuries {
		if done.reseated && done.text == text {
			return true
		}
	}
	return false
}

// checkPending compares what seems to be allocated and unused with what is.
func checkPending(t *testing.T, h *hand, diary *diary) {
	t.Helper()
	testkit.Eventually(t, soon, func() error {
		h.witness.caughtUp(t)
		unused := h.witness.unused()
		if seeming := diary.unused(); !slices.Equal(seeming, unused) {
			return fmt.Errorf("seemingly unused are %v, unused are %v", seeming, unused)
		}
		return nil
	})
}

// checkWhatWaits holds findings to what is promised of those that nobody mends at once: with a reason, and not safe.
func checkWhatWaits(t *testing.T, diary *diary, injuries map[string]injury) {
	t.Helper()
	for name, done := range injuries {
		if done.fate == mended {
			continue
		}
		finding := diary.of(done.subject)
		switch {
		case finding == nil && done.fate == ripens: // kube-apiserver's own repairer may have been there first
		case finding == nil:
			t.Errorf("%s: there is no finding", name)
		case finding.GetSafe() && finding.GetState() == bootstrapv1.Finding_STATE_PENDING || finding.GetSafe() && done.fate == stays:
			t.Errorf("%s: it is called safe to mend: %v", name, finding)
		case !finding.GetSafe() && finding.GetUnsafeReason() == "" || finding.GetMessage() == "":
			t.Errorf("%s: it does not say what is wrong, or why nobody may mend it: %v", name, finding)
		}
	}
}

// checkAllocator asks kube-apiserver for what is used.
func checkAllocator(t *testing.T, h *hand, injuries map[string]injury) {
	t.Helper()
	for name, done := range injuries {
		for _, used := range done.used {
			if err := refuses(t, h.kube, h.namespace, used); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// ripeWithin is the longest that a leak may last: it must have been watched for more than a request can take.
const ripeWithin = 2 * time.Minute

// awaitRipe waits until leaks are freed and asks the allocator for them.
func awaitRipe(t *testing.T, h *hand, diary *diary, injuries map[string]injury) {
	t.Helper()
	began := time.Now()
	for name, done := range injuries {
		if done.fate != ripens {
			continue
		}
		testkit.Eventually(t, ripeWithin, func() error {
			if h.witness.isHeld(done.text) {
				return errors.New(done.text + " is still allocated")
			}
			return diary.lacks(done.subject)
		})
		t.Logf("%s: freed %v after everything else", name, time.Since(began).Round(time.Second))
		grants(t, h.kube, h.namespace, done.text)
	}
}

// decide does what a person would about damage that waits for one. Deleting one of two Services that share something makes
// kube-apiserver free it under the other: that is mended at once.
func decide(t *testing.T, h *hand, diary *diary, injuries map[string]injury, planted map[subject]bool) {
	t.Helper()
	for name, done := range injuries {
		if done.mend == nil {
			continue
		}
		done.mend()
		for _, text := range done.used {
			planted[subject{code: bootstrapv1.Finding_CODE_NOT_ALLOCATED, store: done.store, text: text}] = true
		}
		testkit.Eventually(t, soon, func() error { return errors.Join(diary.lacks(done.subject), heldAll(h, done.used)) })
		t.Logf("%s: decided", name)
	}
	testkit.Eventually(t, soon, func() error { return diary.open(nil) })
}
