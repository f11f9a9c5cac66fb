package leasesvc

import (
	"math/rand/v2"

	"github.com/trivet-dev/trivet/internal/term"
)

// shards are all shards as this replica sees them at one moment, by number.
type shards []term.Holding

func (s *server) shards() shards { return s.service.leadership.Status().Shards }

// owner is where a shard is held; empty while nobody is known to hold it, and while it has been claimed here and does not
// take holders in yet: whoever asks here is not sent here.
func (s shards) owner(number int) string {
	if s[number].Here {
		return ""
	}
	return s[number].GRPCAddress
}

// someoneElse is another replica that holds shards, a random one, so that those who are sent away spread; empty if there is
// none.
func (s shards) someoneElse() string {
	if len(s) == 0 {
		return ""
	}
	begin := rand.N(len(s))
	for i := range s {
		if address := s.owner((begin + i) % len(s)); address != "" {
			return address
		}
	}
	return ""
}
