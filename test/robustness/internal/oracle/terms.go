package oracle

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/test/robustness/internal/history"
)

// checkTimeout bounds the search for a linearization of one shard.
const checkTimeout = 20 * time.Second

type shardOf struct {
	service string
	shard   int
}

// claimsByShard returns the claims of each shard, in order.
func claimsByShard(h history.History) map[shardOf][]history.Claim {
	claims := map[shardOf][]history.Claim{}
	for _, c := range h.Claims {
		key := shardOf{c.Service, c.Shard}
		claims[key] = append(claims[key], c)
	}
	for _, list := range claims {
		slices.SortFunc(list, func(a, b history.Claim) int { return cmp.Compare(a.Epoch, b.Epoch) })
	}
	return claims
}

// holders finds the times in which a shard has no leader that runs.
func holders(h history.History, f *finding) {
	claims := claimsByShard(h)
	for service, shards := range h.Shards {
		for number := range shards {
			what := fmt.Sprintf("shard %d has no leader", number)
			led := h.Begin
			for _, c := range claims[shardOf{service, number}] {
				f.count("holder", 1)
				for _, part := range running(h, c) {
					f.lag("holder", service, led, part.From, what)
					led = max(led, part.To)
				}
			}
			f.lag("holder", service, led, h.End, what)
		}
	}
}

// running returns the parts of a claim in which its holder runs, in order.
func running(h history.History, c history.Claim) []history.Down {
	var parts []history.Down
	since, end := c.From, until(h, c.To)
	downs := slices.SortedFunc(slices.Values(h.Downs), func(a, b history.Down) int { return cmp.Compare(a.From, b.From) })
	for _, d := range downs {
		if d.Process != c.Holder || d.From >= end || until(h, d.To) <= since {
			continue
		}
		if d.From > since {
			parts = append(parts, history.Down{From: since, To: d.From})
		}
		since = until(h, d.To)
	}
	if since < end {
		parts = append(parts, history.Down{From: since, To: end})
	}
	return parts
}

// single finds terms that begin before the end of the former term of their shard. Both are
// revisions of one etcd.
func single(h history.History, f *finding) {
	for key, list := range claimsByShard(h) {
		f.count("single", len(list))
		for i, c := range list[:len(list)-1] {
			if next := list[i+1]; c.Gone == 0 || c.Gone > next.Epoch {
				f.breach("single", key.service, next.From, "%s claims shard %d at revision %d, and the term of %s ends at %d (0: never)",
					next.Holder, key.shard, next.Epoch, c.Holder, c.Gone)
			}
		}
	}
}

// acts checks that each write was sent while its process led. The keys of the terms and the writes
// of one shard are the operations of one register that holds the leader: a claim sets it, an end
// clears it, and a write is possible only while it holds the writer. Porcupine searches an order
// that respects the times. A write of AnyShard needs any shard of the service.
func acts(h history.History, f *finding) {
	byShard := map[shardOf][]history.Act{}
	for _, a := range h.Acts {
		f.count("act", 1)
		if a.Shard != history.AnyShard {
			key := shardOf{a.Service, a.Shard}
			byShard[key] = append(byShard[key], a)
			continue
		}
		if !slices.ContainsFunc(h.Claims, func(c history.Claim) bool {
			return c.Service == a.Service && allows(h, c, a) && overlaps(h, c, a)
		}) {
			f.breach("act", a.Service, a.Sent, "%s sent %s %s while it led no shard that allows it", a.Process, a.Verb, a.Object)
		}
	}
	claims := claimsByShard(h)
	for key, list := range byShard {
		switch porcupine.CheckOperationsTimeout(leaderModel(), operations(h, claims[key], list), checkTimeout) {
		case porcupine.Ok:
		case porcupine.Unknown:
			f.breach("act", key.service, h.End, "shard %d: no linearization found within %v", key.shard, checkTimeout)
		case porcupine.Illegal:
			f.breach("act", key.service, h.End, "shard %d: its writes and terms are not linearizable", key.shard)
			for _, a := range list {
				if !possible(h, a) {
					f.breach("act", key.service, a.Sent, "%s sent %s %s while it did not lead shard %d", a.Process, a.Verb, a.Object, key.shard)
				}
			}
		}
	}
}

// allows returns whether the shard of a claim allows a write of AnyShard. The taints and labels of
// a Node need the shard of the Node, or that of the zones.
func allows(h history.History, c history.Claim, a history.Act) bool {
	node, isNode := strings.CutPrefix(a.Object, "nodes /")
	return !isNode || c.Shard == zoneShard || c.Shard == shard.Of("node", node, h.Shards[a.Service])
}

// zoneShard is the shard of leasesvc whose leader sets the taints of all zones.
const zoneShard = 0

// slack is longer than a change in etcd needs to reach the record while the machine runs the test.
const slack = 300 * time.Millisecond

