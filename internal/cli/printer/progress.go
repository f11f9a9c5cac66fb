package printer

import (
	"fmt"
	"io"
	"regexp"
	"sync"
	"time"
)

const (
	// progressPeriod is how often the line of a terminal is refreshed.
	progressPeriod = time.Second
	// repeatPeriod is how often the same line is written where there is no terminal.
	repeatPeriod = 10 * time.Second
)

// Progress says on standard error what a command waits for. On a terminal it is one line, which is
// refreshed in place and cleared at the end. Elsewhere it is a line for each new text, and the same
// line every ten seconds.
//
// Its methods may be called by several goroutines. Nothing else may write to standard error between
// [StartProgress] and [Progress.Stop], except through [Progress.Print].
type Progress struct {
	streams Streams
	quiet   bool
	began   time.Time
	delay   time.Duration
	stop    chan struct{}
	ended   chan struct{}

	mu      sync.Mutex // guards the fields below
	text    string     // what the command waits for; empty for nothing
	count   int        // how many items it has so far
	shown   string     // the text of the last written line
	shownAt time.Time
	onLine  bool // the line of the terminal has a text
	stopped bool
}

// StartProgress starts a progress without a text. It shows nothing during the delay, so that what
// is fast leaves no trace; quiet, or no standard error, shows nothing at all. The caller must call
// [Progress.Stop].
func StartProgress(streams Streams, quiet bool, delay time.Duration) *Progress {
	p := &Progress{streams: streams, quiet: quiet || streams.Err == nil, began: time.Now(), delay: delay, stop: make(chan struct{}), ended: make(chan struct{})}
	go p.run()
	return p
}

func (p *Progress) run() {
	defer close(p.ended)
	ticker := time.NewTicker(progressPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-ticker.C:
			p.mu.Lock()
			p.show(false)
			p.mu.Unlock()
		}
	}
}

// ages are the parts of a text that change with time alone.
var ages = regexp.MustCompile(`\d+[smhd]\w* ago`)

// Set replaces the text, and writes a new one at once. An age alone makes no text a new one.
func (p *Progress) Set(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text, p.count = Sanitize(text), 0
	p.show(ages.ReplaceAllString(p.text, "") != ages.ReplaceAllString(p.shown, ""))
}

// Update replaces the text, which changes so often that the next line may wait.
func (p *Progress) Update(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = Sanitize(text)
	if p.streams.ErrIsTerminal {
		p.show(true)
	}
}

// Count sets how many items the command has so far; the next line has the number.
func (p *Progress) Count(items int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count = items
}

// Print writes a line to w that stays, above the line of the progress.
func (p *Progress) Print(w io.Writer, line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprintln(w, line)
}

// Stop clears the line of a terminal. Nothing is written afterwards. It may be called again.
func (p *Progress) Stop() {
	p.mu.Lock()
	if !p.stopped {
		p.stopped = true
		close(p.stop)
	}
	p.clear()
	p.mu.Unlock()
	<-p.ended
}

// show writes the text if it is due. A terminal shows it in any case.
func (p *Progress) show(isDue bool) {
	elapsed := time.Since(p.began)
	if p.quiet || p.stopped || p.text == "" || elapsed < p.delay {
		return
	}
	line, times := p.text, ""
	if p.count > 0 {
		line += fmt.Sprintf(": %d so far", p.count)
	}
	if elapsed >= time.Second && (p.streams.ErrIsTerminal || p.text == p.shown) { // a repeated line differs
		times = " (" + Age(elapsed) + ")"
	}
	if p.streams.ErrIsTerminal {
		if width := p.streams.errWidth(); width > 0 {
			line = shorten(line, max(width-len(times), minText))
		}
		fmt.Fprint(p.streams.Err, "\r"+fitWidth(line+times, p.streams.errWidth())+"\x1b[K")
		p.onLine = true
		return
	}
	if !isDue && p.shown != "" && time.Since(p.shownAt) < repeatPeriod {
		return
	}
	p.shown, p.shownAt = p.text, time.Now()
	fmt.Fprintln(p.streams.Err, line+times)
}

func (p *Progress) clear() {
	if p.onLine {
		fmt.Fprint(p.streams.Err, "\r\x1b[K")
	}
	p.onLine = false
}
