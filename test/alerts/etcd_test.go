package alerts

import (
	"context"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/etcdconn"
)

// revokeOneSession revokes the etcd lease of a replica of a service.
func (w *world) revokeOneSession(ctx context.Context, service string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	members, err := w.etcd.Get(ctx, etcdconn.KeyPrefix(clusterName)+"members/"+service+"/", clientv3.WithPrefix(), clientv3.WithLimit(1))
	if err != nil || len(members.Kvs) == 0 {
		return err
	}
	if _, err := w.etcd.Revoke(ctx, clientv3.LeaseID(members.Kvs[0].Lease)); err != nil && !strings.Contains(err.Error(), "lease not found") {
		return err
	}
	return nil
}

// fullEtcd raises the alarm that etcd raises at its quota: it refuses all writes of keys. A node
// dies, so that leasesvc has something to store.
func fullEtcd(w *world) func() {
	dead := w.fleet.Nodes()[2]
	w.die(dead)
	w.must(w.lab.Cluster.SetFull(true))
	return func() {
		w.must(w.lab.Cluster.SetFull(false))
		w.live(dead, "boot-after-"+w.stamp())
	}
}
