package cluster

import (
	"time"

	"github.com/trivet-dev/trivet/test/cluster/internal/recording"
)

// rules are how far two runs may differ by chance, and which differences are intended.
func rules() recording.Rules {
	return recording.Rules{
		Tolerance:  recording.Tolerance{Ratio: 1.5, Absolute: 3 * time.Second},
		Allowances: []recording.Allowance{},
	}
}
