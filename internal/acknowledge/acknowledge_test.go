package acknowledge_test

import (
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/acknowledge"
)

// What is left of the kubelet's patience and of the time since its last acknowledged renewal is for
// the write.
func TestBy_LeavesTimeForTheWrite(t *testing.T) {
	begun := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		lease, timeout, sinceAcknowledgement time.Duration // the latter two are 0 for none
		want                                 time.Duration // after the begin
	}{
		"a kubelet's defaults":              {40 * time.Second, 10 * time.Second, 10 * time.Second, 6 * time.Second},
		"the first renewal":                 {40 * time.Second, 10 * time.Second, 0, 6 * time.Second},
		"without a timeout":                 {40 * time.Second, 0, 10 * time.Second, 6 * time.Second},
		"a kubelet that waits for 4 s":      {40 * time.Second, 4 * time.Second, 10 * time.Second, 2400 * time.Millisecond},
		"the last acknowledgement was late": {40 * time.Second, 10 * time.Second, 15400 * time.Millisecond, time.Second},
		"the kubelet was paused":            {40 * time.Second, 10 * time.Second, time.Minute, -43600 * time.Millisecond},
		"a shorter Lease":                   {20 * time.Second, 10 * time.Second, 5 * time.Second, 3 * time.Second},
		"a longer Lease":                    {80 * time.Second, 10 * time.Second, 20 * time.Second, 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			var acknowledged time.Time
			if c.sinceAcknowledgement > 0 {
				acknowledged = begun.Add(-c.sinceAcknowledgement)
			}
			if got := acknowledge.By(begun, acknowledged, c.lease, c.timeout).Sub(begun); got != c.want {
				t.Errorf("%v after the begin, want %v", got, c.want)
			}
		})
	}
}
