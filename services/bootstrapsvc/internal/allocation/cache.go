package allocation

import (
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/trivet-dev/trivet/internal/wording"
)

// cache holds the objects that an Index was given, indexed by what is compared.
type cache struct {
	stores    []Store
	expected  map[Store]string
	services  map[Key]*user
	addresses map[netip.Addr]*addressEntry
	ports     map[int32][]*user
	misnamed  map[string]*IPAddress // objects whose names are not addresses
	byParent  map[Key][]netip.Addr  // addresses by the Service that is their parent
	cidrs     map[string]CIDR
	prefixes  []cidrPrefix
	// unreadableCIDRs are the ServiceCIDRs with a prefix that cannot be parsed, ordered.
	unreadableCIDRs []string
	bitmaps         map[Store]*parsedBitmap
}

// addressEntry is an address with its users, the oldest first and ExternalName Services included,
// and its object.
type addressEntry struct {
	users  []*user
	object *IPAddress
}

// cidrPrefix is a prefix of a ServiceCIDR with the number of its allocated addresses.
type cidrPrefix struct {
	prefix netip.Prefix
	ready  bool
	// outermost reports that the prefix is ready and that no other ready one contains it. The
	// outermost prefixes are disjoint and hold every address that can be allocated.
	outermost bool
	allocated int64
}

func newCache(settings Settings) cache {
	c := cache{
		expected:  maps.Clone(settings.Ranges),
		services:  map[Key]*user{},
		addresses: map[netip.Addr]*addressEntry{},
		ports:     map[int32][]*user{},
		misnamed:  map[string]*IPAddress{},
		byParent:  map[Key][]netip.Addr{},
		cidrs:     map[string]CIDR{},
		bitmaps:   map[Store]*parsedBitmap{},
	}
	for _, store := range Stores() {
		if slices.Contains(settings.Stores, store) {
			c.stores = append(c.stores, store)
		}
	}
	return c
}

func (c *cache) has(store Store) bool { return slices.Contains(c.stores, store) }

// serviceStore returns the store whose findings report invalid addresses of Services. If the
// cluster has both IPAddress objects and a bitmap, only one of them reports.
func (c *cache) serviceStore() Store {
	if c.has(ClusterIPs) && !c.has(IPAddresses) {
		return ClusterIPs
	}
	return IPAddresses
}

func (c *cache) address(address netip.Addr) *addressEntry {
	found := c.addresses[address]
	if found == nil {
		found = &addressEntry{}
		c.addresses[address] = found
	}
	return found
}

func (c *cache) dropEmpty(address netip.Addr) {
	if found := c.addresses[address]; found != nil && found.object == nil && len(found.users) == 0 {
		delete(c.addresses, address)
	}
}

func (c *cache) addChild(a *IPAddress, address netip.Addr) {
	if a.Parent.IsService() {
		c.byParent[a.Parent.Key()] = append(c.byParent[a.Parent.Key()], address)
	}
}

func (c *cache) removeChild(a *IPAddress, address netip.Addr) {
	if !a.Parent.IsService() {
		return
	}
	key := a.Parent.Key()
	left := slices.DeleteFunc(c.byParent[key], func(other netip.Addr) bool { return other == address })
	if len(left) == 0 {
		delete(c.byParent, key)
		return
	}
	c.byParent[key] = left
}

func (c *cache) countAllocated(address netip.Addr, change int64) {
	for i := range c.prefixes {
		if allocatable(c.prefixes[i].prefix, address) {
			c.prefixes[i].allocated += change
		}
	}
}

// readCIDRs parses all ServiceCIDRs again and counts the allocated addresses of each prefix.
func (c *cache) readCIDRs() {
	c.prefixes, c.unreadableCIDRs = nil, nil
	for _, name := range slices.Sorted(maps.Keys(c.cidrs)) {
		cidr := c.cidrs[name]
		for _, text := range cidr.Prefixes {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				c.unreadableCIDRs = append(c.unreadableCIDRs, name)
				continue
			}
			c.addPrefix(cidrPrefix{prefix: prefix.Masked(), ready: cidr.Ready})
		}
	}
	c.unreadableCIDRs = slices.Compact(c.unreadableCIDRs)
	for i, p := range c.prefixes {
		c.prefixes[i].outermost = p.ready && !slices.ContainsFunc(c.prefixes, func(other cidrPrefix) bool {
			return other.ready && other.prefix.Bits() < p.prefix.Bits() && other.prefix.Contains(p.prefix.Addr())
		})
	}
	for address, found := range c.addresses {
		if found.object != nil {
			c.countAllocated(address, 1)
		}
	}
}

