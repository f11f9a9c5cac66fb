package terms

import (
	"syscall"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/faults/terms/internal/history"
)

// Replicas that neither ask whether their terms go on nor guard what they write do harm as soon as one is frozen for longer
// than its lease. The judge must see all of it, or it would see nothing elsewhere either.
func TestUnguarded_ViolationsAreFound(t *testing.T) {
	fx := newFixture(t, 1, 2)
	fx.startReplicas(2, func(r *replica) { r.Unguarded = true })
	if err := fx.waitForWrites(); err != nil {
		t.Fatal(err)
	}
	fx.freezeUntilReplaced(t, fx.writerOf(t, 0))
	if err := fx.eventually(writeTimeout, fx.staleWrite); err != nil {
		t.Errorf("the replica that was frozen did not write again: %v", err)
	}
	pause(t.Context(), 300*time.Millisecond) // in which others read and write
	for _, p := range fx.slots {
		p.process.Kill() // they would never stop by themselves
	}
	h, err := fx.finish()
	if err != nil {
		t.Fatal(err)
	}
	checkViolationsFound(t, history.Analyze(h))
}

// freezeUntilOvertaken stops the replica that works on shard 0 until another has written there.
func (fx *fixture) freezeUntilReplaced(t *testing.T, p *slot) {
	t.Helper()
	if err := p.process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	err := fx.eventually(writeTimeout, func() error { return fx.lastWriteBy(0, p.settings.ID, false) })
	if err != nil {
		t.Fatalf("nobody else has written: %v", err)
	}
	if err := p.process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// staleWrite is an error until a write has taken effect under an old epoch.
func (fx *fixture) staleWrite() error {
	versions, claims, err := fx.recorder.recorded()
	so := history.History{Shards: fx.shards, Versions: versions, Claims: claims}
	if err == nil && len(history.Analyze(so).StaleWrites) == 0 {
		err = errNotYet
	}
	return err
}

func checkViolationsFound(t *testing.T, verdict history.Report) {
	t.Helper()
	t.Logf("careless replicas: %v", verdict)
	for what, found := range map[string][]string{
		"not linearizable": verdict.NotLinearizable, "stale writes": verdict.StaleWrites, "two holders": verdict.Overlaps,
	} {
		if len(found) == 0 {
			t.Errorf("%s: none found", what)
		}
	}
	if verdict.Err(history.Minimum{}) == nil {
		t.Error("the verdict has no error")
	}
}
