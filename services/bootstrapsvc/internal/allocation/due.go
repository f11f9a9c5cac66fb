package allocation

import (
	"container/heap"
	"time"
)

// dueHeap are the moments at which pending findings can change by time or by a pass, so that nobody looks at thousands of
// them for each change of something else. A moment that was moved stays in it and is passed over.
type dueHeap []dueItem

type dueItem struct {
	at    time.Time
	entry *entry
}

// Len, Less, Swap, Push and Pop are those of a heap.
func (d dueHeap) Len() int           { return len(d) }
func (d dueHeap) Less(i, j int) bool { return d[i].at.Before(d[j].at) }
func (d dueHeap) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }

func (d *dueHeap) Push(x any) {
	if pushed, ok := x.(dueItem); ok {
		*d = append(*d, pushed)
	}
}

func (d *dueHeap) Pop() any {
	last := len(*d) - 1
	popped := (*d)[last]
	(*d)[last] = dueItem{}
	*d = (*d)[:last]
	return popped
}

// set moves the moment of an entry.
func (d *dueHeap) set(e *entry, at time.Time) {
	if !e.due.Equal(at) {
		e.due = at
		heap.Push(d, dueItem{at: at, entry: e})
	}
}

// first is the earliest moment, or false when there is none.
func (d *dueHeap) first() (dueItem, bool) {
	for len(*d) > 0 {
		if top := (*d)[0]; top.at.Equal(top.entry.due) {
			return top, true
		}
		heap.Pop(d)
	}
	return dueItem{}, false
}

// take removes the earliest moment if it has come.
func (d *dueHeap) take(now time.Time) (*entry, bool) {
	top, ok := d.first()
	if !ok || top.at.After(now) {
		return nil, false
	}
	heap.Pop(d)
	top.entry.due = time.Time{}
	return top.entry, true
}
