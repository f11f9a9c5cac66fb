package terms

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/test/faults/terms/internal/history"
)

// noticing is how long a leader of etcd may take to find out that it has lost its quorum: raft asks itself once in an election
// timeout whether it has heard from a majority during the last one. Until then it acknowledges renewals, because a leader answers
// them alone. That is safe, for whoever leads next prolongs every lease, but terms end later by as much.
const quorumLossDetection = 2 * history.ElectionTimeout

// Three replicas on an etcd of three members, which loses its leader and then its quorum. A new leader costs no more than a
// session; without a quorum all terms end in time, nobody acts, and everybody comes back when the quorum does.
func TestQuorum_LostAndRestored(t *testing.T) {
	const shards = 4
	fx := newFixture(t, 3, shards)
	fx.startReplicas(3, nil)
	if err := fx.waitForWrites(); err != nil {
		t.Fatal(err)
	}
	fx.loseLeader(t)
	if err := fx.waitForWrites(); err != nil {
		t.Errorf("after the leader was lost: %v", err)
	}
	pause(t.Context(), time.Second) // of work under the new leader
	lost, found := fx.loseQuorum(t)
	if err := fx.waitForWrites(); err != nil {
		t.Errorf("after the quorum was found: %v", err)
	}
	pause(t.Context(), time.Second) // of work under the new quorum
	h, err := fx.finish()
	if err != nil {
		t.Error(err)
	}
	verdict := history.Analyze(h)
	t.Logf("leader and quorum lost and found: %v", verdict)
	if err := verdict.Err(history.Minimum{Applied: 5, Reads: 50, Terms: 2 * shards}); err != nil {
		t.Error(err)
	}
	checkNoTermPasses(t, h, lost+int64(quorumLossDetection+ttl), found)
}

// loseLeader kills the leader and, when another leads, starts it again.
func (fx *fixture) loseLeader(t *testing.T) {
	t.Helper()
	leader, err := fx.leader(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	from := clock()
	leader.kill()
	err = fx.eventually(readyTimeout, func() error {
		_, err := fx.leader(t.Context(), leader)
		return err
	})
	fx.recordFault(history.Outage, "", from)
	if err := errors.Join(err, leader.start(), leader.ready(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// loseQuorum kills the two members that follow, which is worse than losing the leader, and starts them again when all terms
// have been over for a TTL. It returns the clock before and after that.
func (fx *fixture) loseQuorum(t *testing.T) (lost, found int64) {
	t.Helper()
	leader, err := fx.leader(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	followers := slices.DeleteFunc(slices.Clone(fx.etcd), func(m *etcdMember) bool { return m == leader })
	for _, m := range followers {
		m.kill()
	}
	lost = clock()
	pause(t.Context(), quorumLossDetection+2*ttl)
	found = clock()
	for _, m := range followers {
		if err := m.start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range fx.etcd {
		if err := m.ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	fx.recordFault(history.Outage, "", lost)
	return lost, found
}

// leader returns the member that leads and is not the given one, as the members themselves say.
func (fx *fixture) leader(ctx context.Context, not *etcdMember) (*etcdMember, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var problems []error
	for _, m := range fx.etcd {
		if m == not {
			continue
		}
		status, err := fx.client.Status(ctx, m.endpoint())
		if err == nil && isLeader(status) {
			return m, nil
		}
		problems = append(problems, err)
	}
	return nil, errors.Join(append(problems, errors.New("nobody leads etcd"))...)
}

func isLeader(status *clientv3.StatusResponse) bool {
	return status.Leader != 0 && status.Leader == status.Header.MemberId
}

// wantNobody checks that no check of a term passed within a time.
func checkNoTermPasses(t *testing.T, h history.History, from, to int64) {
	t.Helper()
	before, after := 0, 0
	var last int64
	for _, log := range h.Logs {
		for _, event := range log.Events {
			if event.Kind != history.Passed {
				continue
			}
			switch {
			case event.From < from:
				before++
			case event.To < to:
				after, last = after+1, max(last, event.To)
			}
		}
	}
	if after > 0 {
		t.Errorf("%d checks passed after all terms had to be over, the last %v after", after, time.Duration(last-from))
	}
	if before == 0 {
		t.Error("nobody acted before either, so this shows nothing")
	}
}
