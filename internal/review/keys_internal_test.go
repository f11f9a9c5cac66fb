package review

import (
	"bytes"
	"testing"
)

func TestKeys_AQuestionIsClearedAfterUse(t *testing.T) {
	question := NewKeys().Question()
	question.Add("secret")
	memory := question.text
	question.Key()
	if bytes.Contains(memory, []byte("secret")) {
		t.Errorf("the memory of a question still has %q", memory)
	}
}
