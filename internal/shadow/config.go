package shadow

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/trivet-dev/trivet/internal/loop"
)

const (
	// DefaultSettle is far above the time that upstream's controllers and their retries need on a
	// cluster without failures.
	DefaultSettle = 30 * time.Second
	minSettle     = time.Second
	maxSettle     = time.Hour
)

// Config selects the loops that run in dry run. Start from DefaultConfig.
type Config struct {
	// Loops are the names of the loops in dry run.
	Loops []string
	// Settle is how long a difference stays the same before it counts, 1 s to 1 h.
	Settle time.Duration

	capable []string
}

// DefaultConfig returns a Config without a loop in dry run. capable are the loops that can be.
func DefaultConfig(capable ...string) Config {
	return Config{Settle: DefaultSettle, capable: slices.Sorted(slices.Values(capable))}
}

// RegisterFlags adds the flags, unless no loop can be in dry run.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	if len(c.capable) == 0 {
		return
	}
	fs.StringSliceVar(&c.Loops, "dry-run", c.Loops,
		"loops that plan, compare with what upstream does, and write nothing until `trivet migrate` switches them on: "+strings.Join(c.capable, ", ")+
			"; such a loop needs no --loops. A switch is kept over restarts, until the loop is removed from this flag. All replicas of the service need the same value: one that differs from the oldest replica waits until that is gone")
	fs.DurationVar(&c.Settle, "dry-run-settle", c.Settle,
		"how long a difference that a dry run finds stays the same before it counts, 1s to 1h")
}

// Validate returns every problem. loops is --loops.
func (c *Config) Validate(loops []string) []error {
	if len(c.Loops) == 0 && len(c.capable) == 0 {
		return nil
	}
	var problems []error
	if _, err := loop.ParseDryRun(c.capable, c.Loops, loops); err != nil {
		problems = append(problems, err)
	}
	if c.Settle < minSettle || c.Settle > maxSettle {
		problems = append(problems, fmt.Errorf("--dry-run-settle: %w, got %v", errors.New("must be 1s to 1h"), c.Settle))
	}
	return problems
}

// Selects returns whether a loop is in dry run.
func (c *Config) Selects(name string) bool { return slices.Contains(c.Loops, name) }

// String returns the loops in dry run, ordered, each once, separated by commas.
func (c *Config) String() string {
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(c.Loops))), ",")
}
