package nodehealthcontroller

// ChangeType is what happened to a Node since a Watcher last read it.
type ChangeType uint8

const (
	// Added: it is wanted, and was not before.
	Added ChangeType = iota
	// Modified: what readers see of it changed.
	Modified
	// Deleted: it was deleted, or is not wanted any more, or this replica does not hold its shard
	// any more.
	Deleted
)

// Event is one change.
type Event struct {
	Type ChangeType
	Node *Node
}

// Watcher returns changes to one reader. A slow reader skips states of a Node and never the last
// one. It belongs to one goroutine.
type Watcher struct {
	publisher *Publisher
	wanted    func(*Node) bool
	revision  uint64
	sent      map[string]*Node
}

// Watch returns a Watcher of the wanted Nodes. Its first Next returns all of them as Added.
func (p *Publisher) Watch(wanted func(*Node) bool) *Watcher {
	return &Watcher{publisher: p, wanted: wanted, sent: map[string]*Node{}}
}

// Next returns the changes since the last call. published is false if there is no Snapshot. A
// reader that gets no change waits for Publisher.Changed, which it took before.
func (w *Watcher) Next() (events []Event, published bool) {
	snapshot := w.publisher.Snapshot()
	if snapshot == nil {
		return nil, false
	}
	if behind := snapshot.revision - w.revision; w.revision > 0 && behind <= uint64(len(snapshot.journal)) {
		events = w.readJournal(snapshot, int(behind))
	} else {
		events = w.readAll(snapshot)
	}
	w.revision = snapshot.revision
	return events, true
}

// readJournal reads the last changes. A Node is returned at its newest revision only. If that is
// newer than the snapshot, the next call returns it.
func (w *Watcher) readJournal(snapshot *Snapshot, changes int) []Event {
	var events []Event
	for i, slot := range snapshot.journal[len(snapshot.journal)-changes:] {
		if node := slot.node.Load(); node.Revision == w.revision+1+uint64(i) {
			events = w.add(events, node)
		}
	}
	return events
}

// readAll compares all Nodes with what was sent.
func (w *Watcher) readAll(snapshot *Snapshot) []Event {
	var events []Event
	exists := make(map[string]bool, len(snapshot.slots))
	for _, slot := range snapshot.slots {
		exists[slot.name] = true
		events = w.add(events, slot.node.Load())
	}
	for name, node := range w.sent {
		if !exists[name] {
			delete(w.sent, name)
			events = append(events, Event{Type: Deleted, Node: node})
		}
	}
	return events
}

// add adds the event of a Node, unless it was sent: Nodes are stored shortly before their snapshot.
func (w *Watcher) add(events []Event, node *Node) []Event {
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
