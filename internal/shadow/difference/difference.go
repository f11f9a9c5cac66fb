// Package difference has the values that a comparison of a dry run finds, and decides when they
// count.
//
// Promise: a difference counts after it has been found by each pass for the settling time, without
// a change of what is in the cluster or of what would be written. Each field of an object settles
// for itself, so that changes of other endpoints of a Service do not hide one that stays wrong.
//
// Invariants: no I/O, no clock. Memory is bounded by Settling.Limit fields, and what counts by
// MaxValue bytes of each text of a field.
package difference

import (
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/trivet-dev/trivet/internal/planned"
)

// Kind says what differs. Its text is the label of metrics.
type Kind string

// The kinds; the API has the same.
const (
	Content   Kind = "content"
	Metadata  Kind = "metadata"
	Missing   Kind = "missing"
	Unwanted  Kind = "unwanted"
	Packing   Kind = "packing"
	Condition Kind = "condition"
	Taint     Kind = "taint"
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{Content, Metadata, Missing, Unwanted, Packing, Condition, Taint} }

// Object names a Kubernetes object.
type Object struct{ APIVersion, Kind, Namespace, Name, UID string }

// Difference is one object that would be written differently.
type Difference struct {
	Kind Kind
	// Part tells differences of one kind in one object apart; empty for the only one.
	Part   string
	Object Object
	// Reason is the code of an intended difference; empty if none is known.
	Reason string
	// Message describes the difference in one sentence. It is not compared: it may have numbers
	// that change.
	Message string
	// Writer is the field manager that wrote the object last, Version its resourceVersion.
	Writer, Version string
	// Fields are those that differ, in the cluster and as they would be written.
	Fields planned.Fields
	// FieldCount is how many fields differ. Fields has the first ones.
	FieldCount int
	// Since is set when it counts.
	Since time.Time
}

// maxFields bounds the fields of a difference that counts.
const maxFields = 20

// MaxValue is the longest path and the longest value of a difference that counts, in bytes. A value
// in the cluster may have hundreds of kilobytes.
const MaxValue = 256

// Settling holds the differences of the subjects of one loop until they count. The zero value is
// not valid; After and Limit are required. It is not safe for concurrent use.
type Settling struct {
	// After is the settling time.
	After time.Duration
	// Limit bounds the fields that are remembered.
	Limit int

	subjects map[string]map[uint64]time.Time
	fields   int
	dropped  map[string]bool
}

// Observe records what a pass found of a subject, and returns what counts. waiting says that
// something does not count yet.
func (s *Settling) Observe(now time.Time, subject string, found []Difference) (counted []Difference, waiting bool) {
	before := s.subjects[subject]
	s.remove(subject)
	if len(found) == 0 {
		return nil, false
	}
	after := make(map[uint64]time.Time, len(found))
	for i := range found {
		d := found[i]
		fields := d.Fields
		if len(fields) == 0 {
			fields = planned.Fields{{}}
		}
		var settled planned.Fields
		for _, field := range fields {
			if s.fields+len(after) >= s.Limit {
				s.drop(subject)
				waiting = true
				break
			}
			key := keyOf(&d, field)
			since, known := before[key]
			if !known {
				since = now
			}
			after[key] = since
			if now.Sub(since) < s.After {
				waiting = true
				continue
			}
			if d.Since.IsZero() || since.Before(d.Since) {
				d.Since = since
			}
			settled = append(settled, field)
		}
		if len(settled) == 0 {
			continue
		}
		if len(d.Fields) > 0 {
			settled.Sort()
			d.FieldCount = len(settled)
			d.Fields = kept(settled)
		}
		counted = append(counted, d)
	}
	if s.subjects == nil {
		s.subjects = map[string]map[uint64]time.Time{}
	}
	s.subjects[subject] = after
	s.fields += len(after)
	return counted, waiting
}

// Restart forgets everything: what was found was found in doubt.
func (s *Settling) Restart() { s.subjects, s.fields, s.dropped = nil, 0, nil }

// Retain forgets the subjects that are not wanted any more.
func (s *Settling) Retain(wanted func(subject string) bool) {
	for subject := range s.subjects {
		if !wanted(subject) {
			s.remove(subject)
		}
	}
	for subject := range s.dropped {
		if !wanted(subject) {
			delete(s.dropped, subject)
		}
	}
}

// Dropped returns how many subjects have differences that are not remembered, because there are too
// many.
func (s *Settling) Dropped() int { return len(s.dropped) }

// kept returns copies of the first fields with short texts, so that the others do not stay in
// memory.
func kept(fields planned.Fields) planned.Fields {
	short := func(text string) string {
		if len(text) > MaxValue {
			return strings.Clone(text[:MaxValue])
		}
		return text
	}
	first := slices.Clone(fields[:min(len(fields), maxFields)])
	for i, field := range first {
		first[i] = planned.Field{Path: short(field.Path), Before: short(field.Before), After: short(field.After)}
	}
	return first
}

func (s *Settling) remove(subject string) {
	s.fields -= len(s.subjects[subject])
	delete(s.subjects, subject)
	delete(s.dropped, subject)
}

func (s *Settling) drop(subject string) {
	if s.dropped == nil {
		s.dropped = map[string]bool{}
	}
	s.dropped[subject] = true
}

// keyOf identifies one field of a difference.
func keyOf(d *Difference, field planned.Field) uint64 {
	return xxhash.Sum64String(strings.Join([]string{
		string(d.Kind), d.Part, d.Object.Kind, d.Object.Namespace, d.Object.Name, d.Object.UID, d.Reason, field.Path, field.Before, field.After,
	}, "\x00"))
}
