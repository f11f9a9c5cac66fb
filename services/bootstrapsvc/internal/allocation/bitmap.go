package allocation

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"math/bits"
	"net/netip"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/wording"
)

// maxAllocatedBits bounds how many set bits are compared. No cluster has as many Services; a
// damaged value could hold millions.
const maxAllocatedBits = 1 << 17

// parsedBitmap is a bitmap with its parsed range.
type parsedBitmap struct {
	Bitmap
	bits bitRange
	// number has the bits of Data.
	number    *big.Int
	allocated int
	fault     fault
}

// fault says why a whole bitmap cannot be compared. It is zero if the bitmap can be compared.
// Without a code, it is not a finding.
type fault struct {
	code    Code
	message string
	// absent reports that the cluster does not have this range and does not need it.
	absent bool
}

func absentRange() fault { return fault{message: "there is no stored range", absent: true} }

// parseBitmap parses a stored range. An empty expected range accepts any.
func parseBitmap(b Bitmap, expected string) *parsedBitmap {
	p := &parsedBitmap{Bitmap: b, number: new(big.Int).SetBytes(b.Data)}
	p.allocated = countBits(p.number)
	p.fault = p.parse(expected)
	if !p.comparable() {
		p.allocated = 0
	}
	return p
}

func (p *parsedBitmap) parse(expected string) fault {
	switch {
	case p.Unverified != "":
		return fault{message: p.Unverified}
	case p.Problem != "":
		return fault{code: Unreadable, message: "the stored value cannot be read: " + p.Problem}
	case p.Missing && p.Store == NodePorts:
		return fault{code: RangeMismatch, message: "there is no stored range, so no port can be allocated; kube-apiserver makes it"}
	case p.Missing && p.Store == SecondaryClusterIPs:
		return absentRange() // a single-stack cluster has none
	case p.Missing:
		return fault{code: RangeMismatch, message: "there is no stored range, so no address can be allocated; kube-apiserver makes it"}
	}
	parsed, err := parseRange(p.Store, p.Range)
	if err != nil {
		return fault{code: Unreadable, message: "the stored range cannot be read: " + err.Error()}
	}
	p.bits = parsed
	highest := p.number.BitLen() - 1
	switch {
	case expected != "" && expected != p.Range:
		return fault{code: RangeMismatch, message: fmt.Sprintf("the stored range is %s, and %s is expected", p.Range, expected)}
	case highest >= parsed.size:
		return fault{code: Unreadable, message: fmt.Sprintf("bit %d is set, and range %s has %d", highest, p.Range, parsed.size)}
	case p.allocated > maxAllocatedBits:
		return fault{code: Unreadable, message: fmt.Sprintf("%d bits are set, more than the %d that are compared", p.allocated, maxAllocatedBits)}
	}
	return fault{}
}

func (p *parsedBitmap) comparable() bool { return p != nil && p.fault == (fault{}) }

func (p *parsedBitmap) count() RangeCount {
	count := RangeCount{Range: p.Range, Allocated: int64(p.allocated), Capacity: int64(p.bits.size)}
	if p.Store != NodePorts {
		count.Family = familyOf(p.bits.prefix.Addr())
	}
	return count
}

func (p *parsedBitmap) subject(offset int) subject {
	if p.Store == NodePorts {
		return subject{store: NodePorts, port: p.bits.port(offset)}
	}
	return subject{store: p.Store, address: p.bits.address(offset)}
}

func (p *parsedBitmap) bit(s subject) (int, bool) {
	if p.Store == NodePorts {
		return p.bits.portBit(s.port)
	}
	return p.bits.addressBit(s.address)
}

func (p *parsedBitmap) isSet(offset int) bool { return p.number.Bit(offset) == 1 }

