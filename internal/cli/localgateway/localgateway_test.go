package localgateway_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/trivet-dev/trivet/internal/cli/localgateway"
)

// write writes the file of a user, whose folder is the user's alone.
func write(t *testing.T, env func(string) string, text string) (file string) {
	t.Helper()
	file = localgateway.File(env)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	return file
}

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
	write(t, env, "TRIVET_SERVER="+listener.Addr().String()+"\nTRIVET_CA_FILE=/data/ca=1.crt\nTRIVET_CERT_FILE=/data/a b.crt\n")
	published, found := localgateway.Find(env)
	if !found {
		t.Fatal("the gateway is not found")
	}
	for name, want := range map[string]string{
		localgateway.ServerVariable: listener.Addr().String(), localgateway.CAFileVariable: "/data/ca=1.crt",
		localgateway.CertFileVariable: "/data/a b.crt", localgateway.KeyFileVariable: "",
	} {
		if got := published(name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	listener.Close()
	if _, found := localgateway.Find(env); found {
		t.Error("a gateway that has ended is found")
	}
}

// A file of another user names a server and authorities of that user, to which a command would send
// its token.
func TestFind_AFileOfAnotherUserDoesNotCount(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	const other = 65534 // a user
	for name, c := range map[string]struct {
		plant  func(t *testing.T, file string) error
		counts bool
		chowns bool
	}{
		"own":            {plant: func(*testing.T, string) error { return nil }, counts: true},
		"folder for all": {plant: func(_ *testing.T, file string) error { return os.Chmod(filepath.Dir(file), 0o777) }},
		"file for all":   {plant: func(_ *testing.T, file string) error { return os.Chmod(file, 0o666) }},
		"foreign file":   {plant: func(_ *testing.T, file string) error { return os.Chown(file, other, other) }, chowns: true},
		"foreign folder": {plant: func(_ *testing.T, file string) error { return os.Chown(filepath.Dir(file), other, other) }, chowns: true},
		"symbolic link": {plant: func(t *testing.T, file string) error {
			elsewhere := filepath.Join(t.TempDir(), "up.env")
			return errors.Join(os.Rename(file, elsewhere), os.Symlink(elsewhere, file))
		}},
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
			file := write(t, env, localgateway.ServerVariable+"="+listener.Addr().String()+"\n")
			if err := c.plant(t, file); err != nil {
				t.Fatal(err)
			}
			if _, found := localgateway.Find(env); found != c.counts {
				t.Errorf("Find() = %v, want %v", found, c.counts)
			}
		})
	}
}
