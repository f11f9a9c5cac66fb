package class

import (
	"fmt"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// WritePolicy says when Lease objects are written.
type WritePolicy string

const (
	// WriteMirror writes every object once per renewal interval, as kubelets do.
	WriteMirror WritePolicy = "mirror"
	// WriteRelaxed writes an object when its age reaches three fifths of its duration.
	WriteRelaxed WritePolicy = "relaxed"
	// WriteOnChange writes an object when its holder expires or returns, and once per refresh
	// interval. Upstream's node-lifecycle controller compares renewTime instead of
	// leaseDurationSeconds, and then marks live nodes as unknown.
	WriteOnChange WritePolicy = "on-change"
)

// Writes configures how the Lease objects of all classes are written.
type Writes struct {
	Policy WritePolicy
	// RefreshInterval is the time between two writes of an unchanged object, with WriteOnChange.
	RefreshInterval time.Duration
}

// DefaultWrites returns WriteRelaxed.
func DefaultWrites() Writes {
	return Writes{Policy: WriteRelaxed, RefreshInterval: 5 * time.Minute}
}

// An object's duration is five thirds of the time between its writes, so that two fifths of it
// remain when a write is due.
const (
	intervalShare = 3
	durationShare = 5
)

const (
	minRefresh = 10 * time.Second
	maxRefresh = 24 * time.Hour
)

// Validate returns every problem of w, each with its flag.
func (w *Writes) Validate() []error {
	var problems []error
	switch w.Policy {
	case WriteMirror, WriteRelaxed, WriteOnChange:
	default:
		problems = append(problems, fmt.Errorf("--write-policy is %q, must be one of %s", string(w.Policy),
			strings.Join([]string{string(WriteMirror), string(WriteRelaxed), string(WriteOnChange)}, ", ")))
	}
	if w.RefreshInterval < minRefresh || w.RefreshInterval > maxRefresh {
		problems = append(problems, fmt.Errorf("--lease-refresh-interval is %v, must be %v to %v", w.RefreshInterval, minRefresh, maxRefresh))
	}
	return problems
}

// For returns the write policy of one class. The duration of an object is never shorter than
// c.LeaseDuration.
func (w *Writes) For(c *Class) writeback.Policy {
	switch w.Policy {
	case WriteOnChange:
		return writeback.Policy{
			Mode: writeback.OnChange, Renew: w.RefreshInterval,
			Duration: max(w.RefreshInterval*durationShare/intervalShare, c.LeaseDuration),
		}
	case WriteRelaxed:
		return writeback.Policy{
			Mode: writeback.Relaxed, Renew: c.LeaseDuration * intervalShare / durationShare, Duration: c.LeaseDuration,
		}
	}
	return writeback.Policy{Mode: writeback.Mirror, Renew: c.RenewInterval, Duration: c.LeaseDuration}
}
