package mirroring

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// observation is what is seen of a namespace at rest. Names, UIDs, versions and the order of
// endpoints and ports are left out or replaced.
type observation struct {
	// writes and events are those of the controller. deprecations are the Events that name the
	// writers of Endpoints objects.
	writes, events, deprecations string
	// slices has the fields of each slice, by its title.
	slices map[string]map[string]string
}

// String has one field a line.
func (o observation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "  writes: %s\n", o.writes)
	if o.events != "" {
		fmt.Fprintf(&b, "  events: %s\n", o.events)
	}
	for _, title := range slices.Sorted(maps.Keys(o.slices)) {
		fmt.Fprintf(&b, "  %s: %s\n", title, joined(o.slices[title]))
	}
	return b.String()
}

// joined has the fields in one line; empty for a slice that is missing.
func joined(fields map[string]string) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		words = append(words, name+" "+fields[name])
	}
	return strings.Join(words, " | ")
}

// memory is what an observation needs to know of earlier ones.
type memory struct {
	firstSeen map[types.UID]string // the step in which each slice was seen first
}

// observe reads a namespace. Writes are those since then.
func (s *side) observe(ctx context.Context, namespace, step string, since time.Time, m *memory) (observation, error) {
	list, err := s.kube.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return observation{}, err
	}
	owners, err := s.kube.CoreV1().Endpoints(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return observation{}, err
	}
	events, err := s.kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return observation{}, err
	}
	writes, err := s.audit.in(namespace, since)
	if err != nil {
		return observation{}, err
	}
	o := observation{writes: summary(writes), slices: map[string]map[string]string{}}
	o.events, o.deprecations = eventsSeen(events.Items)
	live := map[types.UID]string{}
	for _, e := range owners.Items {
		live[e.UID] = e.Name
	}
	type entry struct {
		title  string
		fields map[string]string
	}
	var entries []entry
	for i := range list.Items {
		slice := &list.Items[i]
		since, known := m.firstSeen[slice.UID]
		if !known {
			since = step
		}
		fields := fieldsOf(slice, live)
		fields["since"] = since
		entries = append(entries, entry{title: titleOf(slice), fields: fields})
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.title, b.title), cmp.Compare(a.fields["endpoints"], b.fields["endpoints"]), cmp.Compare(a.fields["since"], b.fields["since"]))
	})
	same := map[string]int{}
	for _, e := range entries {
		same[e.title]++
		title := e.title
		if n := same[title]; n > 1 {
			title += fmt.Sprintf(" (%d)", n)
		}
		maps.DeleteFunc(e.fields, func(_, value string) bool { return value == "" })
		o.slices[title] = e.fields
	}
	return o, nil
}

// remember takes in which slices there are at the end of a step.
func (s *side) remember(ctx context.Context, namespace, step string, m *memory) error {
	list, err := s.kube.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, slice := range list.Items {
		if _, known := m.firstSeen[slice.UID]; !known {
			m.firstSeen[slice.UID] = step
		}
	}
	return nil
}

// titleOf names a slice by what distinguishes it from the others of its Service.
func titleOf(slice *discoveryv1.EndpointSlice) string {
	var all []string
	for _, p := range slice.Ports {
		text := fmt.Sprintf("%s=%s/%s", value(p.Name), number(p.Port), value(p.Protocol))
		if p.AppProtocol != nil {
			text += "/" + *p.AppProtocol
		}
		if p.Name == nil {
			text = "nameless " + text
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return fmt.Sprintf("%s %s [%s]", cmp.Or(slice.Labels[discoveryv1.LabelServiceName], "(no service)"), slice.AddressType, strings.Join(all, " "))
}

func number(p *int32) string {
	if p == nil {
		return "any"
	}
	return fmt.Sprint(*p)
}

func value[T ~string](p *T) T {
	if p == nil {
		return ""
	}
	return *p
}

// fieldsOf describes a slice. live are the names of the Endpoints objects, by UID.
func fieldsOf(slice *discoveryv1.EndpointSlice, live map[types.UID]string) map[string]string {
	var owners []string
	for _, owner := range slice.OwnerReferences {
		text := owner.APIVersion + " " + owner.Kind + " " + owner.Name
		if owner.Kind == "Endpoints" && live[owner.UID] != owner.Name {
			text += " of another UID"
		}
		if owner.Controller != nil && *owner.Controller {
			text += " controller"
		}
		if owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion {
			text += " blocks"
		}
		owners = append(owners, text)
	}
	fields := map[string]string{
		"endpoints":   endpointsSeen(slice.Endpoints),
		"labels":      textOf(slice.Labels),
		"annotations": textOf(slice.Annotations),
		"owners":      strings.Join(owners, ", "),
		"finalizers":  strings.Join(slice.Finalizers, ", "),
	}
	if slice.DeletionTimestamp != nil {
		fields["deletion"] = "requested"
	}
	return fields
}

func textOf(m map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, key+"="+m[key])
	}
	return strings.Join(all, " ")
}

