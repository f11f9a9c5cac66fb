package leasesvc

import (
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/keeper"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// handle is what a stream knows of a holder. There may be a million of them, so it is 48 bytes.
type handle struct {
	ref session.Ref
	// name and boot are the session's own, for the day on which its shard leaves.
	name, boot string
	class      session.ClassID
	dead       bool
	shard      uint16
	grant      uint16 // in the stream's grants
}

func (h *handle) holder() session.Holder {
	return session.Holder{Key: session.Key{Class: h.class, Name: h.name}, Boot: h.boot}
}

// grants are what the beats of a stream's holders get, each kind once: there are as many as classes and terms together. A
// session never changes its term, so neither does what a handle gets.
type grants []grant

type grant struct {
	keeper.Grant
	wire *leasev1.Grant
}

// place is where a grant is, put there if it is new.
func (g *grants) place(wanted keeper.Grant) uint16 {
	for i := range *g {
		if (*g)[i].Grant == wanted {
			return uint16(i)
		}
	}
	*g = append(*g, grant{Grant: wanted, wire: grantOf(wanted)})
	return uint16(len(*g) - 1)
}
