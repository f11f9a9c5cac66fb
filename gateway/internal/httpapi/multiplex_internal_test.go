package httpapi

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestCombine_AWatchThatPanicsEndsAlone(t *testing.T) {
	for name, c := range map[string]struct {
		panicked any
		logged   string
	}{
		"defect": {panicked: "index out of range", logged: "index out of range"},
		"abort":  {panicked: http.ErrAbortHandler}, // a handler that gives up on its client
	} {
		t.Run(name, func(t *testing.T) {
			panicked := make(chan struct{})
			watches := http.NewServeMux()
			watches.HandleFunc("/v1/bad:watch", func(w http.ResponseWriter, _ *http.Request) {
				defer close(panicked)
				_, _ = io.WriteString(w, "{\"result\":1}\n{\"resu")
				panic(c.panicked)
			})
			watches.HandleFunc("/v1/good:watch", func(w http.ResponseWriter, _ *http.Request) {
				<-panicked
				_, _ = io.WriteString(w, "{\"result\":2}\n")
			})
			var log bytes.Buffer
			answer := httptest.NewRecorder()
			combine(watches, slog.New(slog.NewTextHandler(&log, nil)))(answer, httptest.NewRequest(http.MethodGet, "/v1/watch?watch=/v1/bad:watch&watch=/v1/good:watch", nil))

			lines := map[byte][]string{} // by watch
			for line := range strings.Lines(answer.Body.String()) {
				watch := strings.TrimPrefix(line, `{"watch":`)[0]
				lines[watch] = append(lines[watch], line)
			}
			if bad := lines['0']; len(bad) != 2 || !strings.Contains(bad[0], `"result":1`) || !strings.Contains(bad[1], `"error":`) || !strings.Contains(bad[1], "PANIC") {
				t.Errorf("the watch that panics has the lines %q, want its result and an error", bad)
			}
			if good := lines['1']; len(good) != 2 || !strings.Contains(good[0], `"result":2`) {
				t.Errorf("the other watch has the lines %q, want its result and its end", good)
			}
			if c.logged == "" && log.Len() > 0 || !strings.Contains(log.String(), c.logged) {
				t.Errorf("the log is %q, want one line with %q", log.String(), c.logged)
			}
		})
	}
}
