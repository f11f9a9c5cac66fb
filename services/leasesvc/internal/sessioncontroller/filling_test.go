package sessioncontroller_test

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// Live holders register at the new leader seconds after it claimed their shard. Until then lists
// and watches must not say that the shard is wholly there: readers would take the leases for ended.
func TestRunShard_NewShardIsNamedWhenItsHoldersHadTimeToRegister(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := sessioncontroller.New(sessioncontroller.Config{
			Classes: classes, Shards: 4, Limit: 10, FillTime: 15 * time.Second, Logger: slog.New(slog.DiscardHandler),
		})
		defer run(t, ctl)()
		time.Sleep(16 * time.Second) // shard 0 is filled
		sub, err := ctl.Watch(t.Context(), sessioncontroller.Selection{}, sessioncontroller.Version{})
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Close()
		shards := func() []int {
			t.Helper()
			synctest.Wait()
			bookmark, err := sub.Bookmark(t.Context())
			page, listErr := ctl.List(t.Context(), sessioncontroller.ListOptions{Limit: 10})
			if err = errors.Join(err, listErr); err != nil {
				t.Fatal(err)
			}
			if !page.Shards.Equal(bookmark.Shards) {
				t.Errorf("a list names %v, a watch %v", page.Shards, bookmark.Shards)
			}
			return page.Shards.IDs
		}
		read := func() {
			t.Helper()
			for {
				events, err := sub.NextWithin(t.Context(), time.Millisecond)
				if err != nil {
					t.Fatal(err)
				}
				if len(events) == 0 {
					return
				}
			}
		}
		read()
		defer holdShard(t, ctl, 1, 9)()
		read()
		if diff := cmp.Diff([]int{0}, shards()); diff != "" {
			t.Errorf("shards after the claim (-want +got):\n%s", diff)
		}
		if _, _, err := ctl.Get(t.Context(), node("a", "").Key, 1); !errors.Is(err, sessioncontroller.ErrNotFilled) {
			t.Errorf("Get of a holder that has yet to register: %v", err)
		}
		registerIn(t, ctl, 1, node("a", "1"))
		if _, found, err := ctl.Get(t.Context(), node("a", "").Key, 1); err != nil || !found {
			t.Errorf("Get of a holder that registered: found %t, error %v", found, err)
		}
		time.Sleep(15 * time.Second)
		read()
		if diff := cmp.Diff([]int{0, 1}, shards()); diff != "" {
			t.Errorf("shards later (-want +got):\n%s", diff)
		}
	})
}
