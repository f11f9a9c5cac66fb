package up

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLastWarnings_ReturnsEachTextOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trivet.log")
	log := `time=1 level=INFO msg=starting
time=2 level=WARN msg="not joined" error=a
time=3 level=WARN msg="not joined" error=a
time=4 level=ERROR msg=broken
time=5 level=WARN msg="not joined" error=b
`
	if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{`level=ERROR msg=broken`, `level=WARN msg="not joined" error=b`}
	if diff := cmp.Diff(want, lastWarnings(path, 2)); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	if got := lastWarnings(filepath.Join(t.TempDir(), "absent"), 2); got != nil {
		t.Errorf("lastWarnings() without a log = %q", got)
	}
}
