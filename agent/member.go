package agent

import "time"

const (
	// maxHops is how often in a row a holder goes at once where it is sent: replicas that disagree about who holds a shard
	// must not play ball with it.
	maxHops = 2
	// patience is how many pauses a holder makes where nobody knows its owner, before it asks elsewhere.
	patience = 3
)

// member is a holder and how it stands. It is guarded by the roster.
type member struct {
	holder Holder
	// post is nil while the holder is to be placed, and when it never beats again.
	post *post
	// handle is 0 while the holder is not welcome at its post.
	handle uint32
	// asked is set from the introduction to its answer.
	asked bool
	// superseded members never beat again.
	superseded bool
	// refusal is why the server does not want the holder; it is neither placed nor introduced before retry.
	refusal string
	retry   time.Time
	// hint is where to place the holder, once.
	hint string
	// hops counts how often it was sent away since its last pause, and pauses how often it had to pause since it was welcome.
	hops, pauses int
}

// wants tells whether the holder is to be introduced, sooner or later.
func (m *member) wants() bool { return m.handle == 0 && !m.asked }

func (m *member) refused(reason string, retry time.Time) {
	m.handle, m.asked, m.refusal, m.retry = 0, false, reason, retry
}
