package localgateway_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/internal/cli/localgateway"
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

// Settings of another user name a server and authorities of that user, to which a command would
// send its token.
func TestFind_SettingsOfAnotherUserDoNotCount(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	settings := localgateway.Settings{Server: listener.Addr().String()}
	const other = 65534 // a user
	for name, c := range map[string]struct {
		plant   func(t *testing.T, file string) error
		counts  bool
		chowns  bool
		publish bool // whether settings may still be published there
	}{
		"own":            {plant: func(*testing.T, string) error { return nil }, counts: true, publish: true},
		"folder for all": {plant: func(_ *testing.T, file string) error { return os.Chmod(filepath.Dir(file), 0o777) }},
		"file for all":   {plant: func(_ *testing.T, file string) error { return os.Chmod(file, 0o666) }, publish: true},
		"foreign file":   {plant: func(_ *testing.T, file string) error { return os.Chown(file, other, other) }, chowns: true, publish: true},
		"foreign folder": {plant: func(_ *testing.T, file string) error { return os.Chown(filepath.Dir(file), other, other) }, chowns: true},
		"symbolic link":  {plant: linked, publish: true},
		"folder is a link": {plant: func(t *testing.T, file string) error {
			real := filepath.Join(t.TempDir(), "real")
			if err := os.Rename(filepath.Dir(file), real); err != nil {
				return err
			}
			return os.Symlink(real, filepath.Dir(file))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.chowns && os.Geteuid() != 0 {
				t.Skip("only root gives files away")
			}
			runtime := t.TempDir()
			env := func(name string) string { return map[string]string{"XDG_RUNTIME_DIR": runtime}[name] }
			if _, err := localgateway.Publish(env, settings); err != nil {
				t.Fatal(err)
			}
			if err := c.plant(t, filepath.Join(runtime, "trivet", "up.env")); err != nil {
				t.Fatal(err)
			}
			if got, found := localgateway.Find(env); found != c.counts {
				t.Errorf("Find() = %v, %v, want %v", got, found, c.counts)
			}
			if _, err := localgateway.Publish(env, settings); (err == nil) != c.publish {
				t.Errorf("Publish() = %v, want success: %v", err, c.publish)
			}
		})
	}
}

func linked(t *testing.T, file string) error {
	elsewhere := filepath.Join(t.TempDir(), "up.env")
	if err := os.Rename(file, elsewhere); err != nil {
		return err
	}
	return os.Symlink(elsewhere, file)
}
