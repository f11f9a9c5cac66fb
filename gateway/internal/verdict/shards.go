package verdict

import (
	"fmt"
	"strings"
)

// Shards is an ascending list of shard ranges, both ends included.
type Shards [][2]int32

// With appends a shard that comes after all others. It extends the last range if they touch.
func (r Shards) With(shard int32) Shards {
	if n := len(r); n > 0 && r[n-1][1]+1 == shard {
		r[n-1][1] = shard
		return r
	}
	return append(r, [2]int32{shard, shard})
}

// Sentence names the shards, followed by one of the two predicates.
func (r Shards) Sentence(one, many string) string {
	if len(r) == 1 && r[0][0] == r[0][1] {
		return fmt.Sprintf("shard %d %s", r[0][0], one)
	}
	texts := make([]string, len(r))
	for i, shards := range r {
		texts[i] = fmt.Sprintf("%d-%d", shards[0], shards[1])
		if shards[0] == shards[1] {
			texts[i] = fmt.Sprint(shards[0])
		}
	}
	return fmt.Sprintf("shards %s %s", strings.Join(texts, ", "), many)
}
