package terms

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/test/faults/terms/internal/history"
)

// Three replicas on an etcd of three members, which loses its leader and then its quorum. A new leader costs no more than a
// session; without a quorum all terms end in time, nobody acts, and everybody comes back when the quorum does.
func TestQuorum_LostAndFound(t *testing.T) {
	const shards = 4
	s := newScene(t, 3, shards)
	s.open(3, nil)
	if err := s.allHeld(); err != nil {
		t.Fatal(err)
	}
	s.loseLeader(t)
	if err := s.allHeld(); err != nil {
		t.Errorf("after the leader was lost: %v", err)
	}
	pause(t.Context(), time.Second) // of work under the new leader
	lost, found := s.loseQuorum(t)
	if err := s.allHeld(); err != nil {
		t.Errorf("after the quorum was found: %v", err)
	}
	pause(t.Context(), time.Second) // of work under the new quorum
	h, err := s.close()
	if err != nil {
		t.Error(err)
	}
	verdict := history.Judge(h)
	t.Logf("leader and quorum lost and found: %v", verdict)
	if err := verdict.Err(history.Floor{Applied: 20, Reads: 50, Terms: 2 * shards}); err != nil {
		t.Error(err)
	}
	wantNobody(t, h, lost+int64(ttl), found)
}

// loseLeader kills the leader and, when another leads, starts it again.
func (s *scene) loseLeader(t *testing.T) {
	t.Helper()
	leader, err := s.leader(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	from := clock()
	leader.kill()
	err = s.eventually(readyWithin, func() error {
		_, err := s.leader(t.Context(), leader)
		return err
	})
	s.struck(history.Outage, "", from)
	if err := errors.Join(err, leader.start(), leader.ready(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// loseQuorum kills two members and starts them again after twice the TTL. It returns the clock before and after that.
func (s *scene) loseQuorum(t *testing.T) (lost, found int64) {
	t.Helper()
	lost = clock()
	for _, m := range s.etcd[:2] {
		m.kill()
	}
	pause(t.Context(), 2*ttl)
	found = clock()
	for _, m := range s.etcd[:2] {
		if err := m.start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range s.etcd {
		if err := m.ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.struck(history.Outage, "", lost)
	return lost, found
}

// leader returns the member that leads and is not the given one, as the members themselves say.
func (s *scene) leader(ctx context.Context, not *etcdMember) (*etcdMember, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var problems []error
	for _, m := range s.etcd {
		if m == not {
			continue
		}
		status, err := s.client.Status(ctx, m.endpoint())
		if err == nil && leads(status) {
			return m, nil
		}
		problems = append(problems, err)
	}
	return nil, errors.Join(append(problems, errors.New("nobody leads etcd"))...)
}

func leads(status *clientv3.StatusResponse) bool {
	return status.Leader != 0 && status.Leader == status.Header.MemberId
}

// wantNobody checks that no check passed and no write was sent within a time.
func wantNobody(t *testing.T, h history.History, from, to int64) {
	t.Helper()
	before := 0
	for _, log := range h.Logs {
		for _, event := range log.Events {
			if event.Kind != history.Passed {
				continue
			}
			if event.From < from {
				before++
			} else if event.To < to {
				t.Errorf("%s passed a check of shard %d %s", log.Replica, event.Shard, since(event.From, from))
			}
		}
	}
	if before == 0 {
		t.Error("nobody acted before either, so this shows nothing")
	}
}

func since(at, from int64) string {
	return fmt.Sprintf("%v after all terms had to be over", time.Duration(at-from))
}