// recordedFrom returns the earliest time at which a change can have been made that reached the
// record at a time.
func recordedFrom(h history.History, at time.Duration) time.Duration {
	from := at - slack - h.Stalled(at-10*slack, at)
	for _, g := range h.Gaps {
		if g.From < at && at <= g.To {
			from = min(from, g.From)
		}
	}
	return from
}

// overlaps says whether an act can have been sent under a claim.
func overlaps(h history.History, c history.Claim, a history.Act) bool {
	return c.Holder == a.Process && recordedFrom(h, c.From) <= a.Answered && a.Sent <= until(h, c.To)
}

// asSent returns the writes with the times and the processes of their senders. A link may deliver a
// request late, and the record then has the time of its arrival. If the sender has ended meanwhile,
// the record names the next process of the replica, which has no term yet.
func asSent(h history.History) []history.Act {
	slow := slices.DeleteFunc(slices.Clone(h.Windows), func(w history.Window) bool { return w.Late == 0 })
	acts := slices.Clone(h.Acts)
	for i, a := range acts {
		late := time.Duration(0)
		for _, w := range slow {
			if w.Service == a.Service && w.From <= a.Sent && a.Sent <= until(h, w.To)+w.Late {
				late = max(late, w.Late)
			}
		}
		if late == 0 {
			continue
		}
		a.Sent -= late
		former := a
		former.Process = processBefore(a.Process)
		if !possible(h, a) && possible(h, former) {
			a = former
		}
		acts[i] = a
	}
	return acts
}

// possible says whether the process of a write led its shard when it sent it.
func possible(h history.History, a history.Act) bool {
	return slices.ContainsFunc(h.Claims, func(c history.Claim) bool {
		return c.Service == a.Service && (c.Shard == a.Shard || a.Shard == history.AnyShard) && overlaps(h, c, a)
	})
}

// processBefore returns the name of the process that was in the place of another one, such as a#1
// of a#2; the same name if there was none.
func processBefore(process string) string {
	place, number, _ := strings.Cut(process, "#")
	if n, err := strconv.Atoi(number); err == nil && n > 1 {
		return fmt.Sprintf("%s#%d", place, n-1)
	}
	return process
}

// operation is a claim, the end of one, or a write.
type operation struct {
	kind   string // "claim", "end" or "write"
	holder string
	epoch  int64
}

func operations(h history.History, claims []history.Claim, writes []history.Act) []porcupine.Operation {
	var out []porcupine.Operation
	add := func(op operation, call, answer time.Duration) {
		out = append(out, porcupine.Operation{ClientId: len(out), Input: op, Call: int64(call), Return: int64(max(answer, call))})
	}
	for _, c := range claims {
		add(operation{kind: "claim", holder: c.Holder, epoch: c.Epoch}, recordedFrom(h, c.From), c.From)
		if c.To != 0 {
			add(operation{kind: "end", holder: c.Holder, epoch: c.Epoch}, recordedFrom(h, c.To), c.To)
		}
	}
	for _, w := range writes {
		add(operation{kind: "write", holder: w.Process}, w.Sent, w.Answered)
	}
	return out
}

// leaderModel is the register of the leader of one shard.
func leaderModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return operation{} },
		Step: func(state, input, _ any) (bool, any) {
			present, isState := state.(operation)
			op, isInput := input.(operation)
			if !isState || !isInput {
				return false, state
			}
			switch op.kind {
			case "claim":
				return present.holder == "" && op.epoch > present.epoch, operation{holder: op.holder, epoch: op.epoch}
			case "end":
				return present.epoch == op.epoch && present.holder != "", operation{epoch: op.epoch}
			default:
				return present.holder == op.holder, present
			}
		},
	}
}

// stale checks that no term changed an object after a later term had changed it. The term of a
// write is the last one that its process had claimed when it sent the write. A claim with a later
// revision of etcd than the write came after it, whatever the record's times say.
func stale(h history.History, f *finding) {
	claims := claimsByShard(h)
	type change struct {
		epoch int64
		by    string
	}
	last := map[string]change{}
	ordered := slices.SortedFunc(slices.Values(h.Acts), func(a, b history.Act) int { return cmp.Compare(a.Revision, b.Revision) })
	for _, a := range ordered {
		if a.Shard == history.AnyShard || a.Revision == 0 {
			continue
		}
		f.count("stale", 1)
		var epoch int64
		for _, c := range claims[shardOf{a.Service, a.Shard}] {
			if c.Holder == a.Process && c.Epoch < a.Revision && recordedFrom(h, c.From) <= a.Sent {
				epoch = c.Epoch
			}
		}
		if before := last[a.Object]; epoch < before.epoch {
			f.breach("stale", a.Service, a.Answered, "%s: revision %d by %s under epoch %d is over one by %s under epoch %d",
				a.Object, a.Revision, a.Process, epoch, before.by, before.epoch)
		}
		last[a.Object] = change{epoch: max(epoch, last[a.Object].epoch), by: a.Process}
	}
}
