package slicesvc

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// UpstreamManagedBy is the managed-by label of the slices that kube-controller-manager writes.
// kube-apiserver knows the value: it skips the warning that it otherwise sends for each address.
const UpstreamManagedBy = "endpointslice-controller.k8s.io"

const (
	// maxEndpointsPerSlice is the limit of the Kubernetes API.
	maxEndpointsPerSlice = 1000
	maxServiceSyncs      = 50
	// maxShards is the limit of package term.
	maxShards      = 4096
	maxBatchPeriod = time.Minute

	// syncsFlag has the name of the flag of kube-controller-manager. formerSyncsFlag is the flag of
	// its controller of Services of type LoadBalancer, which has no part in slices.
	syncsFlag       = "concurrent-service-endpoint-syncs"
	formerSyncsFlag = "concurrent-service-syncs"
)

// Config is the configuration of slicesvc.
type Config struct {
	// Shards is the number of shards into which Services are divided, 1 to 4096. Replicas with
	// different numbers do not work side by side.
	Shards int
	// MaxEndpointsPerSlice is 1 to 1000.
	MaxEndpointsPerSlice int
	// ConcurrentServiceSyncs is how many Services a replica syncs at the same time, over all its
	// shards, 1 to 50.
	ConcurrentServiceSyncs int
	// UpdatesBatchPeriod is how long the first change of a Service's Pods waits for more, up to a
	// minute. 0 adapts the period to the load.
	UpdatesBatchPeriod time.Duration
	// ManagedBy is the value of the managed-by label of the slices that slicesvc writes.
	ManagedBy string
	// WatchSilenceLimit is how long nothing may come from a watch before it is reopened; 0 means
	// 90 s. It has no flag: kube-apiserver sends a bookmark about once a minute, always.
	WatchSilenceLimit time.Duration
	// CleanUpSelectorless deletes the slices of a Service that has lost its selector or has become
	// ExternalName.
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
		"Number of shards into which Services are divided among the replicas, 1 to 4096. If replicas differ, those that agree with the oldest replica work. The others wait until those are gone.")
	fs.IntVar(&c.MaxEndpointsPerSlice, "max-endpoints-per-slice", c.MaxEndpointsPerSlice,
		"Maximum number of endpoints in one EndpointSlice, 1 to 1000. A lower value rewrites the slices that are fuller.")
	fs.IntVar(&c.ConcurrentServiceSyncs, syncsFlag, c.ConcurrentServiceSyncs,
		"Number of Services that this replica syncs at the same time, over all its shards, 1 to 50.")
	addFormerName(fs, syncsFlag, formerSyncsFlag)
	fs.DurationVar(&c.UpdatesBatchPeriod, "endpointslice-updates-batch-period", c.UpdatesBatchPeriod,
		"How long the first change of a Service's Pods waits for more changes, up to 1m. With 0 the period follows the load: no wait when there are few changes, else up to 1s.")
	fs.BoolVar(&c.CleanUpSelectorless, "cleanup-selectorless", c.CleanUpSelectorless,
		"Delete the EndpointSlices of a Service that has lost its selector or has become ExternalName. Without this flag they stay, as with kube-controller-manager.")
	fs.StringVar(&c.ManagedBy, "managed-by", c.ManagedBy,
		"Value of the endpointslice.kubernetes.io/managed-by label of the EndpointSlices that slicesvc writes. With the default, slices of kube-controller-manager are adopted; "+
			"its own controller must then be off (--controllers=*,-endpointslice-controller).")
}

// addFormerName adds a deprecated name of a flag. Its use prints a warning. The order of precedence
// is that of one flag: a value under one name is not replaced by a later one under the other.
func addFormerName(fs *pflag.FlagSet, name, former string) {
	flag := fs.Lookup(name)
	fs.Var(formerName{Value: flag.Value, flag: flag}, former, "Deprecated: the former name of --"+name+", accepted with a warning.")
	if err := fs.MarkDeprecated(former, "use --"+name); err != nil {
		panic(err) // the flag was added just now
	}
}

// formerName is the value of a flag under its former name.
type formerName struct {
	pflag.Value
	flag *pflag.Flag
}

// Set implements pflag.Value.
func (v formerName) Set(value string) error {
	if v.flag.Changed {
		return nil
	}
	if err := v.Value.Set(value); err != nil {
		return err
	}
	v.flag.Changed = true
	return nil
}

// Validate returns every problem of the configuration. Each names its flag.
func (c *Config) Validate() []error {
	var problems []error
	if c.Shards < 1 || c.Shards > maxShards {
		problems = append(problems, fmt.Errorf("--shards is %d, must be 1 to %d", c.Shards, maxShards))
	}
	if c.MaxEndpointsPerSlice < 1 || c.MaxEndpointsPerSlice > maxEndpointsPerSlice {
		problems = append(problems, fmt.Errorf("--max-endpoints-per-slice is %d, must be 1 to %d", c.MaxEndpointsPerSlice, maxEndpointsPerSlice))
	}
	if c.ConcurrentServiceSyncs < 1 || c.ConcurrentServiceSyncs > maxServiceSyncs {
		problems = append(problems, fmt.Errorf("--%s is %d, must be 1 to %d", syncsFlag, c.ConcurrentServiceSyncs, maxServiceSyncs))
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
