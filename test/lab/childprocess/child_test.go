package childprocess

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// eventually stands in for testkit.Eventually, whose package imports this one.
func eventually(t *testing.T, condition func() error) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestChild_LastLinesAreFewAndShort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	content := strings.Repeat("early\n", 5000) + strings.Repeat("x", 2*longestLine) + "\nlast\n"
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &Child{name: "script", log: path}
	lines := strings.Split(c.lastLines(), "\n")
	if len(lines) != logTailLines || lines[len(lines)-1] != "  last" || len(lines[len(lines)-2]) > longestLine+10 {
		t.Errorf("last words are %q", lines)
	}
}

// A frozen process does nothing until it is thawed, and a stop ends it in either state.
func TestChild_FreezesThawsAndStops(t *testing.T) {
	dir := t.TempDir()
	c, err := Start(Config{
		Path: "/bin/sh", Args: []string{"-c", "while :; do echo line; /bin/sleep 0.01; done"}, Log: filepath.Join(dir, "script.log"), Grace: 10 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	grows := func() error {
		before := logSize(t, dir)
		for began := time.Now(); time.Since(began) < 200*time.Millisecond; time.Sleep(10 * time.Millisecond) {
			if logSize(t, dir) > before {
				return nil
			}
		}
		return errors.New("the process writes nothing")
	}
	eventually(t, grows)
	if err := c.Freeze(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { // the sleep of the script may still end
		if grows() == nil {
			return errors.New("the frozen process writes")
		}
		return nil
	})
	if c.Gone() || c.Stopping() {
		t.Error("a frozen process counts as ended")
	}
	if err := c.Thaw(); err != nil {
		t.Fatal(err)
	}
	eventually(t, grows)
	if err := c.Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(); err == nil || !c.Gone() || !c.Stopping() {
		t.Error("a stopped process has not ended")
	}
	if err := c.Thaw(); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Thaw of an ended process = %v", err)
	}
}

func logSize(t *testing.T, dir string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, "script.log"))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
