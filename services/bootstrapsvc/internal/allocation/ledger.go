package allocation

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// Settings say what a ledger expects and how patient it is.
type Settings struct {
	// Stores are those that the cluster has. Only these are judged.
	Stores []Store
	// Ranges are the ranges that are expected of the bitmaps, as texts; a store without one is taken as it is.
	Ranges map[Store]string
	// GracePeriods says how long a finding waits; its zero value means DefaultPatience.
	GracePeriods GracePeriods
}

// Index knows what is used and what is allocated. It belongs to one goroutine.
type Index struct {
	gracePeriods GracePeriods
	cache        cache
	dirty        map[subject]struct{}
	entries      entries
}

// NewIndex returns an empty ledger.
func NewIndex(settings Settings) *Index {
	l := &Index{
		gracePeriods: cmp.Or(settings.GracePeriods, DefaultGracePeriods()),
		cache:        newCache(settings),
		dirty:        map[subject]struct{}{},
		entries:      newEntries(),
	}
	for _, store := range l.cache.stores {
		l.mark(subject{store: store})
	}
	return l
}

// mark has a subject judged by the next audit.
func (l *Index) mark(s subject) { l.dirty[s] = struct{}{} }

// markAddress has an address judged in every store that holds addresses.
func (l *Index) markAddress(address netip.Addr) {
	for _, store := range l.cache.stores {
		if store != NodePorts {
			l.mark(subject{store: store, address: address})
		}
	}
}

// PutService tells of a Service as it is now.
func (l *Index) PutService(s Service) {
	now, before := newUser(s), l.cache.services[s.Key]
	if before != nil {
		l.removeUser(before)
	} else {
		l.restartChildren(s.Key)
	}
	l.cache.services[s.Key] = now
	for _, address := range now.addresses {
		l.cache.address(address).add(now)
		l.markAddress(address)
		l.restartAddress(address)
	}
	for _, port := range now.ports {
		l.cache.ports[port.number] = insert(l.cache.ports[port.number], now)
		l.mark(subject{store: NodePorts, port: port.number})
		l.entries.restart(subject{store: NodePorts, port: port.number})
	}
	l.markService(s.Key)
}

// DeleteService tells that a Service is gone.
func (l *Index) DeleteService(k Key) {
	before := l.cache.services[k]
	if before == nil {
		return
	}
	l.removeUser(before)
	delete(l.cache.services, k)
	l.markService(k)
}

// removeUser takes a Service out of what it used.
func (l *Index) removeUser(h *user) {
	for _, address := range h.addresses {
		l.cache.address(address).remove(h)
		l.cache.dropEmpty(address)
		l.markAddress(address)
	}
	for _, port := range h.ports {
		l.cache.ports[port.number] = remove(l.cache.ports[port.number], h)
		if len(l.cache.ports[port.number]) == 0 {
			delete(l.cache.ports, port.number)
		}
		l.mark(subject{store: NodePorts, port: port.number})
	}
}

// markService has a Service itself judged, and the addresses that are allocated in its name.
func (l *Index) markService(k Key) {
	for _, store := range []Store{l.cache.serviceStore(), NodePorts} {
		self := subject{store: store, service: k}
		if now := l.cache.services[k]; now != nil && now.hasInvalid(store) || len(l.entries.bySubject[self]) > 0 {
			l.mark(self)
		}
	}
	for _, address := range l.cache.byParent[k] {
		l.mark(subject{store: IPAddresses, address: address})
	}
}

func (l *Index) restartAddress(address netip.Addr) {
	for _, store := range l.cache.stores {
		l.entries.restart(subject{store: store, address: address})
	}
}

func (l *Index) restartChildren(k Key) {
	for _, address := range l.cache.byParent[k] {
		l.entries.restart(subject{store: IPAddresses, address: address})
	}
}

// PutIPAddress tells of an IPAddress as it is now.
func (l *Index) PutIPAddress(a IPAddress) {
	address, ok := objectAddress(a.Name)
	if !ok {
		l.cache.misnamed[a.Name] = &a
		l.mark(subject{store: IPAddresses, object: a.Name})
		return
	}
	spot := l.cache.address(address)
	if before := spot.object; before != nil {
		l.cache.removeChild(before, address)
	} else {
		l.cache.countAllocated(address, 1)
	}
	spot.object = &a
	l.cache.addChild(&a, address)
	l.markObject(address)
}

// DeleteIPAddress tells that an IPAddress is gone.
func (l *Index) DeleteIPAddress(name string) {
	address, ok := objectAddress(name)
	if !ok {
		delete(l.cache.misnamed, name)
		l.mark(subject{store: IPAddresses, object: name})
		return
	}
	spot := l.cache.addresses[address]
	if spot == nil || spot.object == nil {
		return
	}
	l.cache.removeChild(spot.object, address)
	spot.object = nil
	l.cache.countAllocated(address, -1)
	l.cache.dropEmpty(address)
	l.entries.restart(subject{store: IPAddresses, address: address})
	l.markObject(address)
}

