package class

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestBinding_ANodeIsBoundToItsName(t *testing.T) {
	b := newBinding(HolderRule{Type: RuleNode}, []string{"trivet-system/trivet-agent"})
	const agent = "system:serviceaccount:trivet-system:trivet-agent"
	for name, c := range map[string]struct {
		identity Identity
		want     string
	}{
		"kubelet":                          {Identity{User: "system:node:n1", Groups: []string{"system:nodes", "system:authenticated"}}, "n1"},
		"kubelet with a dot":               {Identity{User: "system:node:n1.example.org", Groups: []string{"system:nodes"}}, "n1.example.org"},
		"not in the group":                 {Identity{User: "system:node:n1", Groups: []string{"system:authenticated"}}, ""},
		"only the group":                   {Identity{User: "n1", Groups: []string{"system:nodes"}}, ""},
		"no name":                          {Identity{User: "system:node:", Groups: []string{"system:nodes"}}, ""},
		"token of the agent":               {Identity{User: agent, Node: "n1"}, "n1"},
		"token of no node":                 {Identity{User: agent}, ""},
		"another account":                  {Identity{User: "system:serviceaccount:trivet-system:other", Node: "n1"}, ""},
		"another namespace":                {Identity{User: "system:serviceaccount:default:trivet-agent", Node: "n1"}, ""},
		"a node with the extra of another": {Identity{User: "system:node:n2", Groups: []string{"system:nodes"}, Node: "n1"}, "n2"},
		"administrator":                    {Identity{User: "admin", Groups: []string{"system:masters"}}, ""},
	} {
		if got, bound := b.HolderOf(&c.identity); bound != (c.want != "") || bound && got != c.want {
			t.Errorf("%s: HolderOf = %q, %t; want %q", name, got, bound, c.want)
		}
	}
	if got, bound := newBindingOf(RuleNode).HolderOf(&Identity{User: agent, Node: "n1"}); bound {
		t.Errorf("without an agent's account, a token is bound to %q", got)
	}
}

func newBindingOf(rule RuleType) *Binding {
	b := newBinding(HolderRule{Type: rule}, nil)
	return &b
}

func TestBinding_RefusesByDefault(t *testing.T) {
	for _, rule := range []RuleType{RuleNone, RuleAccessReview, "unknown"} {
		for _, identity := range []Identity{
			{}, {User: "system:node:n1", Groups: []string{"system:nodes"}}, {User: "system:serviceaccount:a:b", Node: "n1", Pod: "p"},
		} {
			if name, bound := newBindingOf(rule).HolderOf(&identity); bound {
				t.Errorf("rule %q binds %+v to %q", rule, identity, name)
			}
		}
	}
}

func TestBinding_ATemplateMakesTheName(t *testing.T) {
	for _, c := range []struct {
		template string
		identity Identity
		want     string
	}{
		{"{namespace}.{serviceaccount}", Identity{User: "system:serviceaccount:a:b.c"}, "a.b.c"},
		{"x-{serviceaccount}.in.{namespace}", Identity{User: "system:serviceaccount:a:b.c"}, "x-b.c.in.a"},
		{"{namespace}.{pod}", Identity{User: "system:serviceaccount:a:b", Pod: "p-0"}, "a.p-0"},
		{"{namespace}.{pod}", Identity{User: "system:serviceaccount:a:b"}, ""},
		{"{namespace}.{pod}", Identity{User: "alice", Pod: "p-0"}, ""},
		{"{user}", Identity{User: "rack-7"}, "rack-7"},
		{"{namespace}.{serviceaccount}", Identity{User: "rack-7"}, ""},
		{"{namespace}.{serviceaccount}", Identity{User: "system:serviceaccount:a.b:c"}, ""}, // else it would be that of a:b.c
		{"{namespace}.{serviceaccount}", Identity{User: "system:serviceaccount::c"}, ""},
		{"{namespace}.{serviceaccount}", Identity{User: "system:serviceaccount:a:b:c"}, ""},
	} {
		b := newBinding(HolderRule{Type: RuleNameTemplate, NameTemplate: c.template}, nil)
		if got, bound := b.HolderOf(&c.identity); bound != (c.want != "") || got != c.want {
			t.Errorf("%s of %+v is %q, %t; want %q", c.template, c.identity, got, bound, c.want)
		}
	}
}

