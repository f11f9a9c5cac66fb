package pack

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// MirrorRules has the rules for the slices of an Endpoints object. They differ from those of a
// Service:
//
//   - The slices have annotations of the Endpoints object.
//   - A group has as few slices as the limit allows, and a family without endpoints has none.
//   - A slice with another owner is taken over instead of replaced.
//   - Hints of endpoints belong to other writers.
type MirrorRules struct {
	// Annotations are the annotations of the slices.
	Annotations map[string]string
	// Managers are the field managers that write the annotations. An annotation that Annotations
	// lacks is removed if one of them set it. It stays if another field manager set it, or if that
	// is not known.
	Managers []string
}

// ClearMirrored plans to delete mirrored slices: there is no Endpoints object, or it is not
// mirrored any more. As upstream has it, the owners of the slices do not count.
func ClearMirrored(existing []*discoveryv1.EndpointSlice) Plan {
	var all drafts
	for _, slice := range sorted(existing) {
		all.drop(slice, NotMirrored)
	}
	return (&planner{}).render(all)
}

// annotations returns the next annotations of a slice; existing is nil for a new slice, and current
// is a copy of its annotations.
func (m *MirrorRules) annotations(existing *discoveryv1.EndpointSlice, current map[string]string) map[string]string {
	if existing == nil {
		return maps.Clone(m.Annotations)
	}
	delete(current, corev1.EndpointsLastChangeTriggerTime)
	for _, key := range m.staleAnnotations(existing) {
		delete(current, key)
	}
	if current == nil {
		return maps.Clone(m.Annotations)
	}
	maps.Copy(current, m.Annotations)
	if sizeOf(current) > maxAnnotationsSize {
		return maps.Clone(m.Annotations) // those of other writers must not keep old endpoints in the slice
	}
	return current
}

// maxAnnotationsSize is the size of the annotations that kube-apiserver accepts for an object.
const maxAnnotationsSize = 256 << 10

func sizeOf(annotations map[string]string) int {
	size := 0
	for key, value := range annotations {
		size += len(key) + len(value)
	}
	return size
}

// annotationsDiffer reports whether a slice lacks an annotation or has a stale one.
func (m *MirrorRules) annotationsDiffer(slice *discoveryv1.EndpointSlice) bool {
	for key, value := range m.Annotations {
		if has, ok := slice.Annotations[key]; !ok || has != value {
			return true
		}
	}
	return len(slice.Annotations) > len(m.Annotations) && len(m.staleAnnotations(slice)) > 0
}

// staleAnnotations returns the annotations of a slice that one of the managers set and the
// Endpoints object does not have any more.
func (m *MirrorRules) staleAnnotations(slice *discoveryv1.EndpointSlice) []string {
	var stale []string
	var set map[string]struct{}
	for key := range slice.Annotations {
		if _, wanted := m.Annotations[key]; wanted || key == corev1.EndpointsLastChangeTriggerTime || key == TookEndpoints {
			continue
		}
		if set == nil {
			set = annotationsSetBy(slice.ManagedFields, m.Managers)
		}
		if _, ours := set[key]; ours {
			stale = append(stale, key)
		}
	}
	return stale
}

// annotationFields is the part of a field set that has the annotations of an object. The name of
// each field has the prefix "f:".
type annotationFields struct {
	Metadata struct {
		Annotations map[string]json.RawMessage `json:"f:annotations,omitempty"`
	} `json:"f:metadata"`
}

// annotationsSetBy returns the annotations that belong to one of the field managers.
func annotationsSetBy(fields []metav1.ManagedFieldsEntry, managers []string) map[string]struct{} {
	set := map[string]struct{}{}
	for _, entry := range fields {
		for key := range annotationFieldsOf(entry, managers).Metadata.Annotations {
			if name, ok := strings.CutPrefix(key, "f:"); ok {
				set[name] = struct{}{}
			}
		}
	}
	return set
}

// annotationFieldsOf returns the annotations of an entry of one of the field managers; none if the
// entry cannot be read.
func annotationFieldsOf(entry metav1.ManagedFieldsEntry, managers []string) (fields annotationFields) {
	if entry.FieldsV1 == nil || !slices.Contains(managers, entry.Manager) {
		return annotationFields{}
	}
	raw := entry.FieldsV1.GetRawBytes()
	if !bytes.Contains(raw, []byte("f:annotations")) || json.Unmarshal(raw, &fields) != nil {
		return annotationFields{}
	}
	return fields
}

// AnnotationFields returns, of the managed fields of a slice, the annotations that belong to one of
// the field managers. A plan needs no more of the managed fields. The result is not for
// kube-apiserver: its entries have no fieldsType and no time.
func AnnotationFields(fields []metav1.ManagedFieldsEntry, managers []string) []metav1.ManagedFieldsEntry {
	var kept []metav1.ManagedFieldsEntry
	for _, entry := range fields {
		annotations := annotationFieldsOf(entry, managers)
		if len(annotations.Metadata.Annotations) == 0 {
			continue
		}
		raw, err := json.Marshal(annotations)
		if err != nil {
			continue
		}
		reduced := &metav1.FieldsV1{}
		reduced.SetRawBytes(raw)
		kept = append(kept, metav1.ManagedFieldsEntry{Manager: entry.Manager, Operation: entry.Operation, FieldsV1: reduced})
	}
	return kept
}

