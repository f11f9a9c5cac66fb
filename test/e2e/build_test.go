package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// binaries builds every command once and returns their folder, which lives as long as the test
// binary's own folder.
func binaries(t *testing.T) string {
	t.Helper()
	dir, err := buildAll()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var buildAll = sync.OnceValues(func() (string, error) {
	executable, err := os.Executable() // in the folder that `go test` removes at the end
	if err != nil {
		return "", err
	}
	dir := filepath.Join(filepath.Dir(executable), "trivet-bin")
	build := exec.Command("go", "build", "-o", dir+"/", "./cmd/...", "./test/lab/cmd/trivet-lab")
	build.Dir = filepath.Join("..", "..")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the commands: %w\n%s", err, output)
	}
	return dir, nil
})
