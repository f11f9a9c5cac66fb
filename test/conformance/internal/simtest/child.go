package simtest

import (
	"path/filepath"
	"sync"
	"testing"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
)

// Child is a running program. It is killed when the test ends.
type Child struct {
	*childprocess.Child
	t    *testing.T
	name string
	end  sync.Once
}

// StartChild starts a program, whose log it chooses. The program must run until Stop or Kill is
// called or the test ends. If the test fails, the end of its output is in the log of the test.
func StartChild(t *testing.T, cfg childprocess.Config) *Child {
	t.Helper()
	cfg.Log = filepath.Join(t.TempDir(), cfg.Name+".log")
	started, err := childprocess.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := &Child{Child: started, t: t, name: cfg.Name}
	t.Cleanup(c.Kill)
	return c
}

// Name is the name of the program.
func (c *Child) Name() string { return c.name }

// Kill ends the program at once. Stop and Kill do nothing after the first call of either.
func (c *Child) Kill() {
	c.end.Do(func() {
		if c.Gone() {
			c.t.Errorf("%s has ended by itself", c.name)
		}
		c.Child.Kill()
		c.showLog()
	})
}

// Stop asks the program to end, and fails the test if it does not end with success.
func (c *Child) Stop() {
	c.end.Do(func() {
		if err := c.Child.Stop(); err != nil {
			c.t.Error(err)
		}
		c.showLog()
	})
}

// showLog puts the end of the output into the log of a failed test.
func (c *Child) showLog() {
	if text, err := c.LogTail(); c.t.Failed() && err == nil {
		c.t.Logf("%s said:\n%s", c.name, text)
	}
}
