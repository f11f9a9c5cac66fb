package class

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// RuleType says how a class binds its holders to identities.
type RuleType string

const (
	// RuleNone refuses every holder.
	RuleNone RuleType = ""
	// RuleNode binds a holder to the Node of its name.
	RuleNode RuleType = "Node"
	// RuleNameTemplate binds a holder to the identity from which a template makes its name.
	RuleNameTemplate RuleType = "NameTemplate"
	// RuleAccessReview gives all holders of the class to the identities that kube-apiserver allows
	// to update them.
	RuleAccessReview RuleType = "SubjectAccessReview"
)

// HolderRule says which identities may beat for which holders of a class. The zero HolderRule
// refuses all.
type HolderRule struct {
	Type RuleType
	// NameTemplate is set with RuleNameTemplate, for example "{namespace}.{serviceaccount}".
	NameTemplate string
}

// Validate returns the problem of the rule; nil if there is none.
func (r HolderRule) Validate() error {
	switch r.Type {
	case RuleNone, RuleNode, RuleAccessReview:
		if r.NameTemplate != "" {
			return fmt.Errorf("nameTemplate is %q, and counts only with the type %s", r.NameTemplate, RuleNameTemplate)
		}
		return nil
	case RuleNameTemplate:
		_, err := parseTemplate(r.NameTemplate)
		return err
	}
	return fmt.Errorf("type is %q, must be %s, %s or %s", string(r.Type), RuleNode, RuleNameTemplate, RuleAccessReview)
}

// Identity is a caller, as far as rules read it.
type Identity struct {
	User   string
	Groups []string
	// Node and Pod are those that a token is bound to; empty without such a token.
	Node, Pod string
}

const (
	nodeUserPrefix     = "system:node:"
	nodesGroup         = "system:nodes"
	serviceAccountUser = "system:serviceaccount:"
)

// serviceAccount returns the ServiceAccount of the identity. As in kube-apiserver, a user name with
// an invalid namespace or name is none: with a dot in the namespace, two users would have one name
// in a template.
func (i *Identity) serviceAccount() (namespace, name string, ok bool) {
	rest, found := strings.CutPrefix(i.User, serviceAccountUser)
	namespace, name, cut := strings.Cut(rest, ":")
	ok = found && cut && len(validation.IsDNS1123Label(namespace)) == 0 && len(validation.IsDNS1123Subdomain(name)) == 0
	return namespace, name, ok
}

// Binding applies the rule of one class. It is immutable.
type Binding struct {
	rule     HolderRule
	template template
	// agents are the user names of the ServiceAccounts whose tokens speak for their Nodes.
	agents []string
}

// newBinding returns the binding of a valid rule. An invalid one binds nothing.
func newBinding(rule HolderRule, agents []string) Binding {
	b := Binding{rule: rule}
	switch rule.Type {
	case RuleNameTemplate:
		b.template, _ = parseTemplate(rule.NameTemplate)
	case RuleNode:
		for _, agent := range agents {
			b.agents = append(b.agents, serviceAccountUser+strings.ReplaceAll(agent, "/", ":"))
		}
	}
	return b
}

// Reviewed says whether kube-apiserver decides about the holders of the class.
func (b *Binding) Reviewed() bool { return b.rule.Type == RuleAccessReview }

// HolderOf returns the only holder of the class for which an identity may beat; false if there is
// none. With Reviewed, there is none.
func (b *Binding) HolderOf(i *Identity) (name string, bound bool) {
	switch b.rule.Type {
	case RuleNode:
		name, bound = b.nodeOf(i)
	case RuleNameTemplate:
		name, bound = b.template.render(i)
	}
	return name, bound && name != ""
}

func (b *Binding) nodeOf(i *Identity) (name string, bound bool) {
	if name, found := strings.CutPrefix(i.User, nodeUserPrefix); found {
		return name, slices.Contains(i.Groups, nodesGroup)
	}
	return i.Node, slices.Contains(b.agents, i.User)
}

// Wanted describes the identity that may beat for a holder.
func (b *Binding) Wanted(holder string) string {
	switch b.rule.Type {
	case RuleNode:
		text := fmt.Sprintf("user %q in group %q", nodeUserPrefix+holder, nodesGroup)
		if len(b.agents) > 0 {
			text += fmt.Sprintf(", or a token of %s that is bound to a pod on that node", strings.Join(b.agents, " or "))
		}
		return text
	case RuleNameTemplate:
		return fmt.Sprintf("the identity whose %s is %q", b.rule.NameTemplate, holder)
	case RuleAccessReview:
		return "an identity that kube-apiserver allows to update the holders of the class"
	}
	return "no identity: the class has no holderRule"
}

// placeholders are what a template may contain, with whether their values may contain dots.
var placeholders = map[string]bool{"user": true, "namespace": false, "serviceaccount": true, "pod": true}

// template makes the name of a holder from an identity: parts are literal texts and placeholders in
// turn, beginning with a literal text, which may be empty.
type template struct{ parts []string }

// parseTemplate refuses a template with which two identities could have one name: it must hold all
// that distinguishes them, and it must be clear where each value begins and ends. A namespace has
// no dots. So between dots there is one placeholder at most, and one placeholder of the template
// may have values with dots.
func parseTemplate(text string) (template, error) {
	var t template
	seen, dotted, inLabel := map[string]bool{}, 0, false
	for rest := text; ; {
		literal, after, more := strings.Cut(rest, "{")
		if strings.Trim(literal, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" {
			return t, fmt.Errorf("nameTemplate %q: %q must be of a-z, 0-9, '-' and '.' only", text, literal)
		}
		t.parts = append(t.parts, literal)
		if !more {
			break
		}
		name, behind, closed := strings.Cut(after, "}")
		hasDots, known := placeholders[name]
		inLabel = inLabel && !strings.Contains(literal, ".")
		switch {
		case !closed || !known:
			return t, fmt.Errorf("nameTemplate %q: a placeholder must be {user}, {namespace}, {serviceaccount} or {pod}", text)
		case seen[name]:
			return t, fmt.Errorf("nameTemplate %q: {%s} is there twice", text, name)
		case inLabel:
			return t, fmt.Errorf("nameTemplate %q: a dot must separate {%s} from the placeholder before it, or two identities could have one name", text, name)
		}
		if hasDots {
			dotted++
		}
		seen[name], inLabel, rest = true, true, behind
		t.parts = append(t.parts, name)
	}
	switch {
	case dotted > 1:
		return t, fmt.Errorf("nameTemplate %q: only one of {user}, {serviceaccount} and {pod} may be in it, because their values may have dots", text)
	case !seen["user"] && (!seen["namespace"] || dotted != 1):
		return t, errors.New("nameTemplate must have {user}, or {namespace} and one of {serviceaccount} and {pod}: else identities share a name")
	}
	return t, nil
}

// render returns the name for an identity; false if the identity lacks a value.
func (t template) render(i *Identity) (name string, ok bool) {
	namespace, account, isAccount := i.serviceAccount()
	var b strings.Builder
	for n, part := range t.parts {
		value := part
		if n%2 == 1 {
			switch part {
			case "user":
				value = i.User
			case "pod":
				value = i.Pod
			case "namespace":
				value = namespace
			case "serviceaccount":
				value = account
			}
			if value == "" || part != "user" && !isAccount {
				return "", false
			}
		}
		b.WriteString(value)
	}
	return b.String(), len(t.parts) > 1
}
