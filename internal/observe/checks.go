package observe

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Checks is a set of named health checks. It is safe for concurrent use. A
// nil *Checks holds no check and fails none.
type Checks struct {
	mu     sync.Mutex // guards checks; not held while a check runs
	checks []check    // ordered by name
}

type check struct {
	name string
	run  func() error
}

// verdict is what one check says now; err is nil when it passes.
type verdict struct {
	name string
	err  error
}

// NewChecks returns an empty set.
func NewChecks() *Checks { return &Checks{} }

// Add adds a check, which returns nil when all is well and else the reason.
// It is called often and from several goroutines at once, so it must answer
// from memory. Checks of the same name are kept side by side.
func (c *Checks) Add(name string, run func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A new slice each time: readers go through the old one without the lock.
	c.checks = append(slices.Clone(c.checks), check{name: name, run: run})
	slices.SortStableFunc(c.checks, func(a, b check) int { return cmp.Compare(a.name, b.name) })
}

// Failed runs every check and returns those that fail, ordered by name, each
// as "name: cause" wrapping the cause.
func (c *Checks) Failed() []error {
	var failed []error
	for _, v := range c.verdicts() {
		if v.err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", v.name, v.err))
		}
	}
	return failed
}

// verdicts runs every check, ordered by name.
func (c *Checks) verdicts() []verdict {
	checks := c.snapshot()
	verdicts := make([]verdict, 0, len(checks))
	for _, check := range checks {
		verdicts = append(verdicts, verdict{name: check.name, err: check.run()})
	}
	return verdicts
}

func (c *Checks) snapshot() []check {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.checks
}

// probe serves checks under a name such as "readyz", in the form that
// kube-apiserver's probes have: 200 and "ok", with ?verbose one line for each
// check; when a check fails, 500 and always the lines. Unlike there, the
// reason of a failure is told.
func probe(name string, checks *Checks) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text, ok := probeText(name, checks.verdicts(), r.URL.Query().Has("verbose"))
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		if !ok {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = w.Write([]byte(text)) // a prober that hung up needs no answer
	}
}

// probeText is the body for verdicts, and whether all of them pass.
func probeText(name string, verdicts []verdict, verbose bool) (string, bool) {
	var b strings.Builder
	ok := true
	for _, v := range verdicts {
		if v.err == nil {
			fmt.Fprintf(&b, "[+]%s ok\n", v.name)
			continue
		}
		ok = false
		fmt.Fprintf(&b, "[-]%s failed: %s\n", v.name, oneLine(v.err.Error()))
	}
	switch {
	case !ok:
		fmt.Fprintf(&b, "%s check failed\n", name)
	case verbose:
		fmt.Fprintf(&b, "%s check passed\n", name)
	default:
		return "ok", true
	}
	return b.String(), ok
}

// oneLine keeps a reason from looking like several checks.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
