package terms

import (
	"syscall"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/faults/terms/internal/history"
)

// Replicas that neither ask whether their terms go on nor guard what they write do harm as soon as one is frozen for longer
// than its lease. The judge must see all of it, or it would see nothing elsewhere either.
func TestCareless_IsFoundOut(t *testing.T) {
	s := newScene(t, 1, 2)
	s.open(2, func(r *replica) { r.Careless = true })
	if err := s.allAtWork(); err != nil {
		t.Fatal(err)
	}
	s.freezeUntilOvertaken(t, s.worker(t, 0))
	if err := s.eventually(workWithin, s.staleWrite); err != nil {
		t.Errorf("the replica that was frozen did not write again: %v", err)
	}
	pause(t.Context(), 300*time.Millisecond) // in which others read and write
	for _, p := range s.places {
		p.process.kill() // they would never stop by themselves
	}
	h, err := s.close()
	if err != nil {
		t.Fatal(err)
	}
	wantFoundOut(t, history.Judge(h))
}

// freezeUntilOvertaken stops the replica that works on shard 0 until another has written there.
func (s *scene) freezeUntilOvertaken(t *testing.T, p *place) {
	t.Helper()
	if err := p.process.signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	err := s.eventually(workWithin, func() error { return s.lastWrite(0, p.settings.ID, false) })
	if err != nil {
		t.Fatalf("nobody else has written: %v", err)
	}
	if err := p.process.signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// staleWrite is an error until a write has taken effect under an old epoch.
func (s *scene) staleWrite() error {
	versions, claims, err := s.witness.testimony()
	so := history.History{Shards: s.shards, Versions: versions, Claims: claims}
	if err == nil && len(history.Judge(so).Stale) == 0 {
		err = errNothingYet
	}
	return err
}

func wantFoundOut(t *testing.T, verdict history.Verdict) {
	t.Helper()
	t.Logf("careless replicas: %v", verdict)
	for what, found := range map[string][]string{
		"not linearizable": verdict.Illegal, "stale writes": verdict.Stale, "two holders": verdict.Overlaps,
	} {
		if len(found) == 0 {
			t.Errorf("%s: none found", what)
		}
	}
	if verdict.Err(history.Floor{}) == nil {
		t.Error("the verdict has no error")
	}
}
