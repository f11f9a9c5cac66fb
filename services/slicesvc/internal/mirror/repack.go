package mirror

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// repackedEndpoints are the subsets of an Endpoints object in the form in which upstream mirrors
// them: each port has its set of addresses, and the ports with equal sets form one subset.
type repackedEndpoints struct {
	// addresses are in the order of their text and the UIDs of their targets.
	addresses []address
	// mayRepeat tells that several addresses may have the same IP.
	mayRepeat bool
	subsets   []subset
	// skipped counts the addresses of the ports that are left out because of maxWork or maxGroups.
	skipped int
}

// address is the first copy of an address that subsets may repeat.
type address struct {
	*corev1.EndpointAddress
	// canonical is empty if the address is invalid.
	canonical string
	family    int
}

type subset struct {
	// ports are sorted; none for addresses without ports.
	ports []port
	// portless tells that some of the original subsets have no ports.
	portless bool
	// entries are in the order in which they count for the limit: ready ones first, then in the
	// order of the addresses.
	entries []entry
}

// entry is an address of a repacked subset.
type entry struct {
	address int32
	ready   bool
	dropped dropped
}

// port is a port as a comparable value.
type port struct {
	name           string
	protocol       corev1.Protocol
	number         int32
	appProtocol    string
	hasAppProtocol bool
}

// maxWork is how many addresses are looked at, each once for each port set. It bounds the time for
// an Endpoints object whose ports have very many different sets of addresses.
const maxWork = 1_000_000

// repack returns the subsets in the form in which they are mirrored. Of several copies of an
// address, the first one in the order of subsets has the hostname, node and target. An address that
// is both ready and not ready for a port is not ready. The subsets are in the order of their first
// ports.
func repack(subsets []corev1.EndpointSubset) *repackedEndpoints {
	r := &repackedEndpoints{}
	members := r.collect(subsets)
	work, byEntries := 0, map[string]int{}
	var states []state
	portSets := portSetsOf(subsets)
	for _, of := range portSets {
		size := 0
		for _, i := range of.subsets {
			size += len(members[i])
		}
		if work += size; work > maxWork {
			r.skipped += size
			continue
		}
		if states == nil {
			states = make([]state, len(r.addresses))
		}
		entries := merged(of.subsets, members, states)
		if len(entries) == 0 {
			continue
		}
		key := ""
		if len(portSets) > 1 {
			key = entriesKey(entries)
		}
		if known, ok := byEntries[key]; ok {
			r.subsets[known].ports = append(r.subsets[known].ports, of.ports...)
			r.subsets[known].portless = r.subsets[known].portless || of.portless
			continue
		}
		byEntries[key] = len(r.subsets)
		r.subsets = append(r.subsets, subset{ports: of.ports, portless: of.portless, entries: entries})
	}
	for i := range r.subsets {
		slices.SortFunc(r.subsets[i].ports, comparePorts)
	}
	return r
}

// member is an address of an original subset.
type member struct {
	address int32
	ready   bool
}

// collect sets the addresses and returns the members of each subset.
func (r *repackedEndpoints) collect(subsets []corev1.EndpointSubset) [][]member {
	count := 0
	for i := range subsets {
		count += len(subsets[i].Addresses) + len(subsets[i].NotReadyAddresses)
	}
	r.addresses = make([]address, 0, count)
	known := make(map[addressKey]int32, count)
	members := make([][]member, len(subsets))
	for i := range subsets {
		members[i] = make([]member, 0, len(subsets[i].Addresses)+len(subsets[i].NotReadyAddresses))
		for ready, addresses := range readinessOf(&subsets[i]) {
			for j := range addresses {
				key := keyOf(&addresses[j])
				number, ok := known[key]
				if !ok {
					number = int32(len(r.addresses))
					known[key] = number
					r.addresses = append(r.addresses, newAddress(&addresses[j]))
				}
				members[i] = append(members[i], member{address: number, ready: ready})
			}
		}
	}
	r.sortAddresses(members)
	return members
}

// readinessOf yields the ready addresses of a subset and then the other ones.
func readinessOf(of *corev1.EndpointSubset) func(yield func(ready bool, addresses []corev1.EndpointAddress) bool) {
	return func(yield func(bool, []corev1.EndpointAddress) bool) {
		_ = yield(true, of.Addresses) && yield(false, of.NotReadyAddresses)
	}
}

// addressKey tells addresses apart. As upstream has it, the text of an address counts, so that
// "10.0.0.1" and "010.0.0.1" are two addresses until they meet in a slice.
type addressKey struct {
	text string
	uid  types.UID
}

func keyOf(of *corev1.EndpointAddress) addressKey {
	key := addressKey{text: of.IP}
	if of.TargetRef != nil {
		key.uid = of.TargetRef.UID
	}
	return key
}

