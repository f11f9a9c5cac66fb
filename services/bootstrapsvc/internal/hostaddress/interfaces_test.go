package hostaddress

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDefaultRoutes(t *testing.T) {
	const ipv4 = `Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	0101A8C0	0003	0	0	100	00000000	0	0	0
eth0	0001A8C0	00000000	0001	0	0	100	00FFFFFF	0	0	0
eth1	00000000	0101A8C0	0002	0	0	100	00000000	0	0	0
torn li`
	const ipv6 = `00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     wlan0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth2
`
	want := map[string]bool{"eth0": true, "wlan0": true}
	if diff := cmp.Diff(want, defaultRoutes(ipv4, ipv6)); diff != "" {
		t.Errorf("default routes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{}, defaultRoutes("", "")); diff != "" {
		t.Errorf("default routes of nothing (-want +got):\n%s", diff)
	}
}

func TestInterfaces_SeesThisMachine(t *testing.T) {
	interfaces, err := Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, each := range interfaces {
		for _, address := range each.Addresses {
			if address.IsLoopback() {
				return
			}
		}
	}
	t.Errorf("no loopback address among %v", interfaces)
}
