package testkit

import (
	"os"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/etcdroles"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// EnableEtcdUsers gives the etcd of a test's own cluster users, with the roles of servers. A user
// is known by its certificate. That of kube-apiserver may do anything, as may the returned client.
func EnableEtcdUsers(t testing.TB, cluster *devcluster.Cluster, roles []etcdroles.Role) *clientv3.Client {
	t.Helper()
	root, err := cluster.EtcdClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	ctx := t.Context()
	do := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	byCertificate := &clientv3.UserAddOptions{NoPassword: true}
	const kubeAPIServer = "trivet" // the name in the certificate of devcluster
	for _, user := range []string{"root", kubeAPIServer} {
		do(root.UserAddWithOptions(ctx, user, "", byCertificate))
		do(root.UserGrantRole(ctx, user, "root"))
	}
	for _, role := range roles {
		do(root.RoleAdd(ctx, role.Name))
		for _, grant := range role.Grants {
			kind := clientv3.PermRead
			if grant.Write {
				kind = clientv3.PermReadWrite
			}
			do(root.RoleGrantPermission(ctx, role.Name, grant.Key, grant.End, clientv3.PermissionType(kind)))
		}
		do(root.UserAddWithOptions(ctx, role.Name, "", byCertificate))
		do(root.UserGrantRole(ctx, role.Name, role.Name))
	}
	do(root.AuthEnable(ctx))
	return root
}

// EtcdAs returns how a user connects to the etcd of a test's own cluster.
func EtcdAs(t testing.TB, cluster *devcluster.Cluster, user string) etcdconn.Config {
	t.Helper()
	certPEM, keyPEM, err := cluster.EtcdCertificate(user)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	config := etcdconn.DefaultConfig()
	config.Endpoints = cluster.EtcdEndpoints()
	config.CAFile, _, _ = cluster.EtcdFiles()
	config.CertFile, config.KeyFile = filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key")
	for path, content := range map[string][]byte{config.CertFile: certPEM, config.KeyFile: keyPEM} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return config
}
