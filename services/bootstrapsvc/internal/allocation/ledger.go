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
	// Patience says how long a finding waits; its zero value means DefaultPatience.
	Patience Patience
}

// Ledger knows what is used and what is allocated. It belongs to one goroutine.
type Ledger struct {
	patience Patience
	world    world
	dirty    map[subject]struct{}
	verdicts verdicts
}

// New returns an empty ledger.
func New(settings Settings) *Ledger {
	l := &Ledger{
		patience: cmp.Or(settings.Patience, DefaultPatience()),
		world:    newWorld(settings),
		dirty:    map[subject]struct{}{},
		verdicts: newVerdicts(),
	}
	for _, store := range l.world.stores {
		l.mark(subject{store: store})
	}
	return l
}

// mark has a subject judged by the next audit.
func (l *Ledger) mark(s subject) { l.dirty[s] = struct{}{} }

// markAddress has an address judged in every store that holds addresses.
func (l *Ledger) markAddress(address netip.Addr) {
	for _, store := range l.world.stores {
		if store != NodePorts {
			l.mark(subject{store: store, address: address})
		}
	}
}

// PutService tells of a Service as it is now.
func (l *Ledger) PutService(s Service) {
	now, before := read(s), l.world.services[s.Key]
	if before != nil {
		l.forget(before)
	} else {
		l.restartChildren(s.Key)
	}
	l.world.services[s.Key] = now
	for _, address := range now.addresses {
		l.world.spot(address).add(now)
		l.markAddress(address)
		l.restartAddress(address)
	}
	for _, port := range now.ports {
		l.world.ports[port.number] = insert(l.world.ports[port.number], now)
		l.mark(subject{store: NodePorts, port: port.number})
		l.verdicts.restart(subject{store: NodePorts, port: port.number})
	}
	l.markOf(s.Key)
}

// DeleteService tells that a Service is gone.
func (l *Ledger) DeleteService(k Key) {
	before := l.world.services[k]
	if before == nil {
		return
	}
	l.forget(before)
	delete(l.world.services, k)
	l.markOf(k)
}

// forget takes a Service out of what it used.
func (l *Ledger) forget(h *holder) {
	for _, address := range h.addresses {
		l.world.spot(address).remove(h)
		l.world.tidy(address)
		l.markAddress(address)
	}
	for _, port := range h.ports {
		l.world.ports[port.number] = remove(l.world.ports[port.number], h)
		if len(l.world.ports[port.number]) == 0 {
			delete(l.world.ports, port.number)
		}
		l.mark(subject{store: NodePorts, port: port.number})
	}
}

// markOf has a Service itself judged, and the addresses that are allocated in its name.
func (l *Ledger) markOf(k Key) {
	for _, store := range []Store{l.world.home(), NodePorts} {
		self := subject{store: store, service: k}
		if now := l.world.services[k]; now != nil && now.bad(store) || len(l.verdicts.bySubject[self]) > 0 {
			l.mark(self)
		}
	}
	for _, address := range l.world.children[k] {
		l.mark(subject{store: IPAddresses, address: address})
	}
}

func (l *Ledger) restartAddress(address netip.Addr) {
	for _, store := range l.world.stores {
		l.verdicts.restart(subject{store: store, address: address})
	}
}

func (l *Ledger) restartChildren(k Key) {
	for _, address := range l.world.children[k] {
		l.verdicts.restart(subject{store: IPAddresses, address: address})
	}
}

// PutIPAddress tells of an IPAddress as it is now.
func (l *Ledger) PutIPAddress(a IPAddress) {
	address, ok := objectAddress(a.Name)
	if !ok {
		l.world.strangers[a.Name] = &a
		l.mark(subject{store: IPAddresses, object: a.Name})
		return
	}
	spot := l.world.spot(address)
	if before := spot.object; before != nil {
		l.world.disown(before, address)
	} else {
		l.world.count(address, 1)
	}
	spot.object = &a
	l.world.own(&a, address)
	l.markObject(address)
}

// DeleteIPAddress tells that an IPAddress is gone.
func (l *Ledger) DeleteIPAddress(name string) {
	address, ok := objectAddress(name)
	if !ok {
		delete(l.world.strangers, name)
		l.mark(subject{store: IPAddresses, object: name})
		return
	}
	spot := l.world.spots[address]
	if spot == nil || spot.object == nil {
		return
	}
	l.world.disown(spot.object, address)
	spot.object = nil
	l.world.count(address, -1)
	l.world.tidy(address)
	l.verdicts.restart(subject{store: IPAddresses, address: address})
	l.markObject(address)
}

