package fanin_test

import (
	"testing"
	"testing/synctest"
	"time"
)

// Two shards, of which one has no leader, and no replica answers ListShards.
func TestHub_UnknownLeadersAreMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newReplicas(t, reportsOwn, "a")
		f.setLeaders()
		c := f.watch("")
		time.Sleep(time.Minute)
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.missing) == 0 || c.bookmarks == 0 {
			t.Errorf("%d bookmarks say that nothing is missing", c.bookmarks)
		}
		if token, _ := f.hub.ResumeToken("m", ""); token != "" {
			t.Error("a list gets a token")
		}
	})
}