func (c *cache) addPrefix(added cidrPrefix) {
	for i := range c.prefixes {
		if c.prefixes[i].prefix == added.prefix {
			c.prefixes[i].ready = c.prefixes[i].ready || added.ready
			return
		}
	}
	c.prefixes = append(c.prefixes, added)
}

// inRange reports whether a ServiceCIDR contains an address, and whether that is known.
func (c *cache) inRange(address netip.Addr) (inside, known bool) {
	for _, p := range c.prefixes {
		if allocatable(p.prefix, address) {
			return true, true
		}
	}
	return false, len(c.prefixes) > 0 && len(c.unreadableCIDRs) == 0
}

// isFull reports whether every ready prefix of a family is fully allocated, and how many addresses
// these have.
func (c *cache) isFull(family string) (bool, int64) {
	var allocated int64
	ready := false
	for _, one := range c.countPrefixes() {
		if one.Family != family {
			continue
		}
		if one.Allocated < one.Capacity {
			return false, 0
		}
		ready = true
		allocated += one.Allocated
	}
	return ready, allocated
}

// countPrefixes counts each address that can be allocated in one prefix.
func (c *cache) countPrefixes() []RangeCount {
	var counts []RangeCount
	for _, p := range c.prefixes {
		if p.outermost {
			counts = append(counts, RangeCount{
				Range: p.prefix.String(), Family: familyOf(p.prefix.Addr()), Allocated: p.allocated, Capacity: capacityOf(p.prefix),
			})
		}
	}
	return counts
}

// StoreState describes one store.
type StoreState struct {
	Store Store
	// Present reports whether the cluster has the store.
	Present bool
	// Ranges are the stored ranges, ordered.
	Ranges []string
	// Counts are of the ranges from which kube-apiserver allocates. No range lies in another one.
	Counts []RangeCount
	// Services is the number of Services in the index.
	Services int64
	// Problem says why the store cannot be compared. It is empty if it can.
	Problem string
}

// RangeCount says how much of one range is allocated.
type RangeCount struct {
	// Range is the CIDR, or the range of ports.
	Range string
	// Family is FamilyIPv4 or FamilyIPv6, and empty for ports.
	Family string
	// Allocated is the number of allocations inside the range, whatever they are for. Capacity is
	// at most the largest int64.
	Allocated, Capacity int64
}

// Total returns how many addresses or ports of all ranges are allocated, and how many there are: at
// most the largest int64.
func (s StoreState) Total() (allocated, capacity int64) {
	for _, one := range s.Counts {
		allocated += one.Allocated
		capacity = AddCapacity(capacity, one.Capacity)
	}
	return allocated, capacity
}

// AddCapacity adds two capacities, to at most the largest int64.
func AddCapacity(a, b int64) int64 { return a + min(b, math.MaxInt64-a) }

func (c *cache) state(store Store) StoreState {
	state := StoreState{Store: store, Services: int64(len(c.services))}
	bitmap := c.bitmaps[store]
	switch {
	case !c.has(store):
		return StoreState{Store: store}
	case store == IPAddresses:
		state.Present, state.Counts = true, c.countPrefixes()
		for _, p := range c.prefixes {
			state.Ranges = append(state.Ranges, p.prefix.String())
		}
		if len(c.prefixes) == 0 {
			state.Problem = "no servicecidr is known"
		}
	case bitmap == nil:
		state.Problem = "it has not been read yet"
	case bitmap.fault.absent:
		return StoreState{Store: store}
	default:
		state.Present = !bitmap.Missing && bitmap.Unverified == ""
		state.Problem = bitmap.fault.message
		if bitmap.Range != "" {
			state.Ranges = []string{wording.Clip(bitmap.Range, maxValue)}
		}
		if bitmap.comparable() {
			state.Counts = []RangeCount{bitmap.count()}
		}
	}
	return state
}

// allocatable reports whether the allocator gives an address out of a prefix: neither the network's
// own nor the IPv4 broadcast.
func allocatable(prefix netip.Prefix, address netip.Addr) bool {
	if !prefix.Contains(address) || prefix.Masked().Addr() == address {
		return false
	}
	return !address.Is4() || prefix.Contains(address.Next())
}

// capacityOf returns how many addresses of a prefix the allocator of IPAddress objects gives, at
// most the largest int64.
func capacityOf(prefix netip.Prefix) int64 {
	free := prefix.Addr().BitLen() - prefix.Bits()
	if free >= 63 {
		return math.MaxInt64
	}
	reserved := int64(1)
	if prefix.Addr().Is4() {
		reserved = 2
	}
	return max(int64(1)<<free-reserved, 0)
}

func sameCIDR(a, b CIDR) bool {
	return a.Ready == b.Ready && slices.Equal(a.Prefixes, b.Prefixes)
}
