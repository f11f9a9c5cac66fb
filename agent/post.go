package agent

import "cmp"

// post is where holders beat or are to be introduced: one address, for the life of one connection to it. All of it but address
// and changed is guarded by the roster.
type post struct {
	address string
	members map[key]*member
	handles map[uint32]*member
	// attended is set once a goroutine cares for the post, and answered once the server has answered it.
	attended, answered bool
	// changed has an item when there may be somebody to introduce, or nobody left.
	changed chan struct{}
}

func newPost(address string) *post {
	return &post{
		address: address, members: map[key]*member{}, handles: map[uint32]*member{}, changed: make(chan struct{}, 1),
	}
}

func (p *post) signal() { signal(p.changed) }

func (p *post) status() TargetStatus {
	return TargetStatus{Target: p.address, Connected: p.answered, Holders: len(p.members), Welcome: len(p.handles)}
}

func compareTargets(a, b TargetStatus) int { return cmp.Compare(a.Target, b.Target) }

// signal wakes the one who waits on the channel, or will.
func signal(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}
