package terms

import (
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/faults/terms/internal/history"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// TestUnguarded_ViolationsAreFound freezes a replica without checks and guards for longer than its
// lease. Package history must find every kind of violation, or its other results prove nothing.
func TestUnguarded_ViolationsAreFound(t *testing.T) {
	fx := newFixture(t, 1, 2)
	fx.startReplicas(2, func(r *replica) { r.Unguarded = true })
	if err := fx.waitForWrites(); err != nil {
		t.Fatal(err)
	}
	fx.freezeUntilReplaced(t, fx.writerOf(t, 0))
	if err := fx.eventually(writeTimeout, fx.staleWrite); err != nil {
		t.Errorf("the frozen replica did not write again: %v", err)
	}
	testkit.Pause(t.Context(), 300*time.Millisecond) // of reads and writes by the other replica
	for _, s := range fx.slots {
		s.process.Kill() // Unguarded replicas do not stop on SIGTERM.
	}
	h, err := fx.finish()
	if err != nil {
		t.Fatal(err)
	}
	checkViolationsFound(t, history.Analyze(h))
}

// freezeUntilReplaced freezes the replica in a slot until another one has written shard 0.
func (fx *fixture) freezeUntilReplaced(t *testing.T, s *slot) {
	t.Helper()
	if err := s.process.Freeze(); err != nil {
		t.Fatal(err)
	}
	err := fx.eventually(writeTimeout, func() error { return fx.lastWriteBy(0, s.settings.ID, false) })
	if err != nil {
		t.Fatalf("no other replica has written: %v", err)
	}
	if err := s.process.Thaw(); err != nil {
		t.Fatal(err)
	}
}

// staleWrite returns nil once a write has taken effect under an old epoch.
func (fx *fixture) staleWrite() error {
	versions, claims, err := fx.recorder.recorded()
	so := history.History{Shards: fx.shards, Versions: versions, Claims: claims}
	if err == nil && len(history.Analyze(so).StaleWrites) == 0 {
		err = errNotYet
	}
	return err
}

func checkViolationsFound(t *testing.T, report history.Report) {
	t.Helper()
	t.Logf("unguarded replicas: %v", report)
	for what, found := range map[string][]string{
		"not linearizable": report.NotLinearizable, "stale writes": report.StaleWrites, "two holders": report.Overlaps,
	} {
		if len(found) == 0 {
			t.Errorf("%s: none found", what)
		}
	}
	if report.Err(history.Minimum{}) == nil {
		t.Error("the report has no error")
	}
}
