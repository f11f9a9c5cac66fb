// Package evidence says why something is so: a chain of links, each with what one place shows.
package evidence

import (
	"time"

	"github.com/trivet-dev/trivet/internal/prototime"
	"github.com/trivet-dev/trivet/internal/wording"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// Result is how a link stands. Its values are those of the API.
type Result uint8

const (
	// OK means that it is as it should be.
	OK = Result(metav1.Evidence_RESULT_OK)
	// Warning means that it is not as it should be, and that nothing follows from it yet.
	Warning = Result(metav1.Evidence_RESULT_WARNING)
	// Failed means that it is not as it should be, and the cause of what follows.
	Failed = Result(metav1.Evidence_RESULT_FAILED)
	// Unknown means that this replica cannot see it.
	Unknown = Result(metav1.Evidence_RESULT_UNKNOWN)
	// NotApplicable means that it does not apply.
	NotApplicable = Result(metav1.Evidence_RESULT_NOT_APPLICABLE)
)

func (r Result) String() string { return metav1.Evidence_Result(r).String()[len("RESULT_"):] }

// Object identifies a Kubernetes object.
type Object struct{ APIVersion, Kind, Namespace, Name, UID string }

// Link is one piece of evidence.
type Link struct {
	// Code is stable. docs/reasons.md lists them.
	Code   string
	Result Result
	// Message is one sentence. Next is what to do or to check, or "".
	Message, Next string
	Source        string
	// Object is the object that was read, if any.
	Object  Object
	Version string
	// Time is when it became so, or when it was seen.
	Time time.Time
}

// Say returns the link with a result. next is optional.
func (l Link) Say(result Result, message string, next ...string) Link {
	l.Result, l.Message = result, message
	if len(next) > 0 {
		l.Next = next[0]
	}
	return l
}

// At returns the link with the time since when it is so.
func (l Link) At(time time.Time) Link {
	l.Time = time
	return l
}

// Chain are links in their order. The zero Chain is empty.
type Chain struct{ Links []Link }

// Add adds links. One without a time is so since now.
func (c *Chain) Add(now time.Time, links ...Link) {
	for _, link := range links {
		if link.Time.IsZero() {
			link.Time = now
		}
		c.Links = append(c.Links, link)
	}
}

// Broken returns the index of the first link that failed, or -1.
func (c *Chain) Broken() int {
	for i := range c.Links {
		if c.Links[i].Result == Failed {
			return i
		}
	}
	return -1
}

// Proto returns the chain as the API has it, seen by a replica. broken is nil if no link failed.
func (c *Chain) Proto(replicaID string) (links []*metav1.Evidence, broken *int32) {
	for i := range c.Links {
		links = append(links, c.Links[i].proto(replicaID))
	}
	if i := c.Broken(); i >= 0 {
		broken = new(int32(i))
	}
	return links, broken
}

func (l *Link) proto(replicaID string) *metav1.Evidence {
	converted := &metav1.Evidence{
		Code: l.Code, Result: metav1.Evidence_Result(l.Result), Message: wording.Valid(l.Message), Next: wording.Valid(l.Next),
		Source: l.Source, ReplicaId: replicaID, Version: l.Version, ObserveTime: prototime.New(l.Time),
	}
	if of := l.Object; of != (Object{}) {
		converted.Object = &metav1.ObjectReference{ApiVersion: of.APIVersion, Kind: of.Kind, Namespace: of.Namespace, Name: of.Name, Uid: of.UID}
	}
	return converted
}
