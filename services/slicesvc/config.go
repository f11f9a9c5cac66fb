package slicesvc

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
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

	mirroringSyncsFlag = "mirroring-concurrent-service-endpoint-syncs"
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
	// Compaction tells whether endpoints move so that a Service has fewer slices.
	Compaction Compaction
	// Mirroring configures the loop endpointslice-mirroring.
	Mirroring Mirroring
}

// Compaction is a value of --compaction.
type Compaction string

const (
	// CompactionOff moves no endpoint, as kube-controller-manager.
	CompactionOff Compaction = "off"
	// CompactionIdle moves endpoints of Services that do not change.
	CompactionIdle Compaction = "idle"
)

// after returns how long a Service must be quiet before it is compacted; 0 for never.
func (c Compaction) after() time.Duration {
	if c == CompactionIdle {
		return compactAfter
	}
	return 0
}

// Mirroring is the configuration of the loop that mirrors Endpoints. Its flags have upstream's
// names, except for the last.
type Mirroring struct {
	// ConcurrentSyncs is how many Endpoints objects a replica syncs at the same time, 1 to 50.
	ConcurrentSyncs int
	// MaxEndpointsPerSubset is how many addresses of a subset are mirrored, and how many endpoints
	// a slice has, 1 to 1000.
	MaxEndpointsPerSubset int
	// UpdatesBatchPeriod is how long the answer to a change of a mirrored slice by another writer
	// waits, up to a minute.
	UpdatesBatchPeriod time.Duration
	// Spill puts the addresses above MaxEndpointsPerSubset into further slices.
	Spill bool
}

// DefaultConfig returns upstream's defaults, and 64 shards.
func DefaultConfig() Config {
	return Config{
		Shards:                 64,
		MaxEndpointsPerSlice:   100,
		ConcurrentServiceSyncs: 5,
		ManagedBy:              UpstreamManagedBy,
		Compaction:             CompactionOff,
		Mirroring:              Mirroring{ConcurrentSyncs: 5, MaxEndpointsPerSubset: maxEndpointsPerSlice},
	}
}

// RegisterFlags adds slicesvc's own flags, with c's values as defaults.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.IntVar(&c.Shards, "shards", c.Shards,
		"Number of shards into which Services are divided among the replicas, 1 to 4096. If replicas differ, those that agree with the oldest replica work. The others wait until those are gone.")
	fs.IntVar(&c.MaxEndpointsPerSlice, "max-endpoints-per-slice", c.MaxEndpointsPerSlice,
		"Maximum number of endpoints in one EndpointSlice, 1 to 1000. After a lower value, fuller slices keep their endpoints and take no new ones.")
	fs.IntVar(&c.ConcurrentServiceSyncs, syncsFlag, c.ConcurrentServiceSyncs,
		"Number of Services that this replica syncs at the same time, over all its shards, 1 to 50.")
	addFormerName(fs, syncsFlag, formerSyncsFlag)
	fs.DurationVar(&c.UpdatesBatchPeriod, "endpointslice-updates-batch-period", c.UpdatesBatchPeriod,
		"How long the first change of a Service's Pods waits for more changes, up to 1m. With 0 the period follows the load: no wait when there are few changes, else up to 1s.")
	fs.BoolVar(&c.CleanUpSelectorless, "cleanup-selectorless", c.CleanUpSelectorless,
		"Delete the EndpointSlices of a Service that has lost its selector or has become ExternalName. Without this flag they stay, as with kube-controller-manager.")
	fs.StringVar((*string)(&c.Compaction), "compaction", string(c.Compaction),
		"Whether endpoints move so that a Service has fewer EndpointSlices: off, as with kube-controller-manager, or idle, for Services without changes. docs/slices.md names the clients for which idle is safe.")
	fs.StringVar(&c.ManagedBy, "managed-by", c.ManagedBy,
		"Value of the endpointslice.kubernetes.io/managed-by label of the EndpointSlices that slicesvc writes. With the default, slices of kube-controller-manager are adopted; "+
			"its own controller must then be off (--controllers=*,-endpointslice-controller).")
	c.Mirroring.registerFlags(fs)
}

func (m *Mirroring) registerFlags(fs *pflag.FlagSet) {
	fs.IntVar(&m.ConcurrentSyncs, mirroringSyncsFlag, m.ConcurrentSyncs,
		"Number of hand-made Endpoints that this replica mirrors at the same time, over all its shards, 1 to 50. Used by the loop endpointslice-mirroring, as are all flags with this prefix.")
	fs.IntVar(&m.MaxEndpointsPerSubset, "mirroring-max-endpoints-per-subset", m.MaxEndpointsPerSubset,
		"Maximum number of addresses of one subset of hand-made Endpoints that are mirrored, 1 to 1000. The rest is in no EndpointSlice, which an Event says, unless --mirroring-spill is set.")
	fs.DurationVar(&m.UpdatesBatchPeriod, "mirroring-endpointslice-updates-batch-period", m.UpdatesBatchPeriod,
		"How long slicesvc waits before it answers a change that another writer made to a mirrored EndpointSlice, up to 1m. Changes of Endpoints and Services do not wait.")
	fs.BoolVar(&m.Spill, "mirroring-spill", m.Spill,
		"Put the addresses above --mirroring-max-endpoints-per-subset into further EndpointSlices. Without this flag they are in none, as with kube-controller-manager.")
}

func (m *Mirroring) validate() []error {
	var problems []error
	if m.ConcurrentSyncs < 1 || m.ConcurrentSyncs > maxServiceSyncs {
		problems = append(problems, fmt.Errorf("--%s is %d, must be 1 to %d", mirroringSyncsFlag, m.ConcurrentSyncs, maxServiceSyncs))
	}
	if m.MaxEndpointsPerSubset < 1 || m.MaxEndpointsPerSubset > maxEndpointsPerSlice {
		problems = append(problems, fmt.Errorf("--mirroring-max-endpoints-per-subset is %d, must be 1 to %d", m.MaxEndpointsPerSubset, maxEndpointsPerSlice))
	}
	if m.UpdatesBatchPeriod < 0 || m.UpdatesBatchPeriod > maxBatchPeriod {
		problems = append(problems, fmt.Errorf("--mirroring-endpointslice-updates-batch-period is %v, must be 0 to %v", m.UpdatesBatchPeriod, maxBatchPeriod))
	}
	return problems
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
	if c.Compaction != CompactionOff && c.Compaction != CompactionIdle {
		problems = append(problems, fmt.Errorf("--compaction is %q, must be %s or %s", c.Compaction, CompactionOff, CompactionIdle))
	}
	problems = append(problems, c.Mirroring.validate()...)
	return append(problems, checkManagedBy(c.ManagedBy)...)
}

func checkManagedBy(value string) []error {
	if value == "" {
		return []error{errors.New("--managed-by is empty, must be a label value")}
	}
	if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
		return []error{fmt.Errorf("--managed-by is %q, must be a label value: %s", value, strings.Join(problems, "; "))}
	}
	if value == mirror.ManagedBy {
		return []error{fmt.Errorf("--managed-by is %q, which mirrored EndpointSlices have", value)}
	}
	return nil
}
