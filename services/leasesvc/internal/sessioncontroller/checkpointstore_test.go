package sessioncontroller_test

import (
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpoint"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// claim creates the key of a new term of the shard and returns the term.
func claim(t *testing.T, client *clientv3.Client, shard int) *term.Term {
	t.Helper()
	void, _, end := termtest.NewTerm(shard, 1)
	end()
	guard := void.Guard()
	key := guard.KeyBytes()
	if _, err := client.Delete(t.Context(), string(key)); err != nil {
		t.Fatal(err)
	}
	put, err := client.Put(t.Context(), string(key), "replica")
	if err != nil {
		t.Fatal(err)
	}
	held, _, end := termtest.NewTerm(shard, put.Header.Revision)
	t.Cleanup(end)
	return held
}

func expect(t *testing.T, s *sessioncontroller.CheckpointStore, shard int, want string) {
	t.Helper()
	got, err := s.Read(t.Context(), shard)
	if err != nil || string(got) != want {
		t.Errorf("shard %d has %q, error %v; want %q", shard, got, err, want)
	}
}

func TestStore_OnlyTheCurrentTermWrites(t *testing.T) {
	client := testkit.Etcd(t)
	s := sessioncontroller.NewCheckpointStore(client, t.Name(), "leasesvc")
	expect(t, s, 3, "")
	first := claim(t, client, 3)
	if err := s.Delete(t.Context(), first); err != nil {
		t.Errorf("delete without a checkpoint: %v", err)
	}
	if err := s.Put(t.Context(), first, []byte("one")); err != nil {
		t.Fatal(err)
	}
	expect(t, s, 3, "one")
	expect(t, s, 30, "")

	second := claim(t, client, 3) // the first term has ended in etcd, but not in its replica
	for what, err := range map[string]error{
		"put": s.Put(t.Context(), first, []byte("stale")), "delete": s.Delete(t.Context(), first),
	} {
		if !errors.Is(err, sessioncontroller.ErrTermEnded) {
			t.Errorf("%s under an ended term: %v, want %v", what, err, sessioncontroller.ErrTermEnded)
		}
	}
	expect(t, s, 3, "one")
	if err := s.Put(t.Context(), second, []byte("two")); err != nil {
		t.Fatal(err)
	}
	expect(t, s, 3, "two")
	if err := s.Delete(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	expect(t, s, 3, "")
}

func TestStore_EndedTermMakesNoRequest(t *testing.T) {
	held, _, end := termtest.NewTerm(1, 1)
	end()
	err := sessioncontroller.NewCheckpointStore(nil, "c", "leasesvc").Put(t.Context(), held, []byte("late"))
	if !errors.Is(err, sessioncontroller.ErrTermEnded) || !errors.Is(err, term.ErrEnded) {
		t.Errorf("error %v", err)
	}
}

func TestStore_EmptyValueDiffersFromNone(t *testing.T) {
	client := testkit.Etcd(t)
	s := sessioncontroller.NewCheckpointStore(client, t.Name(), "leasesvc")
	if got, err := s.Read(t.Context(), 5); err != nil || got != nil {
		t.Errorf("without a checkpoint: %q, error %v", got, err)
	}
	held := claim(t, client, 5)
	if err := s.Put(t.Context(), held, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Read(t.Context(), 5); err != nil || got == nil || len(got) != 0 {
		t.Errorf("empty value: %v, error %v", got, err)
	}
	if err := s.Delete(t.Context(), held); err != nil {
		t.Error(err)
	}
}

func TestStore_AcceptsTheLargestCheckpoint(t *testing.T) {
	client := testkit.Etcd(t)
	s := sessioncontroller.NewCheckpointStore(client, t.Name(), "leasesvc")
	if err := s.Put(t.Context(), claim(t, client, 4), make([]byte, checkpoint.MaxBytes)); err != nil {
		t.Error(err)
	}
	got, err := s.Read(t.Context(), 4)
	if err != nil || len(got) != checkpoint.MaxBytes {
		t.Errorf("%d bytes, error %v", len(got), err)
	}
}
