package allocation

import (
	"fmt"
)

// maxAllocatedBits is how many set bits are audited. No cluster has as many Services; a damaged value could claim millions.
const maxAllocatedBits = 1 << 17

// parsedBitmap is a bitmap with what its range text means.
type parsedBitmap struct {
	Bitmap
	bits      bitRange
	allocated int
	fault     fault
}

// fault is why a whole store cannot be judged; it is zero when it can. One without a code is no finding.
type fault struct {
	code    Code
	message string
	// absent: the cluster has no such range, and need not.
	absent bool
}

// absentRange is the fault of a range that a cluster can do without.
func absentRange() fault { return fault{message: "there is no stored range", absent: true} }

func parseBitmap(b Bitmap, expected string) *parsedBitmap {
	g := &parsedBitmap{Bitmap: b}
	g.fault = g.read(expected)
	if g.fault == (fault{}) {
		g.allocated = countBits(g.Data)
	}
	return g
}

func (g *parsedBitmap) read(expected string) fault {
	switch {
	case g.Unverified != "":
		return fault{message: g.Unverified}
	case g.Problem != "":
		return fault{code: Unreadable, message: "the stored value cannot be read: " + g.Problem}
	case g.Missing && g.Store == NodePorts:
		return fault{code: RangeMismatch, message: "there is no stored range, so no port can be allocated; kube-apiserver makes it"}
	case g.Missing && g.Store == SecondaryClusterIPs:
		return absentRange() // as in every cluster of one family
	case g.Missing:
		return fault{code: RangeMismatch, message: "there is no stored range, so no address can be allocated; kube-apiserver makes it"}
	}
	parsed, err := parseRange(g.Store, g.Range)
	if err != nil {
		return fault{code: Unreadable, message: "the stored range cannot be read: " + err.Error()}
	}
	g.bits = parsed
	switch {
	case expected != "" && expected != g.Range:
		return fault{code: RangeMismatch, message: fmt.Sprintf("the stored range is %s, and %s is expected", g.Range, expected)}
	case topBit(g.Data) >= parsed.size:
		return fault{code: Unreadable, message: fmt.Sprintf("bit %d is set, and range %s has %d", topBit(g.Data), g.Range, parsed.size)}
	case countBits(g.Data) > maxAllocatedBits:
		return fault{code: Unreadable, message: fmt.Sprintf("%d bits are set, more than are audited", countBits(g.Data))}
	}
	return fault{}
}

// comparable tells whether single ports or addresses of it can be judged.
func (g *parsedBitmap) comparable() bool { return g != nil && g.fault == (fault{}) }

// subject is what a bit stands for.
func (g *parsedBitmap) subject(offset int) subject {
	if g.Store == NodePorts {
		return subject{store: NodePorts, port: g.bits.port(offset)}
	}
	return subject{store: g.Store, address: g.bits.address(offset)}
}

// bit is the bit of a subject, or false when the range has none for it.
func (g *parsedBitmap) bit(s subject) (int, bool) {
	if g.Store == NodePorts {
		return g.bits.portBit(s.port)
	}
	return g.bits.addressBit(s.address)
}
