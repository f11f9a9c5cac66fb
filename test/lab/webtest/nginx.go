package webtest

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// StartNginx runs nginx until the test ends, with one server that has the given directives beside
// listen, and returns the address of that server. It skips the test if the machine has no nginx.
func StartNginx(t testing.TB, directives string) (address string) {
	t.Helper()
	program, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("the machine has no nginx on its PATH; Debian's package nginx-light has it")
	}
	dir, address := t.TempDir(), testkit.FreeAddress(t)
	file := filepath.Join(dir, "nginx.conf")
	config := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log stderr;
events {}
http {
	access_log off; client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi; uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
	server { listen %[2]s;
%[3]s
	}
}
`, dir, address, directives)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	output := &testkit.LogBuffer{}
	command := exec.Command(program, "-p", dir, "-c", file, "-e", "stderr")
	command.Stdout, command.Stderr = output, output
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			t.Logf("nginx said:\n%s", output)
		}
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
	testkit.Eventually(t, waitLimit, func() error {
		response, err := client.Get("http://" + address + "/livez")
		if err != nil {
			return fmt.Errorf("%w; nginx said: %s", err, output)
		}
		return response.Body.Close()
	})
	return address
}
