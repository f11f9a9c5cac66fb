package robustness

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/schedule"
)

// injection injects one fault and reverts it after its duration.
type injection func(*world, schedule.Fault) error

// etcdInjections are the faults of single members of etcd.
func etcdInjections() map[schedule.Kind]injection {
	return map[schedule.Kind]injection{
		schedule.EtcdLeaderMoved:  (*world).moveEtcdLeader,
		schedule.EtcdMemberKilled: (*world).killEtcdLeader,
		schedule.EtcdNoQuorum:     (*world).loseQuorum,
		schedule.EtcdMemberCut:    (*world).cutFromEtcdLeader,
	}
}

// etcdLeader returns the number of the member that leads etcd, and the ids of all members.
func (w *world) etcdLeader(ctx context.Context) (leader int, ids []uint64, err error) {
	leader = -1
	var of uint64
	for _, endpoint := range w.cluster.EtcdEndpoints() {
		status, err := w.etcd.Status(ctx, endpoint)
		if err != nil {
			return -1, nil, err
		}
		ids = append(ids, status.Header.MemberId)
		of = status.Leader
	}
	for n, id := range ids {
		if id == of {
			leader = n
		}
	}
	if leader < 0 {
		err = errors.New("etcd has no leader")
	}
	return leader, ids, err
}

// awaitEtcdLeader is etcdLeader while members may elect one.
func (w *world) awaitEtcdLeader() (leader int, ids []uint64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	for {
		if leader, ids, err = w.etcdLeader(ctx); err == nil || ctx.Err() != nil {
			return leader, ids, err
		}
		testkit.Pause(ctx, 50*time.Millisecond)
	}
}

// moveEtcdLeader moves etcd's leader to the next member, again and again.
func (w *world) moveEtcdLeader(f schedule.Fault) error {
	for end := w.now() + f.Duration; w.now() < end; testkit.Pause(context.Background(), time.Second) {
		leader, ids, err := w.awaitEtcdLeader()
		if err != nil {
			return err
		}
		if err := w.moveEtcdLeaderTo(leader, ids[(leader+1)%len(ids)]); err != nil {
			return fmt.Errorf("move the leader from member %d: %w", leader, err)
		}
	}
	return nil
}

// moveEtcdLeaderTo asks the leader, as no other member can.
func (w *world) moveEtcdLeaderTo(leader int, next uint64) error {
	client, err := w.cluster.EtcdClient()
	if err != nil {
		return err
	}
	defer client.Close()
	client.SetEndpoints(w.cluster.EtcdEndpoints()[leader])
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	_, err = clientv3.NewMaintenance(client).MoveLeader(ctx, next)
	return err
}

// killEtcdLeader kills the member that leads etcd and starts it again.
func (w *world) killEtcdLeader(f schedule.Fault) error {
	leader, _, err := w.awaitEtcdLeader()
	if err != nil {
		return err
	}
	w.cluster.KillEtcdMember(leader)
	testkit.Pause(context.Background(), f.Duration)
	return w.cluster.StartEtcd()
}

// loseQuorum kills the member that leads etcd and another one. It returns when both kube-apiservers
// answer again.
func (w *world) loseQuorum(f schedule.Fault) error {
	leader, ids, err := w.awaitEtcdLeader()
	if err != nil {
		return err
	}
	w.cluster.KillEtcdMember(leader)
	w.cluster.KillEtcdMember((leader + 1) % len(ids))
	testkit.Pause(context.Background(), f.Duration)
	if err := w.cluster.StartEtcd(); err != nil {
		return err
	}
	return w.awaitAPIServers()
}

// cutFromEtcdLeader holds all bytes between a replica and the member that leads etcd.
func (w *world) cutFromEtcdLeader(f schedule.Fault) error {
	leader, _, err := w.awaitEtcdLeader()
	if err != nil {
		return err
	}
	link := w.leader(f.Service).ToEtcd[leader]
	hold(f.Duration, link.BlockToTarget, link.BlockFromTarget)
	return nil
}

// awaitAPIServers returns when both kube-apiservers answer from etcd.
func (w *world) awaitAPIServers() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for _, config := range []*rest.Config{w.cluster.RESTConfig(), w.peer.RESTConfig()} {
		kube, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		for {
			call, cancel := context.WithTimeout(ctx, time.Second)
			_, err := kube.CoreV1().Services(namespace).List(call, metav1.ListOptions{})
			cancel()
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return err
			}
			testkit.Pause(ctx, 100*time.Millisecond)
		}
	}
	return nil
}
