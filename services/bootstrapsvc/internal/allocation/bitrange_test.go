package allocation

import (
	"math/big"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func TestBitRange_AddressesAndBitsAreInverse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{
			"0.0.0.0/0", "10.96.0.0/12", "10.0.0.0/24", "10.0.0.4/30", "255.255.255.0/24",
			"::/0", "2001:db8::/48", "2001:db8:0:8::/61", "2001:db8::/64", "fd00::/112", "fd00::8/125",
		}).Draw(t, "range")
		r, err := parseRange(ClusterIPs, text)
		if err != nil {
			t.Fatal(err)
		}
		offset := rapid.IntRange(0, r.size-1).Draw(t, "offset")
		address := r.address(offset)
		want := new(big.Int).SetBytes(r.prefix.Addr().AsSlice())
		want.Add(want, big.NewInt(int64(offset)+1))
		if got := new(big.Int).SetBytes(address.AsSlice()); got.Cmp(want) != 0 || !r.prefix.Contains(address) {
			t.Fatalf("bit %d is %s, want %x", offset, address, want)
		}
		if bit, ok := r.addressBit(address); !ok || bit != offset {
			t.Fatalf("%s has bit %d, %t, want %d", address, bit, ok, offset)
		}
		outside := []netip.Addr{r.prefix.Addr(), r.address(r.size), netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("2001:db8:0:9::1")}
		for _, other := range outside[:2] {
			if bit, ok := r.addressBit(other); ok {
				t.Fatalf("%s has bit %d", other, bit)
			}
		}
		for _, other := range outside[2:] {
			if bit, ok := r.addressBit(other); ok && r.address(bit) != other {
				t.Fatalf("%s has bit %d of %s", other, bit, r.address(bit))
			}
		}
	})
}
