package sessioncontroller

import "context"

// bookmarks are the shards that a watcher knows wholly. They belong to the owner of the sessions.
type bookmarks struct {
	// complete are the shards, by number, whose sessions were all sent.
	complete []*HeldShard
	// pending are the shards that were served at the revision target: the watcher knows them wholly
	// once it has all changes up to there. It is nil if nothing is pending.
	pending []*HeldShard
	target  uint64
	// shardChanges is the state of the shards that pending was made from.
	shardChanges uint64
	// begun says that the first bookmark was sent, and sent what the last one said.
	begun bool
	sent  ServedShards
}

// Bookmark returns an event which says that the watcher has received all events so far.
func (s *Subscription) Bookmark(ctx context.Context) (Event, error) {
	var bookmark Event
	err := s.controller.do(ctx, func() { bookmark = s.controller.bookmark(s) })
	return bookmark, err
}

func (c *Controller) bookmark(s *Subscription) Event {
	s.sent = c.stillServed(s.complete)
	return Event{Type: Bookmark, Version: s.position, Shards: s.sent}
}

// dueBookmark returns a bookmark if it is the first one, or says something new about the shards.
func (c *Controller) dueBookmark(s *Subscription) (bookmark Event, due bool) {
	if s.phase != following || s.begun && s.pending == nil && s.shardChanges == c.changes.shardChanges {
		return Event{}, false
	}
	if s.pending == nil && s.shardChanges != c.changes.shardChanges {
		s.pending, s.target, s.shardChanges = c.servedShards(), c.changes.revision, c.changes.shardChanges
	}
	if s.pending != nil && s.position.Revision >= s.target {
		s.complete, s.pending = s.pending, nil
	}
	first := !s.begun && s.complete != nil
	if !first && (!s.begun || c.stillServed(s.complete).Equal(s.sent)) {
		return Event{}, false
	}
	s.begun = true
	bookmark = c.bookmark(s)
	bookmark.InitialEnd = first
	return bookmark, true
}