func newAddress(of *corev1.EndpointAddress) address {
	canonical, addressType, ok := desired.ParseAddress(of.IP)
	if !ok {
		return address{EndpointAddress: of}
	}
	return address{EndpointAddress: of, canonical: canonical, family: slices.Index(addressTypes(), addressType)}
}

// addressTypes returns the families that are mirrored, in their order.
func addressTypes() []discoveryv1.AddressType {
	return []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
}

// sortAddresses sorts the addresses and renumbers the members.
func (r *repackedEndpoints) sortAddresses(members [][]member) {
	compare := func(a, b *address) int {
		left, right := keyOf(a.EndpointAddress), keyOf(b.EndpointAddress)
		return cmp.Or(cmp.Compare(left.text, right.text), cmp.Compare(left.uid, right.uid))
	}
	order := make([]int32, len(r.addresses))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return compare(&r.addresses[a], &r.addresses[b]) })
	ordered, numbers := make([]address, len(order)), make([]int32, len(order))
	for i, from := range order {
		ordered[i], numbers[from] = r.addresses[from], int32(i)
	}
	r.addresses = ordered
	for i := range ordered {
		r.mayRepeat = r.mayRepeat || ordered[i].IP != ordered[i].canonical || (i > 0 && ordered[i-1].IP == ordered[i].IP)
	}
	for i := range members {
		for j := range members[i] {
			members[i][j].address = numbers[members[i][j].address]
		}
	}
}

// portSet has the ports that the same original subsets have.
type portSet struct {
	ports    []port
	portless bool
	subsets  []int32
}

// portSetsOf returns the distinct ports of all subsets, in order. A subset without ports counts in
// one further set, whose ports are empty.
func portSetsOf(subsets []corev1.EndpointSubset) []portSet {
	byPort := map[port][]int32{}
	for i := range subsets {
		for number := range portsOf(&subsets[i]) {
			known := byPort[number]
			if len(known) == 0 || known[len(known)-1] != int32(i) {
				byPort[number] = append(known, int32(i))
			}
		}
	}
	var sets []portSet
	bySubsets := map[string]int{}
	var key []byte
	for _, of := range slices.SortedFunc(maps.Keys(byPort), comparePorts) {
		key = key[:0]
		for _, i := range byPort[of] {
			key = binary.AppendUvarint(key, uint64(i))
		}
		known, ok := bySubsets[string(key)]
		if !ok {
			known = len(sets)
			bySubsets[string(key)] = known
			sets = append(sets, portSet{subsets: byPort[of]})
		}
		if of == (port{}) {
			sets[known].portless = true
			continue
		}
		sets[known].ports = append(sets[known].ports, of)
	}
	return sets
}

// portsOf yields the ports of a subset, and the zero port if it has none. A port without a number,
// which only an old store has, is no port.
func portsOf(of *corev1.EndpointSubset) func(yield func(port) bool) {
	return func(yield func(port) bool) {
		if len(of.Ports) == 0 {
			yield(port{})
			return
		}
		for i := range of.Ports {
			if !yield(newPort(&of.Ports[i])) {
				return
			}
		}
	}
}

func newPort(of *corev1.EndpointPort) port {
	if of.Port <= 0 {
		return port{}
	}
	result := port{name: of.Name, protocol: cmp.Or(of.Protocol, corev1.ProtocolTCP), number: of.Port}
	if of.AppProtocol != nil {
		result.appProtocol, result.hasAppProtocol = *of.AppProtocol, true
	}
	return result
}

func comparePorts(a, b port) int {
	return cmp.Or(
		cmp.Compare(a.name, b.name),
		cmp.Compare(a.protocol, b.protocol),
		cmp.Compare(a.number, b.number),
		cmp.Compare(a.appProtocol, b.appProtocol),
		compareBools(a.hasAppProtocol, b.hasAppProtocol),
	)
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// state is what is known of an address while subsets are merged.
type state uint8

const (
	absent state = iota
	ready
	notReady
)

// merged returns the entries of several subsets. states has an absent state for each address, and
// is so again afterwards.
func merged(of []int32, members [][]member, states []state) []entry {
	var found []int32
	for _, i := range of {
		for _, m := range members[i] {
			if states[m.address] == absent {
				found = append(found, m.address)
				states[m.address] = ready
			}
			if !m.ready {
				states[m.address] = notReady
			}
		}
	}
	slices.Sort(found)
	entries := make([]entry, 0, len(found))
	for _, wanted := range []state{ready, notReady} {
		for _, number := range found {
			if states[number] == wanted {
				entries = append(entries, entry{address: number, ready: wanted == ready})
			}
		}
	}
	for _, number := range found {
		states[number] = absent
	}
	return entries
}

// entriesKey returns a text that equal entries have and no others.
func entriesKey(entries []entry) string {
	key := make([]byte, 0, 4*len(entries))
	for i := range entries {
		value := uint32(entries[i].address) << 1
		if entries[i].ready {
			value |= 1
		}
		key = binary.BigEndian.AppendUint32(key, value)
	}
	return string(key)
}
