package sessioncontroller

import (
	"context"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// Absent returns the tenure of a shard that has been kept here for some time at least and in which the holder has no session
// now; nil when it has one, or the time has not passed. When the shard is not kept, it returns a NotKeptError.
func (k *Controller) CheckAbsent(ctx context.Context, key session.Key, shard int, kept time.Duration) (t *heldshards.Shard, err error) {
	elsewhere := false
	err = k.do(ctx, func() {
		elsewhere = !k.admits(shard)
		_, known := k.table.Get(key)
		if !elsewhere && !known && k.now().Sub(k.heldSince[shard]) >= kept {
			t = k.held[shard]
		}
	})
	if err == nil && elsewhere {
		err = NotHeldError{Shard: shard}
	}
	return t, err
}
