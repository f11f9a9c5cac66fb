package up

import (
	"fmt"
	"io"
	"time"
)

// progress tells a person what is being done and how long each step took. It is used by one goroutine.
type progress struct {
	out   io.Writer
	began time.Time
}

func newProgress(out io.Writer) *progress {
	return &progress{out: out, began: time.Now()}
}

// step runs do and prints one line about it when it ends.
func (p *progress) step(name string, do func() (detail string, err error)) error {
	began := time.Now()
	detail, err := do()
	if err != nil {
		fmt.Fprintf(p.out, "✗ %-14s %v\n", name, err)
		return fmt.Errorf("%s: %w", name, err)
	}
	fmt.Fprintf(p.out, "✓ %-14s %-58s %5.1fs\n", name, detail, time.Since(began).Seconds())
	return nil
}

func (p *progress) line(format string, args ...any) {
	fmt.Fprintf(p.out, format+"\n", args...)
}

func (p *progress) elapsed() time.Duration { return time.Since(p.began) }
