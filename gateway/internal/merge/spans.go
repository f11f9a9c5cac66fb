package merge

import (
	"fmt"
	"strings"
)

// spans is an ascending list of shard ranges, both ends included. Ranges rather than numbers, because shard numbers
// come from the wire and a gap below a wrong one may be two thousand million wide.
type spans [][2]int64

// with appends a range that begins after all known ones, joining it to the last where they touch.
func (s spans) with(first, last int64) spans {
	if n := len(s); n > 0 && s[n-1][1]+1 == first {
		s[n-1][1] = last
		return s
	}
	return append(s, [2]int64{first, last})
}

// sentence names the shards and says of them what is one or many.
func (s spans) sentence(one, many string) string {
	if len(s) == 1 && s[0][0] == s[0][1] {
		return fmt.Sprintf("shard %d %s", s[0][0], one)
	}
	ranges := make([]string, len(s))
	for i, span := range s {
		ranges[i] = fmt.Sprintf("%d-%d", span[0], span[1])
		if span[0] == span[1] {
			ranges[i] = fmt.Sprint(span[0])
		}
	}
	return fmt.Sprintf("shards %s %s", strings.Join(ranges, ", "), many)
}