// references returns the owners of a slice with this one. An earlier object of the same kind and
// name goes; further owners stay. A slice has at most one controller: if that is another object,
// this one is a plain owner.
func (o Owner) references(existing []metav1.OwnerReference) []metav1.OwnerReference {
	var kept []metav1.OwnerReference
	controlled := false
	for _, owner := range existing {
		if owner.Kind == o.kind() && owner.APIVersion == "v1" {
			if owner.UID == o.Object.UID {
				return existing
			}
			if owner.Name == o.Object.Name {
				continue
			}
		}
		controlled = controlled || (owner.Controller != nil && *owner.Controller)
		kept = append(kept, owner)
	}
	own := o.reference()
	if controlled {
		own.Controller = nil
	}
	return append(kept, own)
}

// splitSurplus returns the slices of a group that stay, in their order, and those that are more
// than the endpoints need. The slices with the most wanted endpoints stay, and of equal ones those
// that need no write. A Service has no surplus.
func (p *planner) splitSurplus(existing []*discoveryv1.EndpointSlice, wanted *pool) (staying, surplus []*discoveryv1.EndpointSlice) {
	needed := p.needed(wanted.endpoints)
	if p.Owner.Mirror == nil || len(existing) <= needed {
		return existing, nil
	}
	type candidate struct {
		slice  *discoveryv1.EndpointSlice
		wanted int
		clean  bool
	}
	ranked := make([]candidate, 0, len(existing))
	for _, slice := range existing {
		count, clean := wanted.countIn(slice)
		ranked = append(ranked, candidate{slice: slice, wanted: count, clean: clean && p.metadataChange(slice) == ""})
	}
	slices.SortStableFunc(ranked, func(a, b candidate) int {
		switch {
		case a.wanted != b.wanted:
			return cmp.Compare(b.wanted, a.wanted)
		case a.clean == b.clean:
			return 0
		case a.clean:
			return -1
		default:
			return 1
		}
	})
	for i := range ranked {
		if i < needed {
			staying = append(staying, ranked[i].slice)
		} else {
			surplus = append(surplus, ranked[i].slice)
		}
	}
	slices.SortFunc(staying, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	return staying, surplus
}

// needed returns how many slices the endpoints of a group fill.
func (p *planner) needed(endpoints []desired.Endpoint) int {
	return (len(endpoints) + p.Limit - 1) / p.Limit
}

// countIn returns how many wanted endpoints a slice has, each counted once, and whether it has
// nothing else: no other endpoint, and none that differs.
func (p *pool) countIn(slice *discoveryv1.EndpointSlice) (count int, clean bool) {
	clean = true
	counted := make(map[int]struct{}, len(slice.Endpoints))
	for i := range slice.Endpoints {
		found, exact := desired.FromObject(&slice.Endpoints[i])
		at, wanted := p.byIdentity[found.Identity]
		if !wanted {
			clean = false
			continue
		}
		clean = clean && exact && p.endpoints[at].SameMirrored(found)
		counted[at] = struct{}{}
	}
	return len(counted), clean && len(counted) == len(slice.Endpoints)
}

// dropSurplus deletes slices of a group. wanted tells which of their endpoints are wanted, and
// which of these are in no other slice yet.
func (d *drafts) dropSurplus(surplus []*discoveryv1.EndpointSlice, wanted *pool) {
	for _, slice := range surplus {
		reason, duplicate := Emptied, true
		for i := range slice.Endpoints {
			endpoint, _ := desired.FromObject(&slice.Endpoints[i])
			if at, ok := wanted.byIdentity[endpoint.Identity]; ok {
				reason, duplicate = Compacted, duplicate && wanted.placed[at]
			}
		}
		d.drop(slice, reason)
		d.delete[len(d.delete)-1].duplicate = duplicate
	}
}

// dropEmptied deletes the slices that are written and have no endpoint. Before, fill may put other
// endpoints of the group into them, so that a set of ports keeps its slice.
func (d *drafts) dropEmptied() {
	d.update = slices.DeleteFunc(d.update, func(emptied *draft) bool {
		if len(emptied.endpoints) > 0 {
			return false
		}
		d.drop(emptied.from, Emptied)
		return true
	})
}

// fill puts the endpoints of a group into as few slices as there can be, with as few writes: into
// slices that are written anyway, into new slices as far as these are needed in any case, and into
// unchanged slices.
func (p *placer) fill(rest []desired.Endpoint) (created, opened []*draft) {
	for _, draft := range p.fullestFirst() {
		rest = draft.take(rest, p.Limit)
	}
	unchanged := slices.Clone(p.unchanged)
	forNew := max(p.needed(p.group.Endpoints)-len(p.written)-len(unchanged), 0) * p.Limit
	for len(rest) > forNew && len(unchanged) > 0 {
		best := p.tightestFor(unchanged, len(rest)-forNew)
		unchanged = slices.DeleteFunc(unchanged, func(d *draft) bool { return d == best })
		rest = best.take(rest, p.Limit)
		if best.touched() {
			opened = append(opened, best)
		}
	}
	for len(rest) > 0 {
		next := &draft{addressType: p.addressType, ports: p.group.Ports, key: p.group.Key, reason: NewEndpoints}
		rest = next.take(rest, p.Limit)
		created = append(created, next)
	}
	return created, opened
}

// tightestFor returns the slice with the least free capacity that can take n endpoints, or if none
// can, the slice with the most.
func (p *placer) tightestFor(among []*draft, n int) *draft {
	return slices.MinFunc(among, func(a, b *draft) int {
		fitsA, fitsB := p.free(a) >= n, p.free(b) >= n
		switch {
		case fitsA && fitsB:
			return cmp.Compare(p.free(a), p.free(b))
		case fitsA:
			return -1
		case fitsB:
			return 1
		default:
			return cmp.Compare(p.free(b), p.free(a))
		}
	})
}
