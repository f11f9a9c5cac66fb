package allocation

import (
	"cmp"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Settings configure an Index.
type Settings struct {
	// Stores are the stores that the cluster has. The index compares only these.
	Stores []Store
	// Ranges are the expected ranges of the bitmaps, as stored texts. A store without an expected
	// range accepts any.
	Ranges map[Store]string
	// GracePeriods say when a finding is open. The zero value means DefaultGracePeriods; to change
	// one of them, change the result of DefaultGracePeriods.
	GracePeriods GracePeriods
}

// Index knows what Services use and what is allocated, and compares both. It is not safe for
// concurrent use.
type Index struct {
	cache   cache
	entries entries
	// dirty are the subjects that the next comparison evaluates.
	dirty map[subject]struct{}
}

// NewIndex returns an empty index.
func NewIndex(settings Settings) *Index {
	x := &Index{
		cache:   newCache(settings),
		entries: newEntries(cmp.Or(settings.GracePeriods, DefaultGracePeriods())),
		dirty:   map[subject]struct{}{},
	}
	for _, store := range x.cache.stores {
		x.mark(subject{store: store})
	}
	return x
}

// Delta is the difference between two comparisons.
type Delta struct {
	// Changed are findings that are new or different, ordered by name.
	Changed []Finding
	// Ended are findings that ended, as they last were, ordered by name.
	Ended []Finding
}

// Compare evaluates what changed since the last call and whose grace period is over. The cost
// depends on the changes and the pending findings, not on the size of the cluster.
func (x *Index) Compare(now time.Time) Delta {
	x.entries.markDue(now, x.mark)
	var delta Delta
	for s := range x.dirty {
		x.entries.update(s, x.cache.compare(s), now, &delta)
	}
	x.dirty = map[subject]struct{}{} // a cleared map stays as large as the first comparison made it, and slow to iterate
	for _, findings := range [][]Finding{delta.Changed, delta.Ended} {
		for i := range findings {
			findings[i] = x.withRevision(findings[i])
		}
		slices.SortFunc(findings, func(a, b Finding) int { return strings.Compare(a.Name, b.Name) })
	}
	return delta
}

// Observe records that a pass ended well: it read everything, and no write to the stores, except
// some, met a conflict. It counts an observation of every pending finding of the last comparison in
// these stores, unless the finding's last observation is less than GracePeriods.Interval ago.
func (x *Index) Observe(now time.Time, except ...Store) { x.entries.observe(now, except, x.mark) }

// RestartGracePeriod restarts the grace period of a finding, whether it is open or not, because a
// live read contradicted it.
func (x *Index) RestartGracePeriod(name string) {
	if e := x.entries.byName[name]; e != nil {
		e.restart = true
		x.mark(e.subject)
	}
}

// RecordGap records that changes may have been missed: a relist, a compacted watch, a new term. It
// restarts the grace period of every pending finding, and of every finding about an unused subject,
// even if it is open.
func (x *Index) RecordGap() {
	x.entries.restartAfterGap()
	for s := range x.entries.bySubject {
		x.mark(s)
	}
}

// NextDue returns when time or a pass can next change a pending finding, zero if none can. A time
// in the past asks for a comparison now. Until then, Compare has nothing to do unless the caller
// puts, deletes or observes something.
func (x *Index) NextDue() time.Time { return x.entries.nextDue() }

// Findings returns the findings of the last comparison, ordered by name.
func (x *Index) Findings() []Finding {
	found := make([]Finding, 0, len(x.entries.byName))
	for _, name := range slices.Sorted(maps.Keys(x.entries.byName)) {
		found = append(found, x.withRevision(x.entries.byName[name].finding))
	}
	return found
}

// Finding returns a finding of the last comparison by its name.
func (x *Index) Finding(name string) (Finding, bool) {
	e := x.entries.byName[name]
	if e == nil {
		return Finding{}, false
	}
	return x.withRevision(e.finding), true
}

// withRevision sets the bitmap's current revision in the steps of a finding. Every other Service
// changes the revision, so it is not part of the comparison of findings.
func (x *Index) withRevision(f Finding) Finding {
	bitmap := x.cache.bitmaps[f.Store]
	if bitmap == nil || len(f.Steps) == 0 {
		return f
	}
	f.Steps = slices.Clone(f.Steps)
	for i := range f.Steps {
		f.Steps[i].Guard.Revision = bitmap.Revision
	}
	return f
}

// StoreStates returns the state of each store, in their order.
func (x *Index) StoreStates() []StoreState {
	var states []StoreState
	for _, store := range Stores() {
		states = append(states, x.cache.state(store))
	}
	return states
}

// BitmapRevision returns the revision of a store's bitmap, 0 if the index has none.
func (x *Index) BitmapRevision(store Store) int64 {
	if bitmap := x.cache.bitmaps[store]; bitmap != nil {
		return bitmap.Revision
	}
	return 0
}

// PutService adds or replaces a Service.
func (x *Index) PutService(s Service) {
	now, before := newUser(s), x.cache.services[s.Key]
	if before != nil {
		x.removeUses(before)
	} else {
		for _, address := range x.cache.byParent[s.Key] {
			x.entries.restartUnused(subject{store: IPAddresses, address: address})
		}
	}
	x.cache.services[s.Key] = now
	for _, address := range now.addresses {
		found := x.cache.address(address)
		found.users = insertUser(found.users, now)
		x.markAddress(address)
		for _, store := range x.cache.stores {
			x.entries.restartUnused(subject{store: store, address: address})
		}
	}
	for _, port := range now.ports {
		x.cache.ports[port.number] = insertUser(x.cache.ports[port.number], now)
		used := subject{store: NodePorts, port: port.number}
		x.mark(used)
		x.entries.restartUnused(used)
	}
	x.markService(s.Key)
}

// DeleteService removes a Service.
func (x *Index) DeleteService(k Key) {
	before := x.cache.services[k]
	if before == nil {
		return
	}
	x.removeUses(before)
	delete(x.cache.services, k)
	x.markService(k)
}

func (x *Index) removeUses(u *user) {
	for _, address := range u.addresses {
		found := x.cache.address(address)
		found.users = removeUser(found.users, u)
		x.cache.dropEmpty(address)
		x.markAddress(address)
	}
	for _, port := range u.ports {
		x.cache.ports[port.number] = removeUser(x.cache.ports[port.number], u)
		if len(x.cache.ports[port.number]) == 0 {
			delete(x.cache.ports, port.number)
		}
		x.mark(subject{store: NodePorts, port: port.number})
	}
}

func (x *Index) markService(k Key) {
	for _, store := range []Store{x.cache.serviceStore(), NodePorts} {
		values := subject{store: store, service: k}
		now := x.cache.services[k]
		if now != nil && len(now.invalid(store)) > 0 || len(x.entries.bySubject[values]) > 0 {
			x.mark(values)
		}
	}
	for _, address := range x.cache.byParent[k] {
		x.mark(subject{store: IPAddresses, address: address})
	}
}

// PutIPAddress adds or replaces an IPAddress.
func (x *Index) PutIPAddress(a IPAddress) {
	address, ok := objectAddress(a.Name)
	if !ok {
		x.cache.misnamed[a.Name] = &a
		x.mark(subject{store: IPAddresses, object: a.Name})
		return
	}
	found := x.cache.address(address)
	if before := found.object; before != nil {
		x.cache.removeChild(before, address)
	} else {
		x.cache.countAllocated(address, 1)
	}
	found.object = &a
	x.cache.addChild(&a, address)
	x.markObject(address)
}

// DeleteIPAddress removes an IPAddress.
func (x *Index) DeleteIPAddress(name string) {
	address, ok := objectAddress(name)
	if !ok {
		delete(x.cache.misnamed, name)
		x.mark(subject{store: IPAddresses, object: name})
		return
	}
	found := x.cache.addresses[address]
	if found == nil || found.object == nil {
		return
	}
	x.cache.removeChild(found.object, address)
	found.object = nil
	x.cache.countAllocated(address, -1)
	x.cache.dropEmpty(address)
	x.entries.restartUnused(subject{store: IPAddresses, address: address})
	x.markObject(address)
}

// PutCIDR adds or replaces a ServiceCIDR.
func (x *Index) PutCIDR(c CIDR) {
	if before, ok := x.cache.cidrs[c.Name]; ok && sameCIDR(before, c) {
		return
	}
	c.Prefixes = slices.Clone(c.Prefixes)
	x.cache.cidrs[c.Name] = c
	x.markAllAddresses()
}

// DeleteCIDR removes a ServiceCIDR.
func (x *Index) DeleteCIDR(name string) {
	delete(x.cache.cidrs, name)
	x.markAllAddresses()
}

func (x *Index) markAllAddresses() {
	x.cache.readCIDRs()
	x.mark(subject{store: IPAddresses})
	for address := range x.cache.addresses {
		x.mark(subject{store: IPAddresses, address: address})
	}
}

// PutBitmap adds or replaces a bitmap. Before the first one of a store, the index reports nothing
// about that store.
func (x *Index) PutBitmap(b Bitmap) {
	if !b.Store.IsBitmap() {
		return
	}
	before := x.cache.bitmaps[b.Store]
	now := parseBitmap(b, x.cache.expected[b.Store])
	if b.Missing && b.Unverified == "" && b.Store == ClusterIPs && x.cache.has(IPAddresses) {
		now.fault = absentRange() // Kubernetes 1.33 may be configured to write none beside its IPAddress objects
	}
	x.cache.bitmaps[b.Store] = now
	x.mark(subject{store: b.Store})
	if before == nil || before.Range != now.Range || before.comparable() != now.comparable() {
		x.markBitmap(now)
		return
	}
	if now.comparable() {
		x.markChangedBits(before, now)
	}
}

// markBitmap marks everything that a bitmap may concern. It restarts every grace period that began
// under another range.
func (x *Index) markBitmap(bitmap *parsedBitmap) {
	for _, s := range x.entries.subjectsOf(bitmap.Store) {
		x.entries.restartUnused(s)
		x.mark(s)
	}
	if bitmap.comparable() {
		forEachBit(bitmap.number, func(offset int) { x.mark(bitmap.subject(offset)) })
	}
	if bitmap.Store == NodePorts {
		for port := range x.cache.ports {
			x.mark(subject{store: NodePorts, port: port})
		}
		return
	}
	for address := range x.cache.addresses {
		x.mark(subject{store: ClusterIPs, address: address})
		x.mark(subject{store: SecondaryClusterIPs, address: address})
	}
}

// markChangedBits marks the bits that differ. A bit that was clear for a moment counts as a new
// allocation.
func (x *Index) markChangedBits(before, now *parsedBitmap) {
	forEachBit(new(big.Int).Xor(before.number, now.number), func(offset int) {
		s := now.subject(offset)
		x.mark(s)
		x.entries.restartUnused(s)
	})
}

func (x *Index) mark(s subject) { x.dirty[s] = struct{}{} }

func (x *Index) markAddress(address netip.Addr) {
	for _, store := range x.cache.stores {
		if store != NodePorts {
			x.mark(subject{store: store, address: address})
		}
	}
}

// markObject marks an address of an object, and the store, whose count changed.
func (x *Index) markObject(address netip.Addr) {
	x.mark(subject{store: IPAddresses, address: address})
	x.mark(subject{store: IPAddresses})
}