func (l *Ledger) markObject(address netip.Addr) {
	l.mark(subject{store: IPAddresses, address: address})
	l.mark(subject{store: IPAddresses})
}

// PutCIDR tells of a ServiceCIDR as it is now.
func (l *Ledger) PutCIDR(c CIDR) {
	if before, ok := l.world.cidrs[c.Name]; ok && sameCIDR(before, c) {
		return
	}
	c.Prefixes = slices.Clone(c.Prefixes)
	l.world.cidrs[c.Name] = c
	l.recount()
}

// DeleteCIDR tells that a ServiceCIDR is gone.
func (l *Ledger) DeleteCIDR(name string) {
	delete(l.world.cidrs, name)
	l.recount()
}

// recount judges every address anew, because what is in range has changed.
func (l *Ledger) recount() {
	l.world.layOut()
	l.mark(subject{store: IPAddresses})
	for address := range l.world.spots {
		l.mark(subject{store: IPAddresses, address: address})
	}
}

// PutBitmap tells of a bitmap as it is now. Until the first one of a store, nothing is said about it.
func (l *Ledger) PutBitmap(b Bitmap) {
	if !b.Store.Bits() {
		return
	}
	before := l.world.grids[b.Store]
	now := newGrid(b, l.world.expected[b.Store])
	if b.Missing && b.Doubt == "" && b.Store == ClusterIPs && l.world.has(IPAddresses) {
		now.fault = notThere() // 1.33 may be told to write none beside its IPAddress objects
	}
	l.world.grids[b.Store] = now
	l.mark(subject{store: b.Store})
	if before == nil || before.Range != now.Range || before.judged() != now.judged() {
		l.markStore(now)
		return
	}
	if now.judged() {
		l.markBits(before, now)
	}
}

// Revision is that of the bitmap which was put last; 0 where there is none.
func (l *Ledger) Revision(store Store) int64 {
	if g := l.world.grids[store]; g != nil {
		return g.Revision
	}
	return 0
}

// markStore has everything judged that a bitmap may say something about. Whatever ripened under another range begins anew.
func (l *Ledger) markStore(g *grid) {
	l.verdicts.restartStore(g.Store)
	for _, s := range l.verdicts.of(g.Store) {
		l.mark(s)
	}
	if g.judged() {
		setBits(g.Data, func(offset int) { l.mark(g.subject(offset)) })
	}
	if g.Store == NodePorts {
		for port := range l.world.ports {
			l.mark(subject{store: NodePorts, port: port})
		}
		return
	}
	for address := range l.world.spots {
		l.mark(subject{store: ClusterIPs, address: address})
		l.mark(subject{store: SecondaryClusterIPs, address: address})
	}
}

// markBits has those bits judged that differ. One that was clear for a moment is not the one that was set before.
func (l *Ledger) markBits(before, now *grid) {
	for i := range max(len(before.Data), len(now.Data)) {
		was, is := byteAt(before.Data, i), byteAt(now.Data, i)
		if was == is {
			continue
		}
		setBits([]byte{was ^ is}, func(bit int) {
			s := now.subject(i*8 + bit)
			l.mark(s)
			l.verdicts.restart(s)
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

// Interrupt tells that changes may have been missed: a relist, a watch that was compacted away, a new term. Whatever is
// allocated and unused begins to ripen anew, also when it was open, and so does everything that is pending.
func (l *Ledger) Interrupt() {
	l.verdicts.interrupt()
	for s := range l.verdicts.bySubject {
		l.mark(s)
	}
}

// Findings returns what the last audit left, ordered by name.
func (l *Ledger) Findings() []Finding {
	found := make([]Finding, 0, len(l.verdicts.byName))
	for _, name := range slices.Sorted(maps.Keys(l.verdicts.byName)) {
		found = append(found, l.stamped(l.verdicts.byName[name].shown))
	}
	return found
}

// Finding returns one of them.
func (l *Ledger) Finding(name string) (Finding, bool) {
	entry := l.verdicts.byName[name]
	if entry == nil {
		return Finding{}, false
	}
	return l.stamped(entry.shown), true
}

// stamped is a finding whose steps carry the revision that their bitmap has now: it moves with every other Service, and
// is no change of the finding.
func (l *Ledger) stamped(f Finding) Finding {
	grid := l.world.grids[f.Store]
	if grid == nil || len(f.Steps) == 0 {
		return f
	}
	f.Steps = slices.Clone(f.Steps)
	for i := range f.Steps {
		f.Steps[i].Guard.Revision = grid.Revision
	}
	return f
}
