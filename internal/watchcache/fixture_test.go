package watchcache

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"

	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	added    = metav1.EventType_EVENT_TYPE_ADDED
	modified = metav1.EventType_EVENT_TYPE_MODIFIED
	deleted  = metav1.EventType_EVENT_TYPE_DELETED
	bookmark = metav1.EventType_EVENT_TYPE_BOOKMARK
)

// thing is an object of tests. The age is what readers do not see.
type thing struct {
	name    string
	version int
	age     int
}

func newCache(deletions int) *Cache[*thing] {
	return New(Config[*thing]{
		Name:      func(x *thing) string { return x.name },
		Same:      func(a, b *thing) bool { return a.version == b.version },
		Deletions: deletions,
	})
}

func th(name string, version int) *thing { return &thing{name: name, version: version} }

// even is a filter.
func even(x *thing) bool { return x.version%2 == 0 }

// text is an event in one word, such as "ADDED a1" or "BOOKMARK initial".
func text(e Event[*thing]) string {
	name := e.Type.String()[len("EVENT_TYPE_"):]
	switch {
	case e.Type != bookmark:
		return fmt.Sprintf("%s %s%d", name, e.Item.name, e.Item.version)
	case e.Bookmark.GetInitialEventsEnd():
		return name + " initial"
	default:
		return name
	}
}
