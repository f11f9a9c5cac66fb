package observe

import (
	"fmt"
	"net/http"
	"strings"
)

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
