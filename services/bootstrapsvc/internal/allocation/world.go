package allocation

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// subject is what can be judged by itself: a port or an address in a store, a Service's values, an object without an
// address, or, with nothing but the store, the store.
type subject struct {
	store   Store
	address netip.Addr
	port    int32
	service Key
	object  string
}

// cache is what a ledger was told, indexed by what is judged.
type cache struct {
	stores          []Store
	expected        map[Store]string
	services        map[Key]*user
	addresses       map[netip.Addr]*addressEntry
	ports           map[int32][]*user
	misnamed        map[string]*IPAddress // objects whose names are no addresses
	byParent        map[Key][]netip.Addr  // addresses by the Service in whose name they are allocated
	cidrs           map[string]CIDR
	prefixes        []cidrPrefix
	unreadableCIDRs []string // ServiceCIDRs of which a prefix cannot be read, ordered
	bitmaps         map[Store]*parsedBitmap
}

// addressEntry is an address.
type addressEntry struct {
	// users are the Services that name it, the oldest first; those of type ExternalName among them.
	users  []*user
	object *IPAddress
}

// cidrPrefix is a prefix of ServiceCIDRs and how full it is.
type cidrPrefix struct {
	prefix    netip.Prefix
	ready     bool
	allocated int64
}

func newCache(settings Settings) cache {
	w := cache{
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
			w.stores = append(w.stores, store)
		}
	}
	return w
}

func (w *cache) has(store Store) bool { return slices.Contains(w.stores, store) }

// serviceStore is the store that tells what is wrong with addresses of Services alone: where there are two, one is enough.
func (w *cache) serviceStore() Store {
	if w.has(ClusterIPs) && !w.has(IPAddresses) {
		return ClusterIPs
	}
	return IPAddresses
}

func (w *cache) address(address netip.Addr) *addressEntry {
	found := w.addresses[address]
	if found == nil {
		found = &addressEntry{}
		w.addresses[address] = found
	}
	return found
}

// dropEmpty drops an address of which nothing is known.
func (w *cache) dropEmpty(address netip.Addr) {
	if found := w.addresses[address]; found != nil && found.object == nil && len(found.users) == 0 {
		delete(w.addresses, address)
	}
}

func (s *addressEntry) add(h *user)    { s.users = insert(s.users, h) }
func (s *addressEntry) remove(h *user) { s.users = remove(s.users, h) }

// insert and remove keep a list of users ordered by right.
func insert(users []*user, h *user) []*user {
	at, _ := slices.BinarySearchFunc(users, h, compareAge)
	return slices.Insert(users, at, h)
}

func remove(users []*user, h *user) []*user {
	return slices.DeleteFunc(users, func(other *user) bool { return other == h })
}

// addChild remembers in whose name an object is.
func (w *cache) addChild(a *IPAddress, address netip.Addr) {
	if a.Parent.IsService() {
		w.byParent[a.Parent.Key()] = append(w.byParent[a.Parent.Key()], address)
	}
}

func (w *cache) removeChild(a *IPAddress, address netip.Addr) {
	if !a.Parent.IsService() {
		return
	}
	key := a.Parent.Key()
	left := slices.DeleteFunc(w.byParent[key], func(other netip.Addr) bool { return other == address })
	if len(left) == 0 {
		delete(w.byParent, key)
		return
	}
	w.byParent[key] = left
}

// countAllocated keeps how full the rooms are.
func (w *cache) countAllocated(address netip.Addr, change int64) {
	for i := range w.prefixes {
		if allocatable(w.prefixes[i].prefix, address) {
			w.prefixes[i].allocated += change
		}
	}
}

// readCIDRs reads the ServiceCIDRs anew and counts what is taken in each.
func (w *cache) readCIDRs() {
	w.prefixes, w.unreadableCIDRs = nil, nil
	for _, name := range slices.Sorted(maps.Keys(w.cidrs)) {
		cidr := w.cidrs[name]
		for _, text := range cidr.Prefixes {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				w.unreadableCIDRs = append(w.unreadableCIDRs, name)
				continue
			}
			w.addPrefix(cidrPrefix{prefix: prefix.Masked(), ready: cidr.Ready && !cidr.Deleting})
		}
	}
	w.unreadableCIDRs = slices.Compact(w.unreadableCIDRs)
	for address, found := range w.addresses {
		if found.object != nil {
			w.countAllocated(address, 1)
		}
	}
}

// addPrefix adds a prefix once, however many ServiceCIDRs have it.
func (w *cache) addPrefix(added cidrPrefix) {
	for i := range w.prefixes {
		if w.prefixes[i].prefix == added.prefix {
			w.prefixes[i].ready = w.prefixes[i].ready || added.ready
			return
		}
	}
	w.prefixes = append(w.prefixes, added)
}

// inRange says whether ServiceCIDRs hold an address, and whether that is known.
func (w *cache) inRange(address netip.Addr) (inside, known bool) {
	for _, r := range w.prefixes {
		if allocatable(r.prefix, address) {
			return true, true
		}
	}
	return false, len(w.prefixes) > 0 && len(w.unreadableCIDRs) == 0
}

// objectAddress is the address of an IPAddress object, which must be named by its canonical form.
func objectAddress(name string) (netip.Addr, bool) {
	address, err := netip.ParseAddr(name)
	if err != nil || address.Zone() != "" || address.Is4In6() || address.String() != name {
		return netip.Addr{}, false
	}
	return address, true
}

func sameCIDR(a, b CIDR) bool {
	return a.Ready == b.Ready && a.Deleting == b.Deleting && slices.Equal(a.Prefixes, b.Prefixes)
}

// clip keeps a damaged value from filling a message.
func clip(text string) string {
	const longest = 80
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "") + "…"
}
