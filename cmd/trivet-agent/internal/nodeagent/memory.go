package nodeagent

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// gcPercent trades processor time, of which the agent uses almost none, for memory, which each
	// node has to give. GOGC overrides it.
	gcPercent = 40
	// memoryLimit is soft: nearer to it, the runtime collects more often, for example during a
	// burst of reads. The pages of the program's file do not count. GOMEMLIMIT overrides it.
	memoryLimit = 16 << 20

	// trimPeriod is the time between two looks at the memory. Each costs microseconds.
	trimPeriod = 30 * time.Second
	// trimGrowth is the growth since the last trim that is worth a further one, which costs
	// milliseconds.
	trimGrowth = 1 << 20
)

// limitMemory sets the limits of the runtime that the environment does not set.
func limitMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}

// trimMemory returns the memory of a burst to the system, until ctx ends. The runtime alone does so
// minutes later, because an idle program allocates too little to start a collection.
func trimMemory(ctx context.Context) error {
	tick := time.NewTicker(trimPeriod)
	defer tick.Stop()
	for trimmed := uint64(0); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if held := heldMemory(); held < trimmed+trimGrowth {
			trimmed = min(trimmed, held)
			continue
		}
		debug.FreeOSMemory()
		trimmed = heldMemory()
	}
}

// heldMemory returns the memory that the runtime holds: in use, or free and not yet returned.
func heldMemory() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}