func TestHolderRule_RefusesWhatDoesNotBind(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "must have {user}",
		"fixed":                                "must have {user}",
		"{serviceaccount}":                     "must have {user}",
		"{namespace}":                          "must have {user}",
		"{namespace}-{serviceaccount}":         "a dot must separate",
		"{namespace}{serviceaccount}":          "a dot must separate",
		"{namespace}.{serviceaccount}.{pod}":   "only one of",
		"{user}.{pod}":                         "only one of",
		"{namespace}.{namespace}":              "is there twice",
		"{namespace}.{node}":                   "a placeholder must be",
		"{namespace}.{pod":                     "a placeholder must be",
		"{namespace}:{serviceaccount}":         "must be of a-z",
		"{Namespace}.{serviceaccount}":         "a placeholder must be",
		"{namespace}.{serviceaccount}}":        "must be of a-z",
		"{namespace}.{serviceaccount}.X{user}": "must be of a-z",
	} {
		err := HolderRule{Type: RuleNameTemplate, NameTemplate: text}.Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one that says %q", text, err, want)
		}
	}
	for _, r := range []HolderRule{{Type: "node"}, {Type: RuleNode, NameTemplate: "{user}"}, {NameTemplate: "{user}"}} {
		if r.Validate() == nil {
			t.Errorf("%+v is accepted", r)
		}
	}
}

// Whatever template is accepted, two identities never have one name.
func TestHolderRule_AnAcceptedTemplateIsInjective(t *testing.T) {
	pieces := []string{"{user}", "{namespace}", "{serviceaccount}", "{pod}", ".", "-", "a", "a.", ".a", "-."}
	label := rapid.StringMatching(`[ab](-?[ab]){0,1}`)
	subdomain := rapid.StringMatching(`[ab](-?[ab]){0,1}(\.[ab](-?[ab]){0,1}){0,2}`)
	accepted := 0
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 1, 6).Draw(t, "template"), "")
		if rapid.Bool().Draw(t, "valid") {
			text = rapid.SampledFrom([]string{"{namespace}.{serviceaccount}", "{pod}.{namespace}", "{namespace}.a-{pod}", "a{user}"}).Draw(t, "known")
		}
		parsed, err := parseTemplate(text)
		if err != nil {
			return
		}
		accepted++
		draw := func(of string) (Identity, string) {
			i := Identity{
				User: "system:serviceaccount:" + label.Draw(t, of+" namespace") + ":" + subdomain.Draw(t, of+" account"),
				Pod:  subdomain.Draw(t, of+" pod"),
			}
			name, ok := parsed.render(&i)
			if !ok {
				t.Fatalf("%s has no name for %+v", text, i)
			}
			// What the template distinguishes.
			values := []string{}
			namespace, account, _ := i.serviceAccount()
			for placeholder, value := range map[string]string{"user": i.User, "pod": i.Pod, "namespace": namespace, "serviceaccount": account} {
				if strings.Contains(text, "{"+placeholder+"}") {
					values = append(values, placeholder+"="+value)
				}
			}
			return i, name + " " + strings.Join(slices.Sorted(slices.Values(values)), " ")
		}
		first, a := draw("first")
		second, b := draw("second")
		nameA, valuesA, _ := strings.Cut(a, " ")
		nameB, valuesB, _ := strings.Cut(b, " ")
		if nameA == nameB && valuesA != valuesB {
			t.Fatalf("%s gives %+v and %+v the name %s", text, first, second, nameA)
		}
	})
	if accepted == 0 {
		t.Error("no template was accepted")
	}
}
