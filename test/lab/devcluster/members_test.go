package devcluster

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestMembers_SurviveOneDeathAndARestore(t *testing.T) {
	temp := ownTempDir(t)
	cluster := begin(t, Config{EtcdOnly: true, EtcdMembers: 3})
	if endpoints := cluster.EtcdEndpoints(); len(endpoints) != 3 || len(cluster.pids()) != 3 {
		t.Fatalf("endpoints %v and processes %v, want three each", endpoints, cluster.pids())
	}
	put(t, cluster, "/kept", "before")
	copied := filepath.Join(t.TempDir(), "copy")
	if err := cluster.CopyEtcd(copied); err != nil {
		t.Fatal(err)
	}
	put(t, cluster, "/kept", "after")
	put(t, cluster, "/lost", "yes")

	cluster.KillEtcdMember(1)
	cluster.KillEtcdMember(1)
	put(t, cluster, "/kept", "without one member")
	cluster.KillEtcdMember(2)
	client, err := cluster.EtcdClient()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := client.Put(ctx, "/kept", "without quorum"); err == nil {
		t.Error("one of three members accepts a write")
	}
	if err := cluster.StartEtcd(); err != nil {
		t.Fatal(err)
	}
	if value := get(t, cluster, "/lost"); value != "yes" || len(cluster.pids()) != 3 {
		t.Errorf("after the restart of two members the value is %q and the processes are %v", value, cluster.pids())
	}

	before := revision(t, client)
	if err := cluster.RestoreEtcd(copied); err != nil {
		t.Fatal(err)
	}
	if after := revision(t, client); after >= before {
		t.Errorf("revisions are %d before and %d after the restore, want an older one", before, after)
	}
	if kept, lost := get(t, cluster, "/kept"), get(t, cluster, "/lost"); kept != "before" || lost != "" {
		t.Errorf("after the restore the values are %q and %q, want those of the copy", kept, lost)
	}
	if err := cluster.Err(); err != nil {
		t.Errorf("a kill that was asked for is reported: %v", err)
	}
	if err := cluster.Stop(); err != nil {
		t.Fatal(err)
	}
	requireEmpty(t, temp)
	requireNoChild(t)
}

func revision(t *testing.T, client *clientv3.Client) int64 {
	t.Helper()
	var answer *clientv3.GetResponse
	whileElecting(t, func() (err error) {
		answer, err = client.Get(t.Context(), "/kept")
		return err
	})
	return answer.Header.Revision
}

func TestStart_SeveralMembersRefuseAFixedPlace(t *testing.T) {
	for _, cfg := range []Config{{EtcdMembers: 3, DataDir: t.TempDir()}, {EtcdMembers: 3, EtcdPort: 20000}, {EtcdMembers: -1}} {
		if _, err := Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "Config.EtcdMembers") {
			t.Errorf("%+v: error %v does not name Config.EtcdMembers", cfg, err)
		}
	}
}
