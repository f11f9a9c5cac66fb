package allocation

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"
)

// bitRange is the range of a bitmap: which bit stands for which port or address.
type bitRange struct {
	// first is the port of bit 0; prefix is the range of addresses, whose bit 0 stands for the one after the network's own.
	first  int32
	prefix netip.Prefix
	size   int
}

var errRange = errors.New("it is no range")

// parseRange reads a stored range: "30000-32767" of ports, a CIDR of addresses.
func parseRange(store Store, text string) (bitRange, error) {
	if store == NodePorts {
		return parsePortRange(text)
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil || prefix != prefix.Masked() || prefix.Addr().Is4In6() {
		return bitRange{}, fmt.Errorf("%w of addresses: %q", errRange, clip(text))
	}
	return bitRange{prefix: prefix, size: addressBits(prefix)}, nil
}

func parsePortRange(text string) (bitRange, error) {
	from, to, _ := strings.Cut(text, "-")
	first, err := strconv.ParseUint(from, 10, 16)
	last, err2 := strconv.ParseUint(to, 10, 16)
	if errors.Join(err, err2) != nil || first == 0 || last < first {
		return bitRange{}, fmt.Errorf("%w of ports: %q", errRange, clip(text))
	}
	return bitRange{first: int32(first), size: int(last-first) + 1}, nil
}

// addressBits is how many addresses a bitmap has room for: of IPv6 ranges it covers the first 65,535 only.
func addressBits(prefix netip.Prefix) int {
	free := prefix.Addr().BitLen() - prefix.Bits()
	if prefix.Addr().Is4() {
		return max(1<<free-2, 0)
	}
	return 1<<min(free, 16) - 1
}

// portBit is the bit of a port, or false when the range has none for it.
func (s bitRange) portBit(port int32) (int, bool) {
	offset := int(port) - int(s.first)
	return offset, offset >= 0 && offset < s.size
}

// addressBit is the bit of an address, or false when the range has none for it.
func (s bitRange) addressBit(address netip.Addr) (int, bool) {
	if !s.prefix.Contains(address) {
		return 0, false
	}
	base, target := s.prefix.Addr().As16(), address.As16()
	distance := 0
	for i := range base {
		if distance > 1<<32 {
			return 0, false
		}
		distance = distance<<8 + int(target[i]) - int(base[i])
	}
	offset := distance - 1
	return offset, offset >= 0 && offset < s.size
}

func (s bitRange) port(offset int) int32 { return s.first + int32(offset) }

// address is the one that a bit stands for.
func (s bitRange) address(offset int) netip.Addr {
	distance := offset + 1
	if s.prefix.Addr().Is4() {
		raw := s.prefix.Addr().As4()
		add(raw[:], distance)
		return netip.AddrFrom4(raw)
	}
	raw := s.prefix.Addr().As16()
	add(raw[:], distance)
	return netip.AddrFrom16(raw)
}

// add adds to a big-endian number.
func add(number []byte, distance int) {
	for i := len(number) - 1; i >= 0 && distance > 0; i-- {
		distance += int(number[i])
		number[i] = byte(distance & 0xff)
		distance >>= 8
	}
}

// hasBit reads a bit of upstream's encoding: a big-endian number without leading zero bytes.
func hasBit(data []byte, offset int) bool {
	at := len(data) - 1 - offset/8
	return at >= 0 && data[at]>>(offset%8)&1 == 1
}

// setBits calls visit for every bit that is set, from the lowest.
func setBits(data []byte, visit func(offset int)) {
	for i := len(data) - 1; i >= 0; i-- {
		for rest := data[i]; rest != 0; rest &= rest - 1 {
			visit((len(data)-1-i)*8 + bits.TrailingZeros8(rest))
		}
	}
}

func countBits(data []byte) int {
	count := 0
	for _, b := range data {
		count += bits.OnesCount8(b)
	}
	return count
}

// topBit is the number of the highest bit that is set, -1 when none is.
func topBit(data []byte) int {
	for i, b := range data {
		if b != 0 {
			return (len(data)-1-i)*8 + bits.Len8(b) - 1
		}
	}
	return -1
}
