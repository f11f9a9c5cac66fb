package agent

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Holder is a node, agent or sidecar that beats.
type Holder struct {
	// Class is the kind of holder, for example "node"; the server grants an interval to each class.
	// A DNS label.
	Class string
	// Name is unique within the class: a DNS subdomain. For a node, it is the Node's name.
	Name string
	// BootID differs for each boot of the node or start of the process. 1 to 64 letters, digits and
	// any of -._:
	BootID string
}

// holderKey identifies a holder across its boots.
type holderKey struct{ class, name string }

func (h Holder) key() holderKey { return holderKey{class: h.Class, name: h.Name} }

// size is at least the size of the encoded holder.
func (h Holder) size() int { return len(h.Class) + len(h.Name) + len(h.BootID) + 16 }

func compareHolders(a, b Holder) int {
	return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.Name, b.Name))
}

const (
	maxBootIDBytes   = 64
	bootIDCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._:"
)

// validate checks the rules of heartbeat.proto. The server would end a stream for one invalid
// holder, and all holders on it would stop beating.
func validate(holders []Holder) error {
	var problems []error
	for _, h := range holders {
		for _, problem := range h.problems() {
			problems = append(problems, fmt.Errorf("agent: holder %+v: %s", h, problem))
		}
	}
	return errors.Join(problems...)
}

func (h Holder) problems() []string {
	var problems []string
	if failures := validation.IsDNS1123Label(h.Class); len(failures) > 0 {
		problems = append(problems, "class: "+strings.Join(failures, "; "))
	}
	if failures := validation.IsDNS1123Subdomain(h.Name); len(failures) > 0 {
		problems = append(problems, "name: "+strings.Join(failures, "; "))
	}
	if h.BootID == "" || len(h.BootID) > maxBootIDBytes || strings.Trim(h.BootID, bootIDCharacters) != "" {
		problems = append(problems, "boot id: must be 1 to 64 letters, digits and any of -._:")
	}
	return problems
}
