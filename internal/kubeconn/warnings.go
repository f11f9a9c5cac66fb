package kubeconn

import (
	"context"
	"sync"

	"k8s.io/client-go/rest"
)

// warningsLimit bounds the texts remembered.
const warningsLimit = 100

// warnings logs each warning of the kube-apiserver once. Writing a deprecated
// kind such as Endpoints brings the same warning with every request.
type warnings struct {
	mu   sync.Mutex // guards seen
	seen map[string]struct{}
}

var _ rest.WarningHandlerWithContext = (*warnings)(nil)

func newWarnings() *warnings { return &warnings{seen: map[string]struct{}{}} }

// HandleWarningHeaderWithContext logs text unless it was logged before.
func (w *warnings) HandleWarningHeaderWithContext(ctx context.Context, code int, agent, text string) {
	if w.isNew(text) {
		rest.WarningLogger{}.HandleWarningHeaderWithContext(ctx, code, agent, text)
	}
}

func (w *warnings) isNew(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.seen[text]; known {
		return false
	}
	if len(w.seen) >= warningsLimit {
		clear(w.seen) // texts that name objects would otherwise pile up
	}
	w.seen[text] = struct{}{}
	return true
}
