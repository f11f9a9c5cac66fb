package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/gobuild"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// running is a command that was started.
type running struct {
	*childprocess.Child
	log   string
	admin string // address of the admin server, for servers
	grpc  string
}

// run starts a command; it is killed with its children when the test ends, if it still runs. What
// it leaves in its folder for temporary files goes then, too.
func run(t *testing.T, name string, args ...string) *running {
	t.Helper()
	temporary := t.TempDir()
	r := &running{log: filepath.Join(temporary, name+".log")}
	var err error
	r.Child, err = childprocess.Start(childprocess.Config{
		Path: gobuild.Command(t, name), Args: args, Log: r.log, Env: []string{"TMPDIR=" + temporary, "XDG_RUNTIME_DIR=" + temporary},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-r.PID(), syscall.SIGKILL) // usually gone already
		<-r.Exited()
		if t.Failed() {
			t.Logf("%s %s said:\n%s", name, strings.Join(args, " "), r.output())
		}
	})
	return r
}

// serve starts a server against the cluster on free ports, with its certificate and the rights of
// its roles in deploy/.
func serve(t *testing.T, cluster *devcluster.Cluster, name string, args ...string) *running {
	t.Helper()
	ca, cert, key := cluster.EtcdFiles()
	grpc, admin := testkit.FreeAddress(t), testkit.FreeAddress(t)
	r := run(t, name, append(append(serverFlags(t, cluster, name),
		"--etcd-endpoints="+strings.Join(cluster.EtcdEndpoints(), ","),
		"--etcd-ca-file="+ca, "--etcd-cert-file="+cert, "--etcd-key-file="+key,
		"--listen="+grpc, "--admin-listen="+admin,
	), args...)...)
	r.grpc, r.admin = grpc, admin
	return r
}

// output returns all that the command has said.
func (r *running) output() string {
	text, err := os.ReadFile(r.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// said returns nil once the command has said the text, and an error while it has not.
func (r *running) said(text string) error {
	if strings.Contains(r.output(), text) {
		return nil
	}
	return fmt.Errorf("has not said %q", text)
}

func (r *running) ready() error {
	code, body, err := fetch("https://" + r.admin + "/readyz")
	if err != nil {
		return err
	}
	if code != http.StatusOK {
		return fmt.Errorf("readyz: %d %s", code, body)
	}
	return nil
}

// stop sends a signal and returns the exit code; it fails the test when the command does not end in
// time.
func (r *running) stop(t *testing.T, signal syscall.Signal, within time.Duration) int {
	t.Helper()
	if err := r.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	if err := r.Wait(within); err != nil {
		t.Fatal(err)
	}
	return r.ExitCode()
}

// fetch gets a URL as an administrator.
func fetch(url string) (int, string, error) {
	i, err := issued()
	if err != nil {
		return 0, "", err
	}
	return fetchAs(i.admin, url)
}

func fetchAs(caller identity.Files, url string) (int, string, error) {
	client, err := httpClient(caller)
	if err != nil {
		return 0, "", err
	}
	return fetchBy(client, url)
}

func fetchBy(client *http.Client, url string) (int, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	request.Close = true
	reply, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	return reply.StatusCode, string(body), err
}

// children returns the process ids below a process, as the kernel has them.
func children(t *testing.T, pid int) []int {
	t.Helper()
	var found []int
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		content, err := os.ReadFile(thread)
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range strings.Fields(string(content)) {
			var child int
			if _, err := fmt.Sscan(field, &child); err != nil {
				t.Fatal(err)
			}
			found = append(append(found, child), children(t, child)...)
		}
	}
	return found
}

// alive tells whether a process runs. One that has ended and was not reaped does not: whether
// process 1 of a container does that is not ours to say.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	afterName := stat[bytes.LastIndexByte(stat, ')')+1:]
	return !bytes.HasPrefix(bytes.TrimSpace(afterName), []byte("Z"))
}
