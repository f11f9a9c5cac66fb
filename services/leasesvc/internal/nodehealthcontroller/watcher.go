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
	if behind := snapshot.revision - w.revision; w.revision > 0 && behind <= uint64(len(snapshot.changes)) {
		events = w.readChanges(snapshot, int(behind))
	} else {
		events = w.readAll(snapshot)
	}
	w.revision = snapshot.revision
	return events, true
}

// readChanges reads the last changes. Only the last change of a Node is an event.
func (w *Watcher) readChanges(snapshot *Snapshot, count int) []Event {
	var events []Event
	for i, c := range snapshot.changes[len(snapshot.changes)-count:] {
		if c.deleted != nil {
			events = w.remove(events, c.deleted)
		} else if node := snapshot.Node(c.name); node != nil && node.Revision == w.revision+1+uint64(i) {
			events = w.add(events, node)
		}
	}
	return events
}

// readAll compares all Nodes with what was sent.
func (w *Watcher) readAll(snapshot *Snapshot) []Event {
	var events []Event
	for _, node := range snapshot.nodes {
		events = w.add(events, node)
	}
	for name, node := range w.sent {
		if snapshot.Node(name) == nil {
			events = w.remove(events, node)
		}
	}
	return events
}

// add adds the event of a Node that exists.
func (w *Watcher) add(events []Event, node *Node) []Event {
	name := node.Object.Name
	sent := w.sent[name]
	switch {
	case sent != nil && sent.Revision == node.Revision:
		return events
	case !node.Held || !w.wanted(node):
		return w.remove(events, node)
	}
	change := Modified
	if sent == nil {
		change = Added
	}
	w.sent[name] = node
	return append(events, Event{Type: change, Node: node})
}

// remove adds the event of a Node that was deleted or is not wanted any more, if it was sent.
func (w *Watcher) remove(events []Event, node *Node) []Event {
	name := node.Object.Name
	if w.sent[name] == nil {
		return events
	}
	delete(w.sent, name)
	return append(events, Event{Type: Deleted, Node: node})
}
