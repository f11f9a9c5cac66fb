package sessioncontroller_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

func TestList_ReturnsEverySessionOnceInOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-c.-]{1,3}`), 0, 20, rapid.ID).Draw(r, "names")
		class := session.ClassID(rapid.IntRange(0, 1).Draw(r, "class"))
		limit := rapid.IntRange(1, 7).Draw(r, "limit")
		synctest.Test(t, func(t *testing.T) {
			ctl := newController()
			defer run(t, ctl)()
			var want, wantClass []string
			for i, name := range names {
				key := session.Key{Class: session.ClassID(i % 2), Name: name}
				register(t, ctl, session.Holder{Key: key, Boot: "1"})
				full := classes[key.Class].Namespace + "/" + name
				want = append(want, full)
				if key.Class == class {
					wantClass = append(wantClass, full)
				}
			}
			slices.Sort(want)
			slices.Sort(wantClass)
			if got := listAll(t, ctl, sessioncontroller.ListOptions{Limit: limit}); !slices.Equal(got, want) {
				t.Errorf("all: got %v, want %v", got, want)
			}
			marked := []bool{class == 0, class == 1}
			if got := listAll(t, ctl, sessioncontroller.ListOptions{Limit: limit, Selection: sessioncontroller.Selection{Classes: marked}}); !slices.Equal(got, wantClass) {
				t.Errorf("class %d: got %v, want %v", class, got, wantClass)
			}
			if got := listAll(t, ctl, sessioncontroller.ListOptions{Limit: limit, Selection: sessioncontroller.Selection{States: []session.State{session.Expired}}}); got != nil {
				t.Errorf("expired: got %v, want none", got)
			}
		})
	})
}

func TestGetAll_ReturnsTheSessionsThatExist(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		var keys []session.Key
		want := map[session.Key]string{}
		for i := range 1200 { // more than one step of the controller
			h := node(fmt.Sprintf("n%d", i), fmt.Sprintf("boot-%d", i))
			if keys = append(keys, h.Key); i%3 > 0 {
				register(t, ctl, h)
				want[h.Key] = h.Boot
			}
		}
		leases, err := ctl.GetAll(t.Context(), keys)
		got := map[session.Key]string{}
		for _, lease := range leases {
			got[lease.Holder.Key] = lease.Holder.Boot
		}
		if err != nil || !maps.Equal(got, want) || len(leases) != len(want) {
			t.Errorf("%d leases, %v; want %d", len(leases), err, len(want))
		}
		if leases, err := ctl.GetAll(t.Context(), nil); err != nil || len(leases) > 0 {
			t.Errorf("of no keys: %d leases, %v", len(leases), err)
		}
	})
}

func TestList_ContinuesAfterASessionThatIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		for i := range 1200 { // more than one chunk
			register(t, ctl, node(fmt.Sprintf("n%04d", i), "1"))
		}
		first, err := ctl.List(t.Context(), sessioncontroller.ListOptions{Limit: 600})
		if err != nil || !first.More || len(first.Leases) != 600 {
			t.Fatalf("first page: %d sessions, more %t, error %v", len(first.Leases), first.More, err)
		}
		last := first.Leases[599].Holder
		ctl.CompleteRelease(beginRelease(t, ctl, last))
		rest, err := ctl.List(t.Context(), sessioncontroller.ListOptions{Limit: 1000, After: last.Key})
		if err != nil || rest.More || len(rest.Leases) != 600 || rest.Leases[0].Holder.Key.Name != "n0600" {
			t.Errorf("second page: %d sessions, more %t, error %v", len(rest.Leases), rest.More, err)
		}
	})
}

// A list covers the shards that are served from its begin to its end. A watch from its position
// completes it.
func TestList_SaysItsShardsAndWhereAWatchGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		register(t, ctl, node("a", "1"))
		page, err := ctl.List(t.Context(), sessioncontroller.ListOptions{Limit: 1})
		if err != nil || len(page.Leases) != 1 || page.More {
			t.Fatalf("page %v, error %v", page, err)
		}
		if diff := cmp.Diff(sessioncontroller.ServedShards{IDs: []int{0}, Epoch: 7}, page.Shards); diff != "" {
			t.Errorf("shards (-want +got):\n%s", diff)
		}
		register(t, ctl, node("a", "2"), node("b", "1"))
		sub, err := ctl.Watch(t.Context(), sessioncontroller.Selection{}, page.Position)
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Close()
		expectNames(t, "since the list", drain(t, sub), "~a", "+b", "|")
	})
}
