package hostaddress

import (
	"net/netip"
	"strings"
	"testing"
)

func nic(name string, addresses ...string) Interface {
	card := Interface{Name: name, Up: true}
	for _, address := range addresses {
		card.Addresses = append(card.Addresses, netip.MustParseAddr(address))
	}
	return card
}

func down(card Interface) Interface {
	card.Up = false
	return card
}

func routed(card Interface) Interface {
	card.DefaultRoute = true
	return card
}

func TestChoose(t *testing.T) {
	loopback := nic("lo", "127.0.0.1", "::1")
	cases := map[string]struct {
		host       string
		interfaces []Interface
		family     Family
		want       string
	}{
		"the URL's address, if others can reach it": {
			host: "10.1.0.1", interfaces: []Interface{routed(nic("eth0", "10.1.0.9"))}, want: "10.1.0.1",
		},
		"not the URL's loopback": {
			host: "127.0.0.1", interfaces: []Interface{loopback, nic("eth0", "10.1.0.9")}, want: "10.1.0.9",
		},
		"not the URL's name": {
			host: "api.example", interfaces: []Interface{loopback, nic("eth0", "10.1.0.9")}, want: "10.1.0.9",
		},
		"not the URL's address of the other family": {
			host: "10.1.0.1", interfaces: []Interface{nic("eth0", "10.1.0.9", "fd00::9")}, family: IPv6, want: "fd00::9",
		},
		"the interface of the default route first": {
			interfaces: []Interface{loopback, nic("docker0", "172.17.0.1"), routed(nic("eth0", "10.1.0.9"))}, want: "10.1.0.9",
		},
		"another one if that has nothing to offer": {
			interfaces: []Interface{nic("docker0", "172.17.0.1"), routed(nic("eth0", "169.254.1.1"))}, want: "172.17.0.1",
		},
		"none that is down": {
			interfaces: []Interface{down(routed(nic("eth0", "10.1.0.9"))), nic("eth1", "10.1.0.8")}, want: "10.1.0.8",
		},
		"IPv4 where there are both": {
			interfaces: []Interface{routed(nic("eth0", "fe80::1", "fd00::9", "10.1.0.9"))}, want: "10.1.0.9",
		},
		"IPv6 where there is nothing else": {
			interfaces: []Interface{routed(nic("eth0", "fe80::1", "fd00::9"))}, want: "fd00::9",
		},
		"the wanted family on another interface": {
			interfaces: []Interface{routed(nic("eth0", "fd00::9")), nic("eth1", "10.1.0.8")}, family: IPv4, want: "10.1.0.8",
		},
		"a mapped address in its short form": {
			host: "::ffff:10.1.0.1", want: "10.1.0.1",
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Choose(test.host, test.interfaces, test.family)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != test.want {
				t.Errorf("chose %s, want %s", got, test.want)
			}
		})
	}
}

func TestChoose_NothingToChooseNamesTheFlag(t *testing.T) {
	interfaces := []Interface{nic("lo", "127.0.0.1", "::1"), routed(nic("eth0", "fe80::1", "169.254.0.7"))}
	_, err := Choose("localhost", interfaces, Any)
	if err == nil || !strings.Contains(err.Error(), "--apiserver-advertise-address") {
		t.Errorf("error = %v, want one that names the flag", err)
	}
}

func TestRoutable(t *testing.T) {
	for address, want := range map[string]bool{
		"10.1.0.1": true, "8.8.8.8": true, "fd00::1": true, "2001:db8::1": true,
		"127.0.0.1": false, "::1": false, "0.0.0.0": false, "::": false,
		"169.254.1.1": false, "fe80::1": false, "2001:db8::1%eth0": false, "224.0.0.1": false, "ff02::1": false,
	} {
		if got := Routable(netip.MustParseAddr(address)) == nil; got != want {
			t.Errorf("Routable(%s) = %t, want %t", address, got, want)
		}
	}
	if Routable(netip.Addr{}) == nil {
		t.Error("no address at all is routable")
	}
}
