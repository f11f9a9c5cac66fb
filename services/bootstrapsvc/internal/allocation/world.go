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

// world is what a ledger was told, indexed by what is judged.
type world struct {
	stores    []Store
	expected  map[Store]string
	services  map[Key]*holder
	spots     map[netip.Addr]*spot
	ports     map[int32][]*holder
	strangers map[string]*IPAddress // objects whose names are no addresses
	children  map[Key][]netip.Addr  // addresses by the Service in whose name they are allocated
	cidrs     map[string]CIDR
	rooms     []room
	unread    []string // ServiceCIDRs of which a prefix cannot be read, ordered
	grids     map[Store]*grid
}

// spot is an address.
type spot struct {
	// users are the Services that name it, the oldest first; those of type ExternalName among them.
	users  []*holder
	object *IPAddress
}

// room is a prefix of ServiceCIDRs and how full it is.
type room struct {
	prefix netip.Prefix
	ready  bool
	taken  int64
}

func newWorld(settings Settings) world {
	w := world{
		expected:  maps.Clone(settings.Ranges),
		services:  map[Key]*holder{},
		spots:     map[netip.Addr]*spot{},
		ports:     map[int32][]*holder{},
		strangers: map[string]*IPAddress{},
		children:  map[Key][]netip.Addr{},
		cidrs:     map[string]CIDR{},
		grids:     map[Store]*grid{},
	}
	for _, store := range Stores() {
		if slices.Contains(settings.Stores, store) {
			w.stores = append(w.stores, store)
		}
	}
	return w
}

func (w *world) has(store Store) bool { return slices.Contains(w.stores, store) }

// home is the store that tells what is wrong with addresses of Services alone: where there are two, one is enough.
func (w *world) home() Store {
	if w.has(ClusterIPs) && !w.has(IPAddresses) {
		return ClusterIPs
	}
	return IPAddresses
}

func (w *world) spot(address netip.Addr) *spot {
	found := w.spots[address]
	if found == nil {
		found = &spot{}
		w.spots[address] = found
	}
	return found
}

// tidy drops an address of which nothing is known.
func (w *world) tidy(address netip.Addr) {
	if found := w.spots[address]; found != nil && found.object == nil && len(found.users) == 0 {
		delete(w.spots, address)
	}
}

func (s *spot) add(h *holder)    { s.users = insert(s.users, h) }
func (s *spot) remove(h *holder) { s.users = remove(s.users, h) }

// insert and remove keep a list of users ordered by right.
func insert(users []*holder, h *holder) []*holder {
	at, _ := slices.BinarySearchFunc(users, h, byRight)
	return slices.Insert(users, at, h)
}

func remove(users []*holder, h *holder) []*holder {
	return slices.DeleteFunc(users, func(other *holder) bool { return other == h })
}

// own remembers in whose name an object is.
func (w *world) own(a *IPAddress, address netip.Addr) {
	if a.Parent.IsService() {
		w.children[a.Parent.Key()] = append(w.children[a.Parent.Key()], address)
	}
}

func (w *world) disown(a *IPAddress, address netip.Addr) {
	if !a.Parent.IsService() {
		return
	}
	key := a.Parent.Key()
	left := slices.DeleteFunc(w.children[key], func(other netip.Addr) bool { return other == address })
	if len(left) == 0 {
		delete(w.children, key)
		return
	}
	w.children[key] = left
}

// count keeps how full the rooms are.
func (w *world) count(address netip.Addr, change int64) {
	for i := range w.rooms {
		if gives(w.rooms[i].prefix, address) {
			w.rooms[i].taken += change
		}
	}
}

// layOut reads the ServiceCIDRs anew and counts what is taken in each.
func (w *world) layOut() {
	w.rooms, w.unread = nil, nil
	for _, name := range slices.Sorted(maps.Keys(w.cidrs)) {
		cidr := w.cidrs[name]
		for _, text := range cidr.Prefixes {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				w.unread = append(w.unread, name)
				continue
			}
			w.addRoom(room{prefix: prefix.Masked(), ready: cidr.Ready && !cidr.Deleting})
		}
	}
	w.unread = slices.Compact(w.unread)
	for address, found := range w.spots {
		if found.object != nil {
			w.count(address, 1)
		}
	}
}

// addRoom adds a prefix once, however many ServiceCIDRs have it.
func (w *world) addRoom(added room) {
	for i := range w.rooms {
		if w.rooms[i].prefix == added.prefix {
			w.rooms[i].ready = w.rooms[i].ready || added.ready
			return
		}
	}
	w.rooms = append(w.rooms, added)
}

// place says whether ServiceCIDRs hold an address, and whether that is known.
func (w *world) place(address netip.Addr) (inside, known bool) {
	for _, r := range w.rooms {
		if gives(r.prefix, address) {
			return true, true
		}
	}
	return false, len(w.rooms) > 0 && len(w.unread) == 0
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
