package allocation

import (
	"fmt"
)

// mostBits is how many set bits are audited. No cluster has as many Services; a damaged value could claim millions.
const mostBits = 1 << 17

// grid is a bitmap with what its range text means.
type grid struct {
	Bitmap
	span  span
	set   int
	fault fault
}

// fault is why a whole store cannot be judged; it is zero when it can. One without a code is no finding.
type fault struct {
	code    Code
	message string
	// absent: the cluster has no such range, and need not.
	absent bool
}

// notThere is the fault of a range that a cluster can do without.
func notThere() fault { return fault{message: "there is no stored range", absent: true} }

func newGrid(b Bitmap, expected string) *grid {
	g := &grid{Bitmap: b}
	g.fault = g.read(expected)
	if g.fault == (fault{}) {
		g.set = countBits(g.Data)
	}
	return g
}

func (g *grid) read(expected string) fault {
	switch {
	case g.Doubt != "":
		return fault{message: g.Doubt}
	case g.Problem != "":
		return fault{code: Unreadable, message: "the stored value cannot be read: " + g.Problem}
	case g.Missing && g.Store == NodePorts:
		return fault{code: RangeMismatch, message: "there is no stored range, so no port can be allocated; kube-apiserver makes it"}
	case g.Missing && g.Store == SecondaryClusterIPs:
		return notThere() // as in every cluster of one family
	case g.Missing:
		return fault{code: RangeMismatch, message: "there is no stored range, so no address can be allocated; kube-apiserver makes it"}
	}
	parsed, err := parseSpan(g.Store, g.Range)
	if err != nil {
		return fault{code: Unreadable, message: "the stored range cannot be read: " + err.Error()}
	}
	g.span = parsed
	switch {
	case expected != "" && expected != g.Range:
		return fault{code: RangeMismatch, message: fmt.Sprintf("the stored range is %s, and %s is expected", g.Range, expected)}
	case topBit(g.Data) >= parsed.size:
		return fault{code: Unreadable, message: fmt.Sprintf("bit %d is set, and range %s has %d", topBit(g.Data), g.Range, parsed.size)}
	case countBits(g.Data) > mostBits:
		return fault{code: Unreadable, message: fmt.Sprintf("%d bits are set, more than are audited", countBits(g.Data))}
	}
	return fault{}
}

// judged tells whether single ports or addresses of it can be judged.
func (g *grid) judged() bool { return g != nil && g.fault == (fault{}) }

// subject is what a bit stands for.
func (g *grid) subject(offset int) subject {
	if g.Store == NodePorts {
		return subject{store: NodePorts, port: g.span.port(offset)}
	}
	return subject{store: g.Store, address: g.span.address(offset)}
}

// bit is the bit of a subject, or false when the range has none for it.
func (g *grid) bit(s subject) (int, bool) {
	if g.Store == NodePorts {
		return g.span.portBit(s.port)
	}
	return g.span.addressBit(s.address)
}
