package recording

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// rolesOf gives each name and address that differs in each run the same role in each run. Objects
// of one role are numbered by the step in which they appeared, then by Node, then in the order of
// their appearance, so that the numbers do not depend on which of two Pods is first.
func rolesOf(subjects []subject) map[string]string {
	ordered := slices.Clone(subjects)
	slices.SortStableFunc(ordered, func(a, b subject) int {
		return cmp.Or(cmp.Compare(a.role, b.role), cmp.Compare(a.step, b.step), cmp.Compare(a.node, b.node))
	})
	roles, count := map[string]string{}, map[string]int{}
	number := func(stem string) string {
		count[stem]++
		return fmt.Sprintf("%s-%d", stem, count[stem])
	}
	for _, s := range ordered {
		role := s.Name
		if s.role != "" {
			role = number(s.role)
			roles[s.Name] = role
		}
		if s.owner != "" && roles[s.owner] == "" {
			roles[s.owner] = number(s.role + "-replicas")
		}
		for _, address := range s.addresses {
			// A host-network Pod has its Node's address, and addresses may be used again: the first
			// one by number keeps it.
			if roles[address] == "" || s.Kind == KindNode {
				roles[address] = "(address of " + role + ")"
			}
		}
	}
	return roles
}

var (
	uid      = regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)
	longHash = regexp.MustCompile(`\b[0-9a-f]{32,}\b`)
	moment   = regexp.MustCompile(`\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( ?[+-]\d{4})?( ?[A-Z]{1,4}\b)?( m=[+-]?[\d.]+)?`)
	duration = regexp.MustCompile(`\b(\d+(\.\d+)?(h|ms|m|s|µs|us|ns))+\b`)
	// The volume of a Pod's token has a random name.
	volume = regexp.MustCompile(`\bkube-api-access-[a-z0-9]{5}\b`)
	// Whether a source combines events depends on how many came before.
	combined = regexp.MustCompile(`\(combined from similar events\): `)
	word     = regexp.MustCompile(`[0-9A-Za-z]([0-9A-Za-z.:-]*[0-9A-Za-z])?`)
)

// normalize replaces what differs in each run, and removes events that are the same after that.
func normalize(changes []Change, roles map[string]string) []Change {
	normal := make([]Change, 0, len(changes))
	events := map[Change]bool{}
	for _, c := range changes {
		c.Object, c.Field, c.Value = withRoles(c.Object, roles), withRoles(c.Field, roles), withRoles(c.Value, roles)
		if c.Kind == KindEvent {
			c.Value = anonymous(c.Value)
			same := c
			same.After = 0
			if events[same] {
				continue
			}
			events[same] = true
		}
		normal = append(normal, c)
	}
	return normal
}

func withRoles(text string, roles map[string]string) string {
	text = uid.ReplaceAllString(text, "(uid)")
	return word.ReplaceAllStringFunc(text, func(found string) string {
		if role, known := roles[found]; known {
			return role
		}
		if host, port, split := strings.Cut(found, ":"); split && roles[host] != "" {
			return roles[host] + ":" + port
		}
		return found
	})
}

func anonymous(text string) string {
	text = moment.ReplaceAllString(text, "(time)")
	text = volume.ReplaceAllString(text, "kube-api-access-(random)")
	text = combined.ReplaceAllString(text, "")
	text = longHash.ReplaceAllString(text, "(id)")
	return duration.ReplaceAllString(text, "(duration)")
}
