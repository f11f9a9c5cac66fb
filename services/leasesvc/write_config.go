package leasesvc

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// WritePolicy says what Lease objects are written for.
type WritePolicy string

const (
	// WriteMirror writes every object once per renewal interval, as kubelets do.
	WriteMirror WritePolicy = "mirror"
	// WriteRelaxed keeps every object whose holder beats younger than three fifths of its duration: enough for any reader.
	WriteRelaxed WritePolicy = "relaxed"
	// WriteOnChange writes when a holder expires or comes back, and refreshes now and then. Whoever goes by the times of
	// Leases, and not by their durations, takes holders for dead: upstream's node-lifecycle controller does.
	WriteOnChange WritePolicy = "on-change"
)

// WriteConfig is how Lease objects are written.
type WriteConfig struct {
	Policy WritePolicy
	// RefreshInterval is the time between two writes of an object about which there is nothing to say, with WriteOnChange.
	RefreshInterval time.Duration
}

func defaultWrites() WriteConfig {
	return WriteConfig{Policy: WriteRelaxed, RefreshInterval: 5 * time.Minute}
}

// An object lives five thirds of the time between its writes, so that two fifths of its life are left when it is due.
const (
	agePart  = 3
	lifePart = 5
)

const (
	minRefresh = 10 * time.Second
	maxRefresh = 24 * time.Hour
)

func (c *WriteConfig) registerFlags(fs *pflag.FlagSet) {
	fs.StringVar((*string)(&c.Policy), "write-policy", string(c.Policy),
		"What Lease objects are written for: mirror (once per --lease-renew-interval, as kubelets do), relaxed (so that none is ever older than three fifths of its duration), on-change (when a holder expires or comes back, and once per --lease-refresh-interval; only where the loop node-health judges nodes, because kube-controller-manager's node-lifecycle controller would take all of them for dead).")
	fs.DurationVar(&c.RefreshInterval, "lease-refresh-interval", c.RefreshInterval,
		"Time between two writes of a Lease object about which there is nothing to say, with --write-policy=on-change. Its duration is five thirds of that.")
}

func (c *WriteConfig) validate() []error {
	var problems []error
	switch c.Policy {
	case WriteMirror, WriteRelaxed, WriteOnChange:
	default:
		problems = append(problems, fmt.Errorf("--write-policy is %q, must be one of %s", string(c.Policy),
			strings.Join([]string{string(WriteMirror), string(WriteRelaxed), string(WriteOnChange)}, ", ")))
	}
	if c.RefreshInterval < minRefresh || c.RefreshInterval > maxRefresh {
		problems = append(problems, fmt.Errorf("--lease-refresh-interval is %v, must be %v to %v", c.RefreshInterval, minRefresh, maxRefresh))
	}
	return problems
}

// warn tells of a policy that takes nodes' lives in the eyes of others, which nobody here can see.
func (c *WriteConfig) warn(logger *slog.Logger, nodesJudgedHere bool) {
	if c.Policy == WriteOnChange && !nodesJudgedHere {
		logger.Warn("Leases are renewed so seldom that kube-controller-manager's node-lifecycle controller takes every node for dead that beats here: "+
			"switch it off and the loop node-health on, or choose another --write-policy",
			"write_policy", c.Policy, "lease_refresh_interval", c.RefreshInterval)
	}
}

// policy is how the objects of a class are written. An object that is refreshed promises no less than the class does.
func (c *WriteConfig) policy(class *Class) writeback.Policy {
	switch c.Policy {
	case WriteOnChange:
		return writeback.Policy{
			Mode: writeback.OnChange, Renew: c.RefreshInterval,
			Duration: max(c.RefreshInterval*lifePart/agePart, class.LeaseDuration),
		}
	case WriteRelaxed:
		return writeback.Policy{
			Mode: writeback.Relaxed, Renew: class.LeaseDuration * agePart / lifePart, Duration: class.LeaseDuration,
		}
	}
	return writeback.Policy{Mode: writeback.Mirror, Renew: class.RenewInterval, Duration: class.LeaseDuration}
}
