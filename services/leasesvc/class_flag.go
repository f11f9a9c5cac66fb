package leasesvc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/process"
)

// classSetting is how a further class is written in the configuration file. What is left out is as for nodes, except that a
// holder is no Node.
type classSetting struct {
	Name              string           `json:"name"`
	Namespace         string           `json:"namespace"`
	HeartbeatInterval *metav1.Duration `json:"heartbeatInterval,omitempty"`
	SuspectAfter      *int             `json:"suspectAfter,omitempty"`
	Grace             *metav1.Duration `json:"grace,omitempty"`
	RenewInterval     *metav1.Duration `json:"renewInterval,omitempty"`
	LeaseDuration     *metav1.Duration `json:"leaseDuration,omitempty"`
	Retention         *metav1.Duration `json:"retention,omitempty"`
	OwnedByNode       bool             `json:"ownedByNode,omitempty"`
}

// classFlag is the value of --classes.
type classFlag struct{ classes *[]Class }

// Type implements pflag.Value.
func (f classFlag) Type() string { return process.StructuredType }

// String implements pflag.Value.
func (f classFlag) String() string {
	if f.classes == nil || len(*f.classes) == 0 {
		return "[]"
	}
	settings := make([]classSetting, 0, len(*f.classes))
	for _, c := range *f.classes {
		settings = append(settings, settingOf(c))
	}
	text, err := json.Marshal(settings)
	if err != nil {
		return "[]" // cannot be: nothing in it fails to be written
	}
	return string(text)
}

// Set implements pflag.Value: it replaces the whole list.
func (f classFlag) Set(text string) error {
	var settings []classSetting
	decoder := json.NewDecoder(bytes.NewBufferString(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&settings); err != nil {
		return fmt.Errorf("need a list of classes: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("need one list of classes, and nothing behind it")
	}
	classes := make([]Class, 0, len(settings))
	for _, s := range settings {
		classes = append(classes, s.class())
	}
	*f.classes = classes
	return nil
}

func (s classSetting) class() Class {
	c := defaultNodeClass()
	c.Name, c.Namespace, c.OwnedByNode = s.Name, s.Namespace, s.OwnedByNode
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

func settingOf(c Class) classSetting {
	given := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	return classSetting{
		Name: c.Name, Namespace: c.Namespace, HeartbeatInterval: given(c.HeartbeatInterval), SuspectAfter: &c.SuspectAfter,
		Grace: given(c.Grace), RenewInterval: given(c.RenewInterval), LeaseDuration: given(c.LeaseDuration),
		Retention: given(c.Retention), OwnedByNode: c.OwnedByNode,
	}
}
