package agent

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// Report is what the caller knows of a holder. The zero Report says that the holder is alive as
// long as the Agent runs.
type Report struct {
	// ObservedTime is when the holder was last observed to be alive, for a Node its kubelet: a
	// result of time.Now, whose monotonic reading counts. The lease expires as if the last beat had
	// been sent then. The zero time stands for now, with every beat.
	ObservedTime time.Time
	// CutOff is since when every request of the holder to kube-apiserver has failed, a result of
	// time.Now; zero if one was served since, or if the caller does not see the requests. Only a
	// program that forwards the requests of a kubelet knows it. While other kubelets reach
	// kube-apiserver, the Node is marked Unknown after the node-monitor grace if Config.Mode is
	// "endpoint".
	CutOff time.Time
	// Conditions are shown in the lease of the holder; at most 16, with different types.
	Conditions []Condition
}

// Condition is one aspect of a holder.
type Condition struct {
	// Type is 1 to 63 letters and digits that begin with a letter, in CamelCase.
	Type   string
	Status ConditionStatus
	// Reason is at most 63 letters, digits and _, and Message at most 256 characters. Both may be
	// empty.
	Reason, Message string
	// TransitionTime is when the status changed, a result of time.Now; zero if it is unknown.
	TransitionTime time.Time
}

// ConditionStatus says whether a condition holds.
type ConditionStatus int32

// The values of ConditionStatus.
const (
	ConditionTrue    = ConditionStatus(metav1.Condition_STATUS_TRUE)
	ConditionFalse   = ConditionStatus(metav1.Condition_STATUS_FALSE)
	ConditionUnknown = ConditionStatus(metav1.Condition_STATUS_UNKNOWN)
)

const (
	maxConditions   = 16
	maxMessageRunes = 256
	// conditionBytes and reportBytes bound what an encoded condition and report take beside texts.
	conditionBytes = 40
	reportBytes    = 60
)

var (
	conditionTypes   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]{0,62}$`)
	conditionReasons = regexp.MustCompile(`^[A-Za-z0-9_]{0,63}$`)
)

// Report sets what is sent with the beats of a holder from now on, until the next Report. It fails
// if the Agent does not have the holder, or if the report is invalid; then nothing changes.
func (a *Agent) Report(h Holder, r Report) error {
	if err := r.validate(); err != nil {
		return fmt.Errorf("agent: report of holder %+v: %w", h, err)
	}
	r.Conditions = slices.Clone(r.Conditions)
	if a.cfg.BeatOnReport && r.ObservedTime.IsZero() {
		r.ObservedTime = time.Now()
	}
	return a.router.report(h, &r)
}

// validate checks the rules of heartbeat.proto. The server would end a stream for one invalid
// report.
func (r *Report) validate() error {
	if len(r.Conditions) > maxConditions {
		return fmt.Errorf("%d conditions, must be %d at most", len(r.Conditions), maxConditions)
	}
	var problems []error
	types := map[string]bool{}
	for i := range r.Conditions {
		c := &r.Conditions[i]
		switch {
		case !conditionTypes.MatchString(c.Type):
			problems = append(problems, fmt.Errorf("condition type %q: must be 1 to 63 letters and digits and begin with a letter", c.Type))
		case types[c.Type]:
			problems = append(problems, fmt.Errorf("two conditions of type %q", c.Type))
		}
		types[c.Type] = true
		if !conditionReasons.MatchString(c.Reason) {
			problems = append(problems, fmt.Errorf("condition %q: reason %q: must be at most 63 letters, digits and _", c.Type, c.Reason))
		}
		if utf8.RuneCountInString(c.Message) > maxMessageRunes || !utf8.ValidString(c.Message) {
			problems = append(problems, fmt.Errorf("condition %q: the message must be valid UTF-8 of at most %d characters", c.Type, maxMessageRunes))
		}
	}
	return errors.Join(problems...)
}

// observes reports whether the report says when the holder was last observed.
func (r *Report) observes() bool { return r != nil && !r.ObservedTime.IsZero() }

// lasts reports whether the report says something that beats with a bare handle leave as it is.
func (r *Report) lasts() bool { return r != nil && (len(r.Conditions) > 0 || !r.CutOff.IsZero()) }

// bare reports whether a beat without the report says the same: the holder was observed within the
// tolerance. A nil Report is bare.
func (r *Report) bare(now time.Time, tolerance time.Duration) bool {
	return r == nil || !r.lasts() && (r.ObservedTime.IsZero() || now.Sub(r.ObservedTime) < tolerance)
}

// message returns nil for nil.
func (r *Report) message(now time.Time) *leasev1.Report {
	if r == nil {
		return nil
	}
	m := &leasev1.Report{}
	if !r.ObservedTime.IsZero() {
		m.ObservedAge = age(now, r.ObservedTime)
	}
	if !r.CutOff.IsZero() {
		m.CutOffAge = age(now, r.CutOff)
	}
	for i := range r.Conditions {
		c := &r.Conditions[i]
		condition := &leasev1.ReportedCondition{Type: c.Type, Status: metav1.Condition_Status(c.Status), Reason: c.Reason, Message: c.Message}
		if !c.TransitionTime.IsZero() {
			condition.TransitionAge = age(now, c.TransitionTime)
		}
		m.Conditions = append(m.Conditions, condition)
	}
	return m
}

func age(now, then time.Time) *durationpb.Duration { return durationpb.New(max(now.Sub(then), 0)) }

// size is at least the size of the encoded report.
func (r *Report) size() int {
	if r == nil {
		return 0
	}
	n := reportBytes
	for i := range r.Conditions {
		c := &r.Conditions[i]
		n += conditionBytes + len(c.Type) + len(c.Reason) + len(c.Message)
	}
	return n
}
