package observe

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/httpaccess"
)

// Checks is a set of named health checks. It is safe for concurrent use. A nil *Checks holds no
// check and fails none.
type Checks struct {
	mu     sync.Mutex // guards checks; not held while a check runs
	checks []check    // ordered by name
}

type check struct {
	name string
	run  func() error
	// detail is nil for a check that has none.
	detail func() string
}

// verdict is the result of one check; err is nil if it passes.
type verdict struct {
	name string
	err  error
	// detail is shown if the check passes.
	detail string
}

// NewChecks returns an empty set.
func NewChecks() *Checks { return &Checks{} }

// Add adds a check, which returns nil or the reason of its failure. It is called often and
// concurrently, so it must only read memory. Several checks may have the same name.
func (c *Checks) Add(name string, run func() error) { c.AddWithDetail(name, run, nil) }

// AddWithDetail is Add for a check that shows a line of detail when it passes. detail too must only
// read memory.
func (c *Checks) AddWithDetail(name string, run func() error, detail func() string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Copy the slice: readers iterate over the old one without the lock.
	c.checks = append(slices.Clone(c.checks), check{name: name, run: run, detail: detail})
	slices.SortStableFunc(c.checks, func(a, b check) int { return cmp.Compare(a.name, b.name) })
}

// Failed runs every check and returns the failures, ordered by name, each as "name: cause" wrapping
// the cause.
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
		result := verdict{name: check.name, err: check.run()}
		if result.err == nil && check.detail != nil {
			result.detail = check.detail()
		}
		verdicts = append(verdicts, result)
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

// Probe serves checks under a name such as "readyz", in the format of kube-apiserver's probes: 200
// and "ok", with ?verbose one line for each check; after a failure, 500 and all lines.
//
// Every caller gets an answer. As in kube-apiserver's probes, the lines have the names of the
// checks only. A caller that may get the path "/readyz" gets their reasons and details.
func Probe(name string, checks *Checks, access *httpaccess.Access) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		verdicts := checks.verdicts()
		if !mayGet(access, r, "/"+name) {
			withhold(verdicts)
			// A connection without an identity ends soon, and the next probe must not meet its end.
			w.Header().Set("Connection", "close")
		}
		text, ok := probeText(name, verdicts, r.URL.Query().Has("verbose"))
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		if !ok {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = w.Write([]byte(text)) // the prober may have disconnected
	}
}

// mayGet reports whether the caller of a request may get a path. Probes come often and mostly
// without credentials, for which nothing is reviewed.
func mayGet(access *httpaccess.Access, r *http.Request, path string) bool {
	if access.Insecure() {
		return true
	}
	known, err := access.Identify(r)
	if err != nil || authn.FromContext(known.Context()).Anonymous() {
		return false
	}
	return access.MayGet(known, path) == nil
}

var errWithheld = errors.New("reason withheld")

func withhold(verdicts []verdict) {
	for i := range verdicts {
		verdicts[i].detail = ""
		if verdicts[i].err != nil {
			verdicts[i].err = errWithheld
		}
	}
}

// probeText returns the response body, and whether all checks pass.
func probeText(name string, verdicts []verdict, verbose bool) (string, bool) {
	var b strings.Builder
	ok := true
	for _, v := range verdicts {
		switch {
		case v.err == nil && v.detail == "":
			fmt.Fprintf(&b, "[+]%s ok\n", v.name)
			continue
		case v.err == nil:
			fmt.Fprintf(&b, "[+]%s ok: %s\n", v.name, oneLine(v.detail))
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

// oneLine removes line breaks, so that a reason does not look like several checks.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
