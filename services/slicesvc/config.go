package slicesvc

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// UpstreamManagedBy is the managed-by label of the slices that
// kube-controller-manager keeps. The kube-apiserver knows it, too: it spares
// such slices a warning for each address.
const UpstreamManagedBy = "endpointslice-controller.k8s.io"

const (
	// maxEndpointsPerSlice is what the API allows in one slice.
	maxEndpointsPerSlice = 1000
	maxServiceSyncs      = 50
	// maxShards is what a candidate for terms takes.
	maxShards = 4096
	// maxBatchPeriod is more than anybody wants, and far from being mistaken for an outage.
	maxBatchPeriod = time.Minute
)

// Config is what slicesvc can be told.
type Config struct {
	// Shards is into how many shards Services are divided among the replicas, 1 to
	// 4096. Replicas that say different numbers do not work side by side.
	Shards int
	// MaxEndpointsPerSlice is how many endpoints are put into one slice, 1 to 1000.
	MaxEndpointsPerSlice int
	// ConcurrentServiceSyncs is how many Services a replica works on at the same
	// time, over all its shards, 1 to 50.
	ConcurrentServiceSyncs int
	// UpdatesBatchPeriod is how long changes of a Service's pods wait for others from
	// the first of them on, up to a minute; 0 for as long as the load demands.
	UpdatesBatchPeriod time.Duration
	// ManagedBy is the value of the managed-by label of the slices that are ours.
	ManagedBy string
	// CleanUpSelectorless deletes the slices of a Service that has lost its selector
	// or has become ExternalName.
	CleanUpSelectorless bool
}

// DefaultConfig returns upstream's defaults, and 64 shards.
func DefaultConfig() Config {
	return Config{
		Shards:                 64,
		MaxEndpointsPerSlice:   100,
		ConcurrentServiceSyncs: 5,
		ManagedBy:              UpstreamManagedBy,
	}
}

// RegisterFlags adds slicesvc's own flags, with c's values as defaults.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.IntVar(&c.Shards, "shards", c.Shards,
		"Into how many shards Services are divided among the replicas, 1 to 4096. Where replicas differ, those that agree with the oldest work and the others wait until these are gone.")
	fs.IntVar(&c.MaxEndpointsPerSlice, "max-endpoints-per-slice", c.MaxEndpointsPerSlice,
		"How many endpoints are put into one EndpointSlice, 1 to 1000. Lowering it rewrites the slices that are fuller.")
	fs.IntVar(&c.ConcurrentServiceSyncs, "concurrent-service-syncs", c.ConcurrentServiceSyncs,
		"How many Services this replica works on at the same time, over all its shards, 1 to 50.")
	fs.DurationVar(&c.UpdatesBatchPeriod, "endpointslice-updates-batch-period", c.UpdatesBatchPeriod,
		"How long changes of a Service's pods wait for others from the first of them on, up to 1m. 0: not at all when little happens, else up to 1s as the load demands.")
	fs.BoolVar(&c.CleanUpSelectorless, "cleanup-selectorless", c.CleanUpSelectorless,
		"Delete the EndpointSlices of a Service that has lost its selector or has become ExternalName. Otherwise they stay as they are, as kube-controller-manager leaves them.")
	fs.StringVar(&c.ManagedBy, "managed-by", c.ManagedBy,
		"Value of the endpointslice.kubernetes.io/managed-by label of the EndpointSlices that are kept. With the default, slices of kube-controller-manager are adopted, "+
			"whose own loop must then be off (--controllers=*,-endpointslice-controller).")
}

// Validate returns every problem of the configuration, each naming its flag.
func (c *Config) Validate() []error {
	var problems []error
	if c.Shards < 1 || c.Shards > maxShards {
		problems = append(problems, fmt.Errorf("--shards is %d, must be 1 to %d", c.Shards, maxShards))
	}
	if c.MaxEndpointsPerSlice < 1 || c.MaxEndpointsPerSlice > maxEndpointsPerSlice {
		problems = append(problems, fmt.Errorf("--max-endpoints-per-slice is %d, must be 1 to %d", c.MaxEndpointsPerSlice, maxEndpointsPerSlice))
	}
	if c.ConcurrentServiceSyncs < 1 || c.ConcurrentServiceSyncs > maxServiceSyncs {
		problems = append(problems, fmt.Errorf("--concurrent-service-syncs is %d, must be 1 to %d", c.ConcurrentServiceSyncs, maxServiceSyncs))
	}
	if c.UpdatesBatchPeriod < 0 || c.UpdatesBatchPeriod > maxBatchPeriod {
		problems = append(problems, fmt.Errorf("--endpointslice-updates-batch-period is %v, must be 0 to %v", c.UpdatesBatchPeriod, maxBatchPeriod))
	}
	return append(problems, checkManagedBy(c.ManagedBy)...)
}

func checkManagedBy(value string) []error {
	if value == "" {
		return []error{errors.New("--managed-by is empty, must be a label value")}
	}
	if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
		return []error{fmt.Errorf("--managed-by is %q, must be a label value: %s", value, strings.Join(problems, "; "))}
	}
	return nil
}
