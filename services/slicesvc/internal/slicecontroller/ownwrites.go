package slicecontroller

import (
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// beginWrite records that a write of a slice begins. Until its answer, events of the slice may be
// of that write.
func (s *ownedShard) beginWrite(key Key, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.record(key)
	if record.observed == nil {
		record.observed = map[string]*observedVersion{}
	}
	record.observed[name] = &observedVersion{}
}

// finishWrite records the answer of a write. If a watch showed a newer version meanwhile, another
// writer changed the slice since, and finishWrite returns that version.
func (s *ownedShard) finishWrite(key Key, verb planned.Verb, stored *discoveryv1.EndpointSlice, now time.Time) (newer observedVersion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.record(key)
	observed := record.observed[stored.Name]
	delete(record.observed, stored.Name)
	delete(record.maybeStored, stored.Name)
	if verb == planned.Delete {
		delete(record.writes, stored.Name)
		return observedVersion{}
	}
	if record.writes == nil {
		record.writes = map[string]sliceWrite{}
	}
	record.writes[stored.Name] = sliceWrite{at: now}
	if observed == nil || !observed.observed || (!observed.deleted && index.CompareVersions(observed.version, stored.ResourceVersion) <= 0) {
		return observedVersion{}
	}
	record.pending.add(key.Namespace, syncCause{trigger: BySlice, urgency: index.Urgent}, now)
	return *observed
}

// failWrite records a write without a conclusive answer. If a watch showed the slice meanwhile, the
// slice must be read. maybeStored says that the write may be stored.
func (s *ownedShard) failWrite(key Key, name string, maybeStored bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.record(key)
	observed := record.observed[name]
	delete(record.observed, name)
	if maybeStored {
		record.maybeStored = addName(record.maybeStored, name)
	}
	if observed != nil && observed.observed && !observed.deleted {
		record.unread = addName(record.unread, name)
	}
}

// addUnread records that the cache has an old state of a slice. The next sync of the Service reads
// the slice first, and plans the whole Service.
func (s *ownedShard) addUnread(key Key, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.record(key)
	record.unread = addName(record.unread, name)
	record.pending.add(key.Namespace, syncCause{trigger: BySlice, urgency: index.Urgent}, time.Now())
}
