package term_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/trivet-dev/trivet/internal/testkit"
)

// The others may hand shards over before the newcomer has read anything. It must know them for handed over all the same, and
// not treat them with the caution that a vanished holder deserves.
func TestJoin_ShardsHandedOverStartWithoutPause(t *testing.T) {
	const n = 16
	h := newHistory()
	join(t, etcd(t), "a", h.body("a"), shards(n))
	allHeld(t, h, n)
	for round := range 5 {
		var log testLog
		id := fmt.Sprintf("b-%d", round)
		p := join(t, etcd(t), id, h.body(id), shards(n), logTo(&log))
		testkit.Eventually(t, patience, func() error {
			if h.shares()[id] == 0 {
				return fmt.Errorf("%s acts for nothing", id)
			}
			return nil
		})
		allHeld(t, h, n)
		if err := p.leave(); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "shard claimed") && !strings.Contains(line, "pause=0s") {
				t.Errorf("%s waited although the shard was handed over: %s", id, line)
			}
		}
		allHeld(t, h, n)
	}
	noViolations(t, h)
}
