package fanin_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// While the stream was down, the replica lost its shard and claimed it again. The item ended at the
// leader in between, so that the replica does not report its end.
func TestHub_ReplicaThatRegainedAShardIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newReplicas(t, reports("x"), "a")
		c := f.watch("")
		time.Sleep(2 * time.Second)
		f.cut(func(_, token string) ([]message, error) {
			m := mark("a", true, 0)
			m.Bookmark.Sources[0].Epoch = 9
			return []message{m}, nil // nothing since the token, and nothing at all
		})
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{"a ", "a after x", "a "}, f.attempts()); diff != "" {
			t.Errorf("streams opened (-want +got):\n%s", diff)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.items) > 0 {
			t.Errorf("items that do not exist: %v; missing %v", c.items, c.missing)
		}
	})
}
