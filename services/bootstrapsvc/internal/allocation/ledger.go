package allocation

import (
	"time"
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
	settings Settings
}

// New returns an empty ledger.
func New(settings Settings) *Ledger { return &Ledger{settings: settings} }

// PutService tells of a Service as it is now.
func (l *Ledger) PutService(s Service) {}

// DeleteService tells that a Service is gone.
func (l *Ledger) DeleteService(k Key) {}

// PutIPAddress tells of an IPAddress as it is now.
func (l *Ledger) PutIPAddress(a IPAddress) {}

// DeleteIPAddress tells that an IPAddress is gone.
func (l *Ledger) DeleteIPAddress(name string) {}

// PutCIDR tells of a ServiceCIDR as it is now.
func (l *Ledger) PutCIDR(c CIDR) {}

// DeleteCIDR tells that a ServiceCIDR is gone.
func (l *Ledger) DeleteCIDR(name string) {}

// PutBitmap tells of a bitmap as it is now. Until the first one of a store, nothing is said about it.
func (l *Ledger) PutBitmap(b Bitmap) {}

// Interrupt tells that changes may have been missed: a relist, a watch that was compacted away, a new term. Everything
// that ripens begins anew.
func (l *Ledger) Interrupt() {}

// Delta is what an audit found that the one before had not.
type Delta struct {
	// Changed are findings that are new or other than before, ordered by name.
	Changed []Finding
	// Ended are findings that are no more, as they last were, ordered by name.
	Ended []Finding
}

// Audit judges what changed since the last call, and what time has ripened, and says what differs. The work is that of
// the changes, and not of the cluster's size.
func (l *Ledger) Audit(now time.Time) Delta { return Delta{} }

// Sight tells that a pass ended well: what it read was whole and no write of it met a conflict. Every pending finding that the last
// audit saw is sighted once more, unless its last sighting was less than Patience.Apart ago.
func (l *Ledger) Sight(now time.Time) {}

// Findings returns what the last audit left, ordered by name.
func (l *Ledger) Findings() []Finding { return nil }

// Finding returns one of them.
func (l *Ledger) Finding(name string) (Finding, bool) { return Finding{}, false }

// Next is when the next pending finding can ripen by time alone; zero when none can. Audit has nothing to do before, unless
// something changes or Sight is called.
func (l *Ledger) Next() time.Time { return time.Time{} }

// StoreState is one store as the ledger knows it.
type StoreState struct {
	Store Store
	// Present tells whether the cluster has it.
	Present bool
	// Ranges are its ranges as stored, ordered.
	Ranges []string
	// Allocated and Capacity count; the latter is the largest int64 when there are more.
	Allocated, Capacity int64
	// Services is how many are known.
	Services int64
	// Problem says why it could not be judged; empty when it could.
	Problem string
}

// States returns one for each store, in their order.
func (l *Ledger) States() []StoreState { return nil }

// Snapshot is everything that a ledger is told of.
type Snapshot struct {
	Services    []Service
	IPAddresses []IPAddress
	CIDRs       []CIDR
	Bitmaps     []Bitmap
}

// Whole judges everything anew at one moment, so that whatever must ripen is pending.
func Whole(settings Settings, s Snapshot, now time.Time) []Finding { return nil }
