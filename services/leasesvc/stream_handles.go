package leasesvc

import (
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// handle is what a stream knows of a holder. There may be a million of them, so it is 32 bytes.
type handle struct {
	ref session.Ref
	// name is the session's own string. It and boot, in the stream's boots, are for the day on which the shard leaves.
	name  string
	boot  uint16
	shard uint16
	grant uint16 // in the stream's grants
	class session.ClassID
	dead  bool
}

func (c *connection) holder(h *handle) session.Holder {
	return session.Holder{Key: session.Key{Class: h.class, Name: h.name}, Boot: c.boots[h.boot]}
}

// makeRoom takes room for n handles more: a message brings as many as it does, and most streams get no other. The sixteenth keeps
// those cheap that get their holders one by one.
func (c *connection) makeRoom(n int) {
	if have := len(c.handles); have+n > cap(c.handles) {
		c.handles = append(make([]handle, 0, have+max(n, have/16)), c.handles...)
	}
}

// bootAt is where a boot id is. Holders of one stream mostly share theirs, so only the last is looked at; there are no more of
// them than handles.
func (c *connection) bootAt(boot string) uint16 {
	if n := len(c.boots); n == 0 || c.boots[n-1] != boot {
		c.boots = append(c.boots, boot)
	}
	return uint16(len(c.boots) - 1)
}

// grants are what the beats of a stream's holders get, each kind once: there are as many as classes and terms together. A
// session never changes its term, so neither does what a handle gets.
type grants []grant

type grant struct {
	sessioncontroller.Grant
	wire *leasev1.Grant
}

// place is where a grant is, put there if it is new.
func (g *grants) place(wanted sessioncontroller.Grant) uint16 {
	for i := range *g {
		if (*g)[i].Grant == wanted {
			return uint16(i)
		}
	}
	*g = append(*g, grant{Grant: wanted, wire: grantOf(wanted)})
	return uint16(len(*g) - 1)
}