// endpointsSeen lists endpoints, those with equal attributes together.
func endpointsSeen(all []discoveryv1.Endpoint) string {
	if len(all) == 0 {
		return "none"
	}
	groups := map[string][]string{}
	for _, e := range all {
		groups[attributesOf(e)] = append(groups[attributesOf(e)], strings.Join(e.Addresses, "+"))
	}
	var texts []string
	for _, attributes := range slices.Sorted(maps.Keys(groups)) {
		group := groups[attributes]
		slices.Sort(group)
		text := strings.Join(group, " ")
		const listed = 20
		if len(group) > listed {
			text = fmt.Sprintf("%d from %s to %s (%.4x)", len(group), group[0], group[len(group)-1], sha256.Sum256([]byte(text)))
		}
		texts = append(texts, text+" "+attributes)
	}
	text := strings.Join(texts, "; ")
	const longest = 2000
	if len(text) > longest {
		text = fmt.Sprintf("%d groups from %s to %s (%.4x)", len(texts), texts[0], texts[len(texts)-1], sha256.Sum256([]byte(text)))
	}
	return text
}

func attributesOf(e discoveryv1.Endpoint) string {
	words := []string{}
	add := func(name string, is *bool) {
		if is != nil {
			words = append(words, fmt.Sprintf("%s=%v", name, *is))
		}
	}
	set := func(name, value string) {
		if value != "" {
			words = append(words, name+"="+value)
		}
	}
	add("ready", e.Conditions.Ready)
	add("serving", e.Conditions.Serving)
	add("terminating", e.Conditions.Terminating)
	set("hostname", value(e.Hostname))
	set("node", value(e.NodeName))
	set("zone", value(e.Zone))
	if e.Hints != nil {
		words = append(words, fmt.Sprintf("hints=%v", e.Hints.ForZones))
	}
	if ref := e.TargetRef; ref != nil {
		words = append(words, fmt.Sprintf("target=%s/%s/%s uid=%s", ref.Kind, ref.Namespace, ref.Name, ref.UID))
		set("version", ref.ResourceVersion)
		set("path", ref.FieldPath)
	}
	return strings.Join(words, " ")
}

// eventsSeen lists the different Events of Endpoints objects once: how often an Event comes depends
// on the number of syncs. Their texts are each controller's own, but for the number of addresses.
func eventsSeen(events []corev1.Event) (usual, deprecations string) {
	const episodes = 3 // how often a case begins to mirror one object, at most
	seen, named := map[string]bool{}, map[string]bool{}
	for _, e := range events {
		if e.InvolvedObject.Kind != "Endpoints" {
			continue // kube-apiserver has Events of its own
		}
		text := fmt.Sprintf("%s %s on %s from %s", e.Type, e.Reason, e.InvolvedObject.Name, e.Source.Component)
		if e.Reason == "EndpointsMirrored" && e.Count <= episodes && strings.Contains(e.Message, testAgent) {
			named[text] = true
			continue
		}
		seen[text+": "+strings.TrimRight(countOf.FindString(e.Message), "abcdefghijklmnopqrstuvwxyz ")] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), ", "), strings.Join(slices.Sorted(maps.Keys(named)), ", ")
}

// countOf finds the number of addresses in the text of an Event.
var countOf = regexp.MustCompile(`\d+ (invalid|addresses (were|are))`)
