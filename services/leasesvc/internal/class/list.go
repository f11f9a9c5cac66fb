package class

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// setting is one class in the JSON list of --classes. An omitted field has the default of the class
// "node", except ownedByNode and holderRule.
type setting struct {
	Name              string           `json:"name"`
	Namespace         string           `json:"namespace"`
	HeartbeatInterval *metav1.Duration `json:"heartbeatInterval,omitempty"`
	SuspectAfter      *int             `json:"suspectAfter,omitempty"`
	Grace             *metav1.Duration `json:"grace,omitempty"`
	RenewInterval     *metav1.Duration `json:"renewInterval,omitempty"`
	LeaseDuration     *metav1.Duration `json:"leaseDuration,omitempty"`
	Retention         *metav1.Duration `json:"retention,omitempty"`
	OwnedByNode       bool             `json:"ownedByNode,omitempty"`
	HolderRule        *ruleSetting     `json:"holderRule,omitempty"`
}

type ruleSetting struct {
	Type         RuleType `json:"type"`
	NameTemplate string   `json:"nameTemplate,omitempty"`
}

// ParseList reads classes from a JSON list. It refuses unknown fields.
func ParseList(text string) ([]Class, error) {
	var settings []setting
	decoder := json.NewDecoder(bytes.NewBufferString(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&settings); err != nil {
		return nil, fmt.Errorf("need a list of classes: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("need one list of classes, and nothing behind it")
	}
	classes := make([]Class, 0, len(settings))
	for i := range settings {
		classes = append(classes, settings[i].class())
	}
	return classes, nil
}

// FormatList writes classes as ParseList reads them.
func FormatList(classes []Class) string {
	settings := make([]setting, 0, len(classes))
	for i := range classes {
		settings = append(settings, settingOf(&classes[i]))
	}
	text, err := json.Marshal(settings)
	if err != nil {
		return "[]" // unreachable: every field can be encoded
	}
	return string(text)
}

func (s *setting) class() Class {
	c := DefaultNode()
	c.Name, c.Namespace, c.OwnedByNode, c.HolderRule = s.Name, s.Namespace, s.OwnedByNode, HolderRule{}
	if s.HolderRule != nil {
		c.HolderRule = HolderRule(*s.HolderRule)
	}
	set := func(field *time.Duration, given *metav1.Duration) {
		if given != nil {
			*field = given.Duration
		}
	}
	set(&c.HeartbeatInterval, s.HeartbeatInterval)
	set(&c.Grace, s.Grace)
	set(&c.RenewInterval, s.RenewInterval)
	set(&c.LeaseDuration, s.LeaseDuration)
	set(&c.Retention, s.Retention)
	if s.SuspectAfter != nil {
		c.SuspectAfter = *s.SuspectAfter
	}
	return c
}

func settingOf(c *Class) setting {
	given := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	var rule *ruleSetting
	if c.HolderRule != (HolderRule{}) {
		rule = new(ruleSetting(c.HolderRule))
	}
	return setting{
		Name: c.Name, Namespace: c.Namespace, HeartbeatInterval: given(c.HeartbeatInterval), SuspectAfter: &c.SuspectAfter,
		Grace: given(c.Grace), RenewInterval: given(c.RenewInterval), LeaseDuration: given(c.LeaseDuration),
		Retention: given(c.Retention), OwnedByNode: c.OwnedByNode, HolderRule: rule,
	}
}
