package agent

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Holder is one thing that beats.
type Holder struct {
	// Class is the kind of holder, for example "node"; the server decides by it how often to beat. A DNS label.
	Class string
	// Name is unique within the class: a DNS subdomain. For a node, the Node's name.
	Name string
	// BootID differs for every life of the holder: at every boot of the node or start of the process. 1 to 64 letters,
	// digits and any of -._:
	BootID string
}

// key names a holder over its boots.
type key struct{ class, name string }

func (h Holder) key() key { return key{class: h.Class, name: h.Name} }

func compare(a, b Holder) int {
	return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.Name, b.Name))
}

const (
	maxBootIDBytes   = 64
	bootIDCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._:"
)

// validate holds holders against the rules of lease.proto: the server ends a stream for one that breaks them, and all others
// on it would stop beating with it.
func validate(holders []Holder) error {
	var problems []error
	for _, h := range holders {
		for _, wrong := range h.problems() {
			problems = append(problems, fmt.Errorf("agent: holder %+v: %s", h, wrong))
		}
	}
	return errors.Join(problems...)
}

func (h Holder) problems() []string {
	var problems []string
	if why := validation.IsDNS1123Label(h.Class); len(why) > 0 {
		problems = append(problems, "class: "+strings.Join(why, "; "))
	}
	if why := validation.IsDNS1123Subdomain(h.Name); len(why) > 0 {
		problems = append(problems, "name: "+strings.Join(why, "; "))
	}
	if h.BootID == "" || len(h.BootID) > maxBootIDBytes || strings.Trim(h.BootID, bootIDCharacters) != "" {
		problems = append(problems, "boot id: must be 1 to 64 letters, digits and any of -._:")
	}
	return problems
}
