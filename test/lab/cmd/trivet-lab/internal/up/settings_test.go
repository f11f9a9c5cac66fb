package up

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/internal/cli/localgateway"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/faultcontroller"
)

func TestSettings_CommandsFindThem(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	home := t.TempDir()
	env := func(name string) string { return map[string]string{"HOME": home}[name] }
	s := settings{
		server: listener.Addr().String(), httpServer: "127.0.0.1:7680", demoSocket: "/data/demo's.sock",
		tls: identity.Files{CAFile: "/data/ca=1.crt", CertFile: "/data/a b.crt", KeyFile: "/data/admin.key"},
	}
	remove, err := s.publish(env)
	if err != nil {
		t.Fatal(err)
	}
	published, found := localgateway.Find(env)
	if !found {
		t.Fatal("the settings are not found")
	}
	want := map[string]string{
		localgateway.ServerVariable: s.server, localgateway.HTTPServerVariable: s.httpServer, localgateway.CAFileVariable: s.tls.CAFile,
		localgateway.CertFileVariable: s.tls.CertFile, localgateway.KeyFileVariable: s.tls.KeyFile, faultcontroller.SocketVariable: s.demoSocket,
	}
	script, err := s.writeScript(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	got, inShell := map[string]string{}, map[string]string{}
	for name := range want {
		got[name] = published(name)
		value, err := exec.CommandContext(t.Context(), "sh", "-c", `. "$0"; printf %s "$`+name+`"`, script).Output()
		if err != nil {
			t.Fatal(err)
		}
		inShell[name] = string(value)
	}
	if diff := cmp.Diff(want, got) + cmp.Diff(want, inShell); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	file := filepath.Join(home, ".cache", "trivet", "up.env")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v, want mode 0600", info, err)
	}

	later := settings{server: "127.0.0.1:1"}
	removeLater, err := later.publish(env)
	if err != nil {
		t.Fatal(err)
	}
	remove() // leaves the file of the later gateway
	if left, err := os.ReadFile(file); err != nil || string(left) != "TRIVET_SERVER=127.0.0.1:1\n" {
		t.Errorf("after the first gateway has ended, the file is %q, %v", left, err)
	}
	removeLater()
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file after the end: %v, want none", err)
	}
}

// A file that another user left is replaced. A folder that another user is able to write is not
// used.
func TestSettings_AreNotPublishedInAFolderOfAnotherUser(t *testing.T) {
	const other = 65534 // a user
	for name, c := range map[string]struct {
		plant     func(t *testing.T, file string) error
		published bool
		chowns    bool
	}{
		"own":            {plant: func(*testing.T, string) error { return nil }, published: true},
		"folder for all": {plant: func(_ *testing.T, file string) error { return os.Chmod(filepath.Dir(file), 0o777) }},
		"file for all":   {plant: func(_ *testing.T, file string) error { return os.Chmod(file, 0o666) }, published: true},
		"foreign file":   {plant: func(_ *testing.T, file string) error { return os.Chown(file, other, other) }, published: true, chowns: true},
		"foreign folder": {plant: func(_ *testing.T, file string) error { return os.Chown(filepath.Dir(file), other, other) }, chowns: true},
		"symbolic link": {plant: func(t *testing.T, file string) error {
			elsewhere := filepath.Join(t.TempDir(), "up.env")
			return errors.Join(os.Rename(file, elsewhere), os.Symlink(elsewhere, file))
		}, published: true},
		"folder is a link": {plant: func(t *testing.T, file string) error {
			elsewhere := filepath.Join(t.TempDir(), "real")
			return errors.Join(os.Rename(filepath.Dir(file), elsewhere), os.Symlink(elsewhere, filepath.Dir(file)))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.chowns && os.Geteuid() != 0 {
				t.Skip("only root gives files away")
			}
			runtime := t.TempDir()
			env := func(name string) string { return map[string]string{"XDG_RUNTIME_DIR": runtime}[name] }
			s := settings{server: "127.0.0.1:1"}
			if _, err := s.publish(env); err != nil {
				t.Fatal(err)
			}
			if err := c.plant(t, localgateway.File(env)); err != nil {
				t.Fatal(err)
			}
			if _, err := s.publish(env); (err == nil) != c.published {
				t.Errorf("publish() = %v, want success: %v", err, c.published)
			}
		})
	}
}
