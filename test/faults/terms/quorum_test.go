package terms

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/test/faults/terms/internal/history"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// quorumLossDetection bounds the time in which a leader without a quorum still renews leases. Raft
// checks once in an election timeout whether a majority answered during the last one, and a leader
// answers renewals alone. This is safe because the next leader extends every lease, but terms end
// later by this time.
const quorumLossDetection = 2 * history.ElectionTimeout

// TestQuorum_LostAndRestored runs three replicas on three etcd members. The loss of the leader may
// interrupt the work for one session. Without a quorum all terms end in time and no replica acts.
// Work resumes with the quorum.
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
	testkit.Pause(t.Context(), time.Second) // of work under the new leader
	lost, restored := fx.loseQuorum(t)
	if err := fx.waitForWrites(); err != nil {
		t.Errorf("after the quorum was restored: %v", err)
	}
	testkit.Pause(t.Context(), time.Second) // of work under the new quorum
	h, err := fx.finish()
	if err != nil {
		t.Error(err)
	}
	report := history.Analyze(h)
	t.Logf("leader and quorum lost and restored: %v", report)
	if err := report.Err(history.Minimum{Applied: 5, Reads: 50, Terms: 2 * shards}); err != nil {
		t.Error(err)
	}
	checkNoTermPasses(t, h, lost+int64(quorumLossDetection+ttl), restored)
}

// loseLeader kills the leader and restarts it after another member leads.
func (fx *fixture) loseLeader(t *testing.T) {
	t.Helper()
	leader, err := fx.leader(t.Context(), -1)
	if err != nil {
		t.Fatal(err)
	}
	from := clock()
	fx.etcd.KillEtcdMember(leader)
	err = fx.eventually(writeTimeout, func() error {
		_, err := fx.leader(t.Context(), leader)
		return err
	})
	fx.recordFault(history.Outage, "", from)
	if err := errors.Join(err, fx.etcd.StartEtcd()); err != nil {
		t.Fatal(err)
	}
}

// loseQuorum kills the two followers, which ends the quorum, and restarts them when all terms have
// been over for a TTL. It returns the clock before and after that time.
func (fx *fixture) loseQuorum(t *testing.T) (lost, restored int64) {
	t.Helper()
	leader, err := fx.leader(t.Context(), -1)
	if err != nil {
		t.Fatal(err)
	}
	for n := range fx.etcd.EtcdEndpoints() {
		if n != leader {
			fx.etcd.KillEtcdMember(n)
		}
	}
	lost = clock()
	testkit.Pause(t.Context(), quorumLossDetection+2*ttl)
	restored = clock()
	if err := fx.etcd.StartEtcd(); err != nil {
		t.Fatal(err)
	}
	fx.recordFault(history.Outage, "", lost)
	return lost, restored
}

// leader returns the number of the member that reports itself as the leader. It skips the given
// member.
func (fx *fixture) leader(ctx context.Context, not int) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var problems []error
	for n, endpoint := range fx.etcd.EtcdEndpoints() {
		if n == not {
			continue
		}
		status, err := fx.client.Status(ctx, endpoint)
		if err == nil && isLeader(status) {
			return n, nil
		}
		problems = append(problems, err)
	}
	return 0, errors.Join(append(problems, errors.New("no member of etcd leads"))...)
}

func isLeader(status *clientv3.StatusResponse) bool {
	return status.Leader != 0 && status.Leader == status.Header.MemberId
}

// checkNoTermPasses fails the test if a check of a term passed between from and to.
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
		t.Error("no check passed before the loss, so the test shows nothing")
	}
}
