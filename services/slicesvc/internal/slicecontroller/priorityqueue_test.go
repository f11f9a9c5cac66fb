package slicecontroller

import (
	"fmt"
	"testing"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// As long as urgent Services come, nobody gets to what was left behind in the
// lower ranks by those that were raised.
func TestLine_DoesNotGrowWithWhatWasRaised(t *testing.T) {
	l := newLine()
	for i := range 100_000 {
		key := keyOf("shop", fmt.Sprint("svc-", i%10))
		l.Push(key)
		l.raise(key, rankOf(index.Urgent))
		l.Touch(key)
		if got := l.Pop(); got != key {
			t.Fatalf("%v comes first, want %v", got, key)
		}
	}
	for rank, keys := range l.keys {
		if len(keys) > 1000 {
			t.Errorf("%d entries are left under rank %d, and no Service waits", len(keys), rank)
		}
	}
	if got := l.Len(); got != 0 {
		t.Errorf("%d Services wait", got)
	}
}

func TestLine_KeepsTheOrderWhenItIsTidied(t *testing.T) {
	l := newLine()
	const services = 300
	for i := range services {
		l.Push(keyOf("shop", fmt.Sprint("svc-", i)))
	}
	raised := keyOf("shop", "raised")
	for range 10 * services {
		l.Push(raised)
		l.raise(raised, asked)
		l.Touch(raised)
		if got := l.Pop(); got != raised {
			t.Fatalf("%v comes first, want %v", got, raised)
		}
	}
	for i := range services {
		if got, want := l.Pop(), keyOf("shop", fmt.Sprint("svc-", i)); got != want {
			t.Fatalf("%v comes, want %v", got, want)
		}
	}
	if got := l.Len(); got != 0 {
		t.Errorf("%d Services wait", got)
	}
}