// Write returns the bitmap's data after the steps, in upstream's encoding. It does not modify the
// bitmap. It fails if a step is for another store or range.
func (b Bitmap) Write(steps []Step) ([]byte, error) {
	p := parseBitmap(b, "")
	if !p.comparable() {
		return nil, fmt.Errorf("write %s: %s", b.Store, p.fault.message)
	}
	for _, s := range steps {
		if s.Store != b.Store || s.Range != b.Range || s.Offset < 0 || s.Offset >= p.bits.size {
			return nil, fmt.Errorf("write %s with range %s: step %s %s of %s with range %q is for another range",
				b.Store, b.Range, s.Verb, s.Subject, s.Store, wording.Clip(s.Range, maxValue))
		}
		switch s.Verb {
		case planned.SetBit:
			p.number.SetBit(p.number, s.Offset, 1)
		case planned.ClearBit:
			p.number.SetBit(p.number, s.Offset, 0)
		default:
			return nil, fmt.Errorf("write %s: %s is not a step of a bitmap", b.Store, s.Verb)
		}
	}
	return p.number.Bytes(), nil
}

// bitRange maps bits to ports or addresses.
type bitRange struct {
	// first is the port of bit 0.
	first int32
	// prefix is the range of addresses. Bit 0 is the address after the network's own.
	prefix netip.Prefix
	// size is the number of bits.
	size int
}

var errRange = errors.New("not a range")

func parseRange(store Store, text string) (bitRange, error) {
	if store == NodePorts {
		return parsePortRange(text)
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil || prefix != prefix.Masked() || prefix.Addr().Is4In6() {
		return bitRange{}, fmt.Errorf("%w of addresses: %q", errRange, wording.Clip(text, maxValue))
	}
	return bitRange{prefix: prefix, size: addressBits(prefix)}, nil
}

// parsePortRange accepts the form that kube-apiserver stores. A range may begin with port 0, which
// no Service uses.
func parsePortRange(text string) (bitRange, error) {
	parsed, err := utilnet.ParsePortRange(text)
	if err != nil || parsed.Size == 0 || parsed.String() != text {
		return bitRange{}, fmt.Errorf("%w of ports: %q", errRange, wording.Clip(text, maxValue))
	}
	return bitRange{first: int32(parsed.Base), size: parsed.Size}, nil
}

// PortRange returns the stored text of a range of ports in any form that kube-apiserver's flag
// takes. It is empty for an empty text, which stands for kube-apiserver's default.
func PortRange(text string) (string, error) {
	parsed, err := utilnet.ParsePortRange(text)
	if err != nil {
		return "", fmt.Errorf("%w of ports: %q", errRange, wording.Clip(text, maxValue))
	}
	return parsed.String(), nil
}

// addressBits returns how many addresses a bitmap covers: of an IPv6 range only the first 65,535.
func addressBits(prefix netip.Prefix) int {
	free := prefix.Addr().BitLen() - prefix.Bits()
	if prefix.Addr().Is4() {
		return max(1<<free-2, 0)
	}
	return 1<<min(free, 16) - 1
}

func (r bitRange) port(offset int) int32 { return r.first + int32(offset) }

func (r bitRange) portBit(port int32) (int, bool) {
	offset := int(port) - int(r.first)
	return offset, offset >= 0 && offset < r.size
}

// address returns the address of a bit. A bitmap covers at most the low 32 bits of a masked prefix,
// so the addition cannot overflow the low half.
func (r bitRange) address(offset int) netip.Addr {
	raw := r.prefix.Addr().As16()
	low := raw[8:]
	binary.BigEndian.PutUint64(low, binary.BigEndian.Uint64(low)+uint64(offset)+1)
	address := netip.AddrFrom16(raw)
	if r.prefix.Addr().Is4() {
		return address.Unmap()
	}
	return address
}

func (r bitRange) addressBit(address netip.Addr) (int, bool) {
	first, raw := r.prefix.Addr().As16(), address.As16()
	if !r.prefix.Contains(address) || [8]byte(first[:8]) != [8]byte(raw[:8]) {
		return 0, false
	}
	distance := binary.BigEndian.Uint64(raw[8:]) - binary.BigEndian.Uint64(first[8:])
	if distance == 0 || distance > uint64(r.size) {
		return 0, false
	}
	return int(distance) - 1, true
}

func forEachBit(number *big.Int, visit func(offset int)) {
	for i, word := range number.Bits() {
		for ; word != 0; word &= word - 1 {
			visit(i*bits.UintSize + bits.TrailingZeros(uint(word)))
		}
	}
}

func countBits(number *big.Int) int {
	count := 0
	for _, word := range number.Bits() {
		count += bits.OnesCount(uint(word))
	}
	return count
}
