package engine

import (
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// Sizes are sums over the managed Services of some shards, families and ports
// counted apart: an endpoint of a dual-stack Service is two.
type Sizes struct {
	// Endpoints are what the slices hold, Slices how many there are, and Ideal how
	// few would do.
	Endpoints, Slices, Ideal int
	// Topologies counts Services that want hints, by how they say so.
	Topologies map[string]int
}

// Sizes adds up what the cache shows of the shards that are held here. It costs as
// much as they have slices, and holds nobody up meanwhile.
func (e *Engine) Sizes() Sizes {
	sizes := Sizes{Topologies: map[string]int{}}
	for _, h := range e.ledger.holdings() {
		for _, key := range e.cache.shardKeys(h.shard) {
			service, slices, ok := e.cache.slices(key)
			if !ok || index.Management(service) != index.Managed {
				continue
			}
			sizes.Slices += len(slices)
			sizes.Ideal += pack.MinSlices(slices, len(service.Spec.IPFamilies), e.cfg.Limit)
			for _, slice := range slices {
				sizes.Endpoints += len(slice.Endpoints)
			}
			if text := hints.Text(service); text != "" {
				sizes.Topologies[text]++
			}
		}
	}
	return sizes
}
