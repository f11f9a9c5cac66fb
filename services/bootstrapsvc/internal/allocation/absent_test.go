package allocation_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

// A range of which nobody knows whether it is this cluster's looks like anything: nothing is concluded from it.
func TestRange_InDoubtIsNotJudgedAndNotWritten(t *testing.T) {
	inDoubt := bitmap(allocation.NodePorts, "30000-32767", 5)
	inDoubt.Unverified = "it is another cluster's"
	l := load(portSettings(), allocation.Snapshot{
		Services: []allocation.Service{nodePorts("a", 30080), nodePorts("b", 40000)}, Bitmaps: []allocation.Bitmap{inDoubt},
	})
	now := ripen(l, start)
	expect(t, l)
	want := allocation.StoreState{Store: allocation.NodePorts, Services: 2, Problem: "it is another cluster's"}
	got := l.StoreStates()[1]
	got.Ranges = nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	if data, err := inDoubt.Write(nil); err == nil {
		t.Errorf("it would be written as %x", data)
	}
	l.PutBitmap(bitmap(allocation.NodePorts, "30000-32767", 5))
	l.Compare(now)
	expect(t, l, "? leaked 30005:", "? not-allocated 30080 a:", "? out-of-range 40000 b:")
	l.PutBitmap(inDoubt)
	l.Compare(now)
	expect(t, l)
}

// A cluster of one family has no second range, and one with IPAddress objects may write no range beside them.
func TestRange_ThatAClusterCanDoWithoutIsNotMissed(t *testing.T) {
	missing := func(store allocation.Store) allocation.Bitmap { return allocation.Bitmap{Store: store, Missing: true} }
	stores := []allocation.Store{allocation.ClusterIPs, allocation.SecondaryClusterIPs}
	l := load(allocation.Settings{Stores: stores}, allocation.Snapshot{
		Services: []allocation.Service{service("a", "10.0.0.1")},
		Bitmaps:  []allocation.Bitmap{bitmap(allocation.ClusterIPs, "10.0.0.0/24", 0), missing(allocation.SecondaryClusterIPs)},
	})
	ripen(l, start)
	expect(t, l)
	if diff := cmp.Diff(allocation.StoreState{Store: allocation.SecondaryClusterIPs}, l.StoreStates()[3]); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	l.PutBitmap(missing(allocation.ClusterIPs))
	ripen(l, start)
	expect(t, l, "range-mismatch :")

	stores = append(stores, allocation.IPAddresses)
	l = load(allocation.Settings{Stores: stores}, allocation.Snapshot{
		CIDRs: []allocation.CIDR{defaultCIDR()}, Services: []allocation.Service{service("a", "10.0.0.1")},
		IPAddresses: []allocation.IPAddress{object("10.0.0.1", "a")},
		Bitmaps:     []allocation.Bitmap{missing(allocation.ClusterIPs), missing(allocation.SecondaryClusterIPs)},
	})
	ripen(l, start)
	expect(t, l)
}

// The addresses of a family whose range cannot be read are not said to be in none.
func TestRange_UnreadableSecondSaysNothingOfItsAddresses(t *testing.T) {
	l := load(allocation.Settings{Stores: []allocation.Store{allocation.ClusterIPs, allocation.SecondaryClusterIPs}}, allocation.Snapshot{
		Services: []allocation.Service{service("a", "10.0.0.1", "2001:db8::1")},
		Bitmaps: []allocation.Bitmap{
			bitmap(allocation.ClusterIPs, "10.0.0.0/24", 0), {Store: allocation.SecondaryClusterIPs, Problem: "it is truncated"},
		},
	})
	ripen(l, start)
	expect(t, l, "unreadable :")
}
