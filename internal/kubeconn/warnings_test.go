package kubeconn

import (
	"fmt"
	"testing"
)

func TestWarnings_EachTextIsNewOnce(t *testing.T) {
	t.Parallel()
	w := newWarnings()
	if !w.isNew("v1 Endpoints is deprecated") || w.isNew("v1 Endpoints is deprecated") {
		t.Error("a text is not new exactly once")
	}
	for i := range 10 * warningsLimit {
		if !w.isNew(fmt.Sprintf("pod %d is odd", i)) {
			t.Fatalf("text %d was seen before", i)
		}
	}
	if len(w.seen) > warningsLimit {
		t.Errorf("%d texts are remembered, want at most %d", len(w.seen), warningsLimit)
	}
}
