package etcdroles_test

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/etcdroles"
)

var update = flag.Bool("update", false, "write deploy/etcd-roles.sh")

func TestScript_IsInDeploy(t *testing.T) {
	path := filepath.Join("..", "..", "deploy", "etcd-roles.sh")
	if *update {
		if err := os.WriteFile(path, []byte(etcdroles.Script()), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil || string(text) != etcdroles.Script() {
		t.Errorf("%s is not that of the table, %v; go test ./internal/etcdroles -args -update writes it", path, err)
	}
}

// Each server has one role, and no server may write a key of another one or read a Secret.
func TestOf_ServersOwnTheKeysThatTheyWrite(t *testing.T) {
	roles := etcdroles.Of("/trivet/prod-1/", etcdroles.DefaultRegistry)
	owner := map[string]string{}
	for i, server := range certs.Servers() {
		if roles[i].Name != etcdroles.User(server) {
			t.Errorf("role %d is that of %s, want %s", i, roles[i].Name, server)
		}
		for _, grant := range roles[i].Grants {
			if grant.End != "" && grant.Write && grant.End != clientv3.GetPrefixRangeEnd(grant.Key) {
				t.Errorf("%s may write from %s to %s, which is no prefix", server, grant.Key, grant.End)
			}
			if secrets := etcdroles.DefaultRegistry + "/secrets/"; grant.Key <= secrets && secrets < grant.End {
				t.Errorf("%s may read %s", server, secrets)
			}
			if !grant.Write || strings.HasSuffix(grant.Key, "/check/") {
				continue
			}
			if other := owner[grant.Key]; other != "" {
				t.Errorf("%s and %s may write %s", other, server, grant.Key)
			}
			owner[grant.Key] = server
		}
	}
}

// What no server needs is named, whatever the prefix of kube-apiserver's keys is.
func TestBeyond_NamesWhatNoServerNeeds(t *testing.T) {
	held := []etcdroles.Grant{
		{Key: "/registry/secrets/", End: "/registry/secrets0"},
		{Key: "/registry/secrets/trivet/", End: "/registry/secrets/trivet0"},
		{Key: "/registry/secrets/ranges/", End: "/registry/secrets/ranges0"},
		{Key: "/registry/clusterrolebindings/x"},
		{Key: "/registry/masterleases/", End: "/registry/masterleases0", Write: true},
		{Key: "/registry/", End: "/registry0"},
		{Key: "/registry/ranges/", End: "\x00"},
		{Key: "/trivet/", End: "\x00"},
		{Key: "", End: "\x00", Write: true},
	}
	fine := []etcdroles.Grant{{Key: "/trivet/other/", End: "/trivet/other0", Write: true}, {Key: "/registry/masterleases/10.0.0.1"}}
	for _, registry := range []string{etcdroles.DefaultRegistry, "/k8s"} {
		for _, role := range etcdroles.Of("/trivet/prod-1/", registry) {
			fine = append(fine, role.Grants...)
		}
	}
	if got := etcdroles.Beyond(slices.Concat(fine, held)); !slices.Equal(got, held) {
		t.Errorf("%+v, want %+v", got, held)
	}
}

// A shell runs the script, and etcdctl gets the rights of the table.
func TestScript_GrantsTheTable(t *testing.T) {
	folder := t.TempDir()
	calls := filepath.Join(folder, "calls")
	etcdctl := "#!/bin/sh\necho \"$*\" >> " + calls + "\ntest \"$2\" != get\n" // no role and no user exists
	if err := os.WriteFile(filepath.Join(folder, "etcdctl"), []byte(etcdctl), 0o700); err != nil {
		t.Fatal(err)
	}
	script := exec.CommandContext(t.Context(), "sh", filepath.Join("..", "..", "deploy", "etcd-roles.sh"), "prod-1", "/k8s")
	script.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"))
	if output, err := script.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	text, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, role := range etcdroles.Of("/trivet/prod-1/", "/k8s") {
		want = append(want, "role get "+role.Name, "role add "+role.Name, "user get "+role.Name, "user add "+role.Name+" --no-password", "user grant-role "+role.Name+" "+role.Name)
		for _, grant := range role.Grants {
			kind := map[bool]string{true: "readwrite", false: "read"}[grant.Write]
			want = append(want, strings.TrimSpace("role grant-permission "+role.Name+" "+kind+" "+grant.Key+" "+grant.End))
		}
	}
	if got := strings.Split(strings.TrimSpace(string(text)), "\n"); !slices.Equal(got, want) {
		t.Errorf("etcdctl was called with\n%s\nwant\n%s", text, strings.Join(want, "\n"))
	}
}
