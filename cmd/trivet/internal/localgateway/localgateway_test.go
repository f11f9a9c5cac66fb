package localgateway_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/localgateway"
	"github.com/trivet-dev/trivet/internal/identity"
)

func TestFind_OnlyARunningGatewayIsFound(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	home := t.TempDir()
	env := func(name string) string { return map[string]string{"HOME": home}[name] }
	if _, found := localgateway.Find(env); found {
		t.Error("a gateway is found before any is published")
	}
	want := localgateway.Settings{
		Server: listener.Addr().String(), HTTPServer: "127.0.0.1:7680",
		TLS: identity.Files{CAFile: "/data/ca=1.crt", CertFile: "/data/a b.crt", KeyFile: "/data/admin.key"},
	}
	remove, err := localgateway.Publish(env, want)
	if err != nil {
		t.Fatal(err)
	}
	got, found := localgateway.Find(env)
	if diff := cmp.Diff(want, got); !found || diff != "" {
		t.Errorf("Find() = %v, %v (-want +got):\n%s", got, found, diff)
	}
	info, err := os.Stat(filepath.Join(home, ".cache", "trivet", "up.env"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v, want mode 0600", info, err)
	}

	listener.Close()
	if got, found := localgateway.Find(env); found {
		t.Errorf("Find() = %v of a gateway that has ended", got)
	}
	later := want
	later.Server = "127.0.0.1:1"
	removeLater, err := localgateway.Publish(env, later)
	if err != nil {
		t.Fatal(err)
	}
	remove() // leaves the file of the later gateway
	left, err := os.ReadFile(filepath.Join(home, ".cache", "trivet", "up.env"))
	if err != nil || string(left) != later.Environment() {
		t.Errorf("after the first gateway has ended, the file is %q, %v", left, err)
	}
	removeLater()
	if _, err := os.Stat(filepath.Join(home, ".cache", "trivet", "up.env")); !os.IsNotExist(err) {
		t.Errorf("the file after the end: %v, want none", err)
	}
}
