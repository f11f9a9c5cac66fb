package leasesvc

import (
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// nodeSilencesOf returns a function that returns the silent Nodes of a shard without a session, as
// node health has judged them last; false while it does not judge the shard.
func nodeSilencesOf(publisher *nodehealthcontroller.Publisher) func(shard int) ([]sessioncontroller.NodeSilence, bool) {
	return func(shard int) (silences []sessioncontroller.NodeSilence, judged bool) {
		snapshot := publisher.Snapshot()
		if snapshot == nil {
			return nil, false
		}
		of, judged := snapshot.Silences.ByShard[shard]
		for _, s := range of {
			silences = append(silences, sessioncontroller.NodeSilence(s))
		}
		return silences, judged
	}
}
