package slicecontroller

import (
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// sighting is what a watch showed of a slice while a write of it was under way.
type sighting struct {
	version    string
	seen, gone bool
}

// writes notes that a write of a slice begins: what the watch shows of the slice
// until its answer may be of that write or not.
func (h *holding) writes(key Key, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry := h.record(key)
	if entry.writing == nil {
		entry.writing = map[string]*sighting{}
	}
	entry.writing[name] = &sighting{}
}

// wrote notes how a write left a slice. If the watch showed a newer state
// meanwhile, which it returns, somebody else was there since.
func (h *holding) wrote(key Key, verb pack.Verb, stored *discoveryv1.EndpointSlice, now time.Time) (newer sighting) {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry := h.record(key)
	saw := entry.writing[stored.Name]
	delete(entry.writing, stored.Name)
	delete(entry.unsure, stored.Name)
	if verb == pack.Delete {
		delete(entry.written, stored.Name)
		return sighting{} // whatever was shown of it, it is gone
	}
	if entry.written == nil {
		entry.written = map[string]time.Time{}
	}
	entry.written[stored.Name] = now
	if saw == nil || !saw.seen || (!saw.gone && index.CompareVersions(saw.version, stored.ResourceVersion) <= 0) {
		return sighting{}
	}
	entry.due.add(key.Namespace, cause{trigger: BySlice}, now)
	return *saw
}

// failed notes that a write of a slice ended without an answer to go by. What the
// watch showed of the slice meanwhile was left to that answer, and is to be read.
// unsure says that the write may have been stored.
func (h *holding) failed(key Key, name string, unsure bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry := h.record(key)
	saw := entry.writing[name]
	delete(entry.writing, name)
	if unsure {
		if entry.unsure == nil {
			entry.unsure = map[string]struct{}{}
		}
		entry.unsure[name] = struct{}{}
	}
	if saw != nil && saw.seen && !saw.gone {
		entry.leaveUnread(name)
	}
}

// leaveUnread notes that the cache does not show a slice as it is; the next pass
// over its Service, which plans all of it, begins with reading the slice.
func (h *holding) leaveUnread(key Key, name string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry := h.record(key)
	entry.leaveUnread(name)
	entry.due.add(key.Namespace, cause{trigger: BySlice}, now)
}

// sliceNews takes note that a slice of a Service is not as this replica left it.
// pass says that the Service needs one, rest that it is being left alone from now
// on because the same happened too often, by whom.
func (h *holding) sliceNews(key Key, news sliceNews, now time.Time) (pass, rests bool, by string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry := h.record(key)
	if under := entry.writing[news.name]; under != nil {
		*under = sighting{version: news.version, seen: true, gone: news.gone}
		return false, false, ""
	}
	if !news.ending {
		rests = entry.undone(news.name, news.by, now)
	}
	delete(entry.written, news.name)
	entry.due.add(key.Namespace, cause{trigger: BySlice}, now)
	return true, rests, entry.rivalry.By(now)
}

// sighted takes note that a watch showed a version of a slice, and reports
// whether a write of it is under way, whose answer will say what that means.
func (h *holding) sighted(key Key, name, version string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry := h.records[key]
	if entry == nil || entry.writing[name] == nil {
		return false
	}
	entry.writing[name] = &sighting{version: version, seen: true}
	return true
}
