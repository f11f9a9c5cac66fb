package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// meter reads what `go build -v` prints, a line for every package as its compilation begins, and
// tells how far it is. Safe for concurrent use.
type meter struct {
	name  string
	total int // packages at most, since cached ones are not printed; 0: downloading
	begin time.Time

	mu    sync.Mutex // guards the rest
	line  bytes.Buffer
	lines []string // the last few
	count int
}

const linesKept = 20

func newMeter(name string, total int) *meter {
	return &meter{name: name, total: total, begin: time.Now()}
}

func (m *meter) Write(output []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range output {
		if b != '\n' {
			m.line.WriteByte(b)
			continue
		}
		m.count++
		m.lines = append(m.lines, m.line.String())
		if len(m.lines) > linesKept {
			m.lines = m.lines[1:]
		}
		m.line.Reset()
	}
	return len(output), nil
}

// report writes a line of progress to w every now and then, until stop is called, which returns
// when no more will be written.
func (m *meter) report(w io.Writer, every time.Duration) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprintln(w, m)
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

// String is the progress so far.
func (m *meter) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := ""
	if len(m.lines) > 0 {
		now = ", now at " + strings.TrimPrefix(m.lines[len(m.lines)-1], "go: ")
	}
	if m.total == 0 {
		return fmt.Sprintf("  %s: %v, %d modules downloaded%s", m.name, elapsed(m.begin), m.count, now)
	}
	return fmt.Sprintf("  %s: %v, %d of at most %d packages compiled%s", m.name, elapsed(m.begin), m.count, m.total, now)
}

// lastWords are the last lines and what follows the last newline.
func (m *meter) lastWords() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.TrimSpace(strings.Join(append(m.lines, m.line.String()), "\n"))
}