func (l *Index) markObject(address netip.Addr) {
	l.mark(subject{store: IPAddresses, address: address})
	l.mark(subject{store: IPAddresses})
}

// PutCIDR tells of a ServiceCIDR as it is now.
func (l *Index) PutCIDR(c CIDR) {
	if before, ok := l.cache.cidrs[c.Name]; ok && sameCIDR(before, c) {
		return
	}
	c.Prefixes = slices.Clone(c.Prefixes)
	l.cache.cidrs[c.Name] = c
	l.recountPrefixes()
}

// DeleteCIDR tells that a ServiceCIDR is gone.
func (l *Index) DeleteCIDR(name string) {
	delete(l.cache.cidrs, name)
	l.recountPrefixes()
}

// recountPrefixes judges every address anew, because what is in range has changed.
func (l *Index) recountPrefixes() {
	l.cache.readCIDRs()
	l.mark(subject{store: IPAddresses})
	for address := range l.cache.addresses {
		l.mark(subject{store: IPAddresses, address: address})
	}
}

// PutBitmap tells of a bitmap as it is now. Until the first one of a store, nothing is said about it.
func (l *Index) PutBitmap(b Bitmap) {
	if !b.Store.IsBitmap() {
		return
	}
	before := l.cache.bitmaps[b.Store]
	now := parseBitmap(b, l.cache.expected[b.Store])
	if b.Missing && b.Unverified == "" && b.Store == ClusterIPs && l.cache.has(IPAddresses) {
		now.fault = absentRange() // 1.33 may be told to write none beside its IPAddress objects
	}
	l.cache.bitmaps[b.Store] = now
	l.mark(subject{store: b.Store})
	if before == nil || before.Range != now.Range || before.comparable() != now.comparable() {
		l.markStore(now)
		return
	}
	if now.comparable() {
		l.markBits(before, now)
	}
}

// BitmapRevision is that of the bitmap which was put last; 0 where there is none.
func (l *Index) BitmapRevision(store Store) int64 {
	if g := l.cache.bitmaps[store]; g != nil {
		return g.Revision
	}
	return 0
}

// markStore has everything judged that a bitmap may say something about. Whatever ripened under another range begins anew.
func (l *Index) markStore(g *parsedBitmap) {
	l.entries.restartStore(g.Store)
	for _, s := range l.entries.of(g.Store) {
		l.mark(s)
	}
	if g.comparable() {
		setBits(g.Data, func(offset int) { l.mark(g.subject(offset)) })
	}
	if g.Store == NodePorts {
		for port := range l.cache.ports {
			l.mark(subject{store: NodePorts, port: port})
		}
		return
	}
	for address := range l.cache.addresses {
		l.mark(subject{store: ClusterIPs, address: address})
		l.mark(subject{store: SecondaryClusterIPs, address: address})
	}
}

// markBits has those bits judged that differ. One that was clear for a moment is not the one that was set before.
func (l *Index) markBits(before, now *parsedBitmap) {
	for i := range max(len(before.Data), len(now.Data)) {
		was, is := byteAt(before.Data, i), byteAt(now.Data, i)
		if was == is {
			continue
		}
		setBits([]byte{was ^ is}, func(bit int) {
			s := now.subject(i*8 + bit)
			l.mark(s)
			l.entries.restart(s)
		})
	}
}

// byteAt counts from the end, where bit 0 is.
func byteAt(data []byte, i int) byte {
	if at := len(data) - 1 - i; at >= 0 {
		return data[at]
	}
	return 0
}

// RecordGap tells that changes may have been missed: a relist, a watch that was compacted away, a new term. Whatever is
// allocated and unused begins to ripen anew, also when it was open, and so does everything that is pending.
func (l *Index) RecordGap() {
	l.entries.restartUnsettled()
	for s := range l.entries.bySubject {
		l.mark(s)
	}
}

// Findings returns what the last audit left, ordered by name.
func (l *Index) Findings() []Finding {
	found := make([]Finding, 0, len(l.entries.byName))
	for _, name := range slices.Sorted(maps.Keys(l.entries.byName)) {
		found = append(found, l.withRevision(l.entries.byName[name].shown))
	}
	return found
}

// Finding returns one of them.
func (l *Index) Finding(name string) (Finding, bool) {
	entry := l.entries.byName[name]
	if entry == nil {
		return Finding{}, false
	}
	return l.withRevision(entry.shown), true
}

// withRevision is a finding whose steps carry the revision that their bitmap has now: it moves with every other Service, and
// is no change of the finding.
func (l *Index) withRevision(f Finding) Finding {
	grid := l.cache.bitmaps[f.Store]
	if grid == nil || len(f.Steps) == 0 {
		return f
	}
	f.Steps = slices.Clone(f.Steps)
	for i := range f.Steps {
		f.Steps[i].Guard.Revision = grid.Revision
	}
	return f
}
