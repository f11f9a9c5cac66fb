package class_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

func TestWrites_PolicyKeepsTheLeaseDuration(t *testing.T) {
	node := class.DefaultNode()
	const refresh = 5 * time.Minute
	for name, c := range map[string]struct {
		writes class.Writes
		want   writeback.Policy
	}{
		"mirror": {
			writes: class.Writes{Policy: class.WriteMirror, RefreshInterval: refresh},
			want:   writeback.Policy{Mode: writeback.Mirror, Renew: 10 * time.Second, Duration: 40 * time.Second},
		},
		"relaxed": {
			writes: class.DefaultWrites(),
			want:   writeback.Policy{Mode: writeback.Relaxed, Renew: 24 * time.Second, Duration: 40 * time.Second},
		},
		"on-change": {
			writes: class.Writes{Policy: class.WriteOnChange, RefreshInterval: refresh},
			want:   writeback.Policy{Mode: writeback.OnChange, Renew: refresh, Duration: 500 * time.Second},
		},
		"on-change with a short refresh interval": {
			writes: class.Writes{Policy: class.WriteOnChange, RefreshInterval: 10 * time.Second},
			want:   writeback.Policy{Mode: writeback.OnChange, Renew: 10 * time.Second, Duration: node.LeaseDuration},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, c.writes.For(&node)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
