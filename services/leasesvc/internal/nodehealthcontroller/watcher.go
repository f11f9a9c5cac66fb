package nodehealthcontroller

// Change says what became of a Node in the eyes of a Watcher.
type ChangeType uint8

const (
	// Added: it is wanted, and was not before.
	Added ChangeType = iota
	// Modified: something that is shown of it changed.
	Modified
	// Deleted: it is gone, or not judged here, or not wanted any more.
	Deleted
)

// Event is one change.
type Event struct {
	Type ChangeType
	Node *Node
}

// Watcher tells one reader what changed since its last look. It belongs to one goroutine.
type Watcher struct {
	census   *Publisher
	wanted   func(*Node) bool
	revision uint64
	sent     map[string]*Node
}

// Watch returns a Watcher for the Nodes that are wanted; its first look finds all of them.
func (c *Publisher) Watch(wanted func(*Node) bool) *Watcher {
	return &Watcher{census: c, wanted: wanted, sent: map[string]*Node{}}
}

// Next returns what changed since the last call, and false while nobody watches over the Nodes. Whoever finds nothing waits for
// Census.Changed, taken before.
func (w *Watcher) Next() ([]Event, bool) {
	edition := w.census.Snapshot()
	if edition == nil {
		return nil, false
	}
	var events []Event
	if behind := edition.revision - w.revision; w.revision > 0 && behind <= uint64(len(edition.journal)) {
		events = w.since(edition, int(behind))
	} else {
		events = w.all(edition)
	}
	w.revision = edition.revision
	return events, true
}

// since goes through the last changes. A Node comes up at its last revision only; one that has changed since the edition comes
// up again with the next.
func (w *Watcher) since(edition *Snapshot, changes int) []Event {
	var events []Event
	for i, e := range edition.journal[len(edition.journal)-changes:] {
		if node := e.node.Load(); node.Revision == w.revision+1+uint64(i) {
			events = w.take(events, node)
		}
	}
	return events
}

// all compares every Node with what was sent.
func (w *Watcher) all(edition *Snapshot) []Event {
	var events []Event
	exists := make(map[string]bool, len(edition.roster))
	for _, e := range edition.roster {
		exists[e.name] = true
		events = w.take(events, e.node.Load())
	}
	for name, node := range w.sent {
		if !exists[name] {
			delete(w.sent, name)
			events = append(events, Event{Type: Deleted, Node: node})
		}
	}
	return events
}

// take tells of a Node, unless it was told already: what is published may be read a moment before its edition is.
func (w *Watcher) take(events []Event, node *Node) []Event {
	name := node.Object.Name
	sent := w.sent[name]
	switch {
	case sent != nil && sent.Revision == node.Revision:
	case node.Held && w.wanted(node):
		change := Modified
		if sent == nil {
			change = Added
		}
		w.sent[name] = node
		events = append(events, Event{Type: change, Node: node})
	case sent != nil:
		delete(w.sent, name)
		events = append(events, Event{Type: Deleted, Node: node})
	}
	return events
}
