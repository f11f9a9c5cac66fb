package review

import (
	"container/list"
	"sync"
	"time"
)

// owner is the part of a Key that identifies the user.
type owner [ownerBytes]byte

func (k Key) owner() owner { return owner(k[:ownerBytes]) }

// answers keeps positive answers for Stale. A new one takes the place of the answer that was used
// last the longest ago: one of the same owner, if that has its share, so that one user with many
// questions does not displace the answers for others. It is safe for concurrent use.
type answers[V any] struct {
	mu     sync.Mutex             // guards the fields below
	byKey  map[Key]*keptAnswer[V] // at most MaxAnswers
	used   *list.List             // of Key; the last used first
	owners map[owner]*list.List   // of Key; at most maxOwned each; the last used first
}

type keptAnswer[V any] struct {
	*entry[V]
	inUsed, inOwner *list.Element
}

func newAnswers[V any]() *answers[V] {
	return &answers[V]{byKey: map[Key]*keptAnswer[V]{}, used: list.New(), owners: map[owner]*list.List{}}
}

// get returns nil if there is no answer.
func (a *answers[V]) get(key Key) *entry[V] {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := a.byKey[key]
	if found == nil {
		return nil
	}
	if time.Since(found.at) >= Stale {
		a.drop(key)
		return nil
	}
	a.used.MoveToFront(found.inUsed)
	a.owners[key.owner()].MoveToFront(found.inOwner)
	return found.entry
}

func (a *answers[V]) add(key Key, answer *entry[V]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(key)
	if owned := a.owners[key.owner()]; owned != nil && owned.Len() >= maxOwned {
		a.dropLast(owned)
	} else if a.used.Len() >= MaxAnswers {
		a.dropLast(a.used)
	}
	owned := a.owners[key.owner()]
	if owned == nil {
		owned = list.New()
		a.owners[key.owner()] = owned
	}
	a.byKey[key] = &keptAnswer[V]{entry: answer, inUsed: a.used.PushFront(key), inOwner: owned.PushFront(key)}
}

func (a *answers[V]) remove(key Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(key)
}

func (a *answers[V]) size() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.byKey)
}

// dropLast needs a.mu.
func (a *answers[V]) dropLast(of *list.List) {
	if key, ok := of.Back().Value.(Key); ok {
		a.drop(key)
	}
}

// drop needs a.mu.
func (a *answers[V]) drop(key Key) {
	found := a.byKey[key]
	if found == nil {
		return
	}
	delete(a.byKey, key)
	a.used.Remove(found.inUsed)
	owned := a.owners[key.owner()]
	if owned.Remove(found.inOwner); owned.Len() == 0 {
		delete(a.owners, key.owner())
	}
}
