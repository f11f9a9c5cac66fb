package repairstore

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

// End says how a finding ended.
type End string

const (
	// NotEnded findings have not ended.
	NotEnded End = ""
	// EndRepaired findings were mended by a repair.
	EndRepaired End = "repaired"
	// EndGone findings went away by themselves.
	EndGone End = "gone"
)

// Finding is a finding with its history.
type Finding struct {
	allocation.Finding
	// FirstSeen survives restarts.
	FirstSeen time.Time
	// LastSeen is when it was last seen before this was written.
	LastSeen time.Time
	// Ended is the zero time while it stands.
	Ended time.Time `json:",omitzero"`
	End   End       `json:",omitempty"`
	// RepairedBy is the id of the repair that mended it.
	RepairedBy string `json:",omitempty"`
}

// findingKey leaves out what all names begin with.
func (j *Store) findingKey(name string) string {
	return j.findings + strings.TrimPrefix(name, "findings/")
}

// Findings returns all that are kept, ordered by name, and how many more could not be read. They come without their steps.
func (j *Store) Findings(ctx context.Context) (kept []Finding, unreadable int, err error) {
	err = j.read(ctx, j.findings, func(name string, value []byte) {
		var finding Finding
		if json.Unmarshal(value, &finding) != nil || finding.Name != "findings/"+name {
			unreadable++
			return
		}
		kept = append(kept, finding)
	})
	return kept, unreadable, err
}

// WriteFindings writes findings, without their steps, over what was kept of them, and then forgets those of the names.
func (j *Store) WriteFindings(ctx context.Context, findings []Finding, forget []string) error {
	var writes []write
	for _, finding := range findings {
		finding.Steps = nil
		w, err := put(j.findingKey(finding.Name), finding)
		if err != nil {
			return err
		}
		writes = append(writes, w)
	}
	for _, name := range forget {
		writes = append(writes, write{op: clientv3.OpDelete(j.findingKey(name))})
	}
	return j.commit(ctx, writes)
}
