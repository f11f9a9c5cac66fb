package devcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/lab/workdir"
)

// running ignores zombies. In many containers no process reaps orphans, so a killed grandchild
// stays a zombie.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, afterName, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(afterName, "Z")
}

// requireNoChild checks that this process has no child left.
func requireNoChild(t *testing.T) {
	t.Helper()
	children, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil || len(children) == 0 {
		t.Fatalf("find children: %v %v", children, err)
	}
	for _, path := range children {
		// A thread may end between the glob and the read.
		if content, err := os.ReadFile(path); err == nil && len(content) != 0 {
			t.Errorf("child processes left: %s", content)
		}
	}
}

// parentEnvironment makes this test binary start a cluster in the given directory and wait for a
// kill.
const parentEnvironment = "TRIVET_TEST_PARENT_DIR"

func beParent(dir string) int {
	cluster, err := Start(context.Background(), Config{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	pids, err := json.Marshal(cluster.pids())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := os.WriteFile(filepath.Join(dir, "pids.part"), pids, 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := os.Rename(filepath.Join(dir, "pids.part"), filepath.Join(dir, "pids")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {}
}

func TestStart_ChildrenDieWithAKilledParent(t *testing.T) {
	temp, dir := t.TempDir(), t.TempDir()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), parentEnvironment+"="+dir, "TMPDIR="+temp)
	parent.Stderr = t.Output()
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		// A second kill and the report of the first are no news.
		_ = parent.Process.Kill()
		_ = parent.Wait()
	}()

	var children []int
	eventually(t, startTimeout, func() error {
		content, err := os.ReadFile(filepath.Join(dir, "pids"))
		if err != nil {
			return err
		}
		return json.Unmarshal(content, &children)
	})
	if len(children) != 2 || !running(children[0]) || !running(children[1]) {
		t.Fatalf("children of the parent are %v, want two running processes", children)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, func() error { return gone(children...) })
	_ = parent.Wait() // killed, as it should be; its last thread holds the lock until it is gone, too

	// A later start removes the directory of the killed parent once it is old enough.
	old := time.Now().Add(-time.Hour)
	left, err := filepath.Glob(filepath.Join(temp, "trivet-devcluster-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range left {
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TMPDIR", temp)
	next, err := workdir.Open("", "trivet-devcluster-")
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
	requireEmpty(t, temp)
}
