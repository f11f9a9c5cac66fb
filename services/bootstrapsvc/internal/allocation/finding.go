package allocation

import (
	"time"
)

// Code says what is wrong. The values are those of the API.
type Code uint8

const (
	// NotAllocated: a Service uses what is not allocated, so it may be given to another.
	NotAllocated Code = iota + 1
	// DuplicateOwner: two Services use the same.
	DuplicateOwner
	// OutOfRange: a Service uses what lies outside of every range.
	OutOfRange
	// Leaked: allocated and used by nobody.
	Leaked
	// WrongReference: allocated in the name of another object than the one that uses it.
	WrongReference
	// WrongLabels: allocated with labels that the allocator does not give.
	WrongLabels
	// Orphan: allocated in the name of an object that does not exist, and used by nobody.
	Orphan
	// RangeMismatch: the stored range is not the expected one, or there is none.
	RangeMismatch
	// RangeFull: nothing is left to allocate.
	RangeFull
	// Unreadable: the stored value cannot be read.
	Unreadable
	// Invalid: a Service carries a value that is no address or port.
	Invalid
)

// Codes are all codes, in their order.
func Codes() []Code {
	return []Code{
		NotAllocated, DuplicateOwner, OutOfRange, Leaked, WrongReference, WrongLabels,
		Orphan, RangeMismatch, RangeFull, Unreadable, Invalid,
	}
}

// String is the code in names: "not-allocated" and so on.
func (c Code) String() string {
	switch c {
	case NotAllocated:
		return "not-allocated"
	case DuplicateOwner:
		return "duplicate-owner"
	case OutOfRange:
		return "out-of-range"
	case Leaked:
		return "leaked"
	case WrongReference:
		return "wrong-reference"
	case WrongLabels:
		return "wrong-labels"
	case Orphan:
		return "orphan"
	case RangeMismatch:
		return "range-mismatch"
	case RangeFull:
		return "range-full"
	case Unreadable:
		return "unreadable"
	case Invalid:
		return "invalid"
	default:
		return "unknown"
	}
}

// FindingState says how a finding stands in the ledger.
type FindingState uint8

const (
	// StatePending: seen, and not for long enough to be sure.
	StatePending FindingState = iota + 1
	// StateOpen: it is so.
	StateOpen
)

// Finding is one thing that is wrong. It is a value: the ledger never changes one that it gave out, and nobody else may
// change what its slices hold.
type Finding struct {
	// Name is "findings/<code>.<store>.<subject>", of the characters [-a-z0-9._:]; the same for as long as the same thing is
	// wrong, in every process.
	Name  string
	Code  Code
	Store Store
	// Subject is the address or port, or a name where there is no address; empty when it is about a whole store.
	Subject string
	// Message is one sentence with the values that matter. It does not change with time.
	Message string
	// Owners are the Services that use the subject, the rightful one first.
	Owners   []Owner
	Evidence []Evidence
	// Repair is one sentence that says what would mend it; empty when only a person can.
	Repair string
	// Safe tells whether Steps may be done without asking anybody. It is never true while the finding is pending.
	Safe bool
	// UnsafeReason says why not, or not yet; empty when safe.
	UnsafeReason string
	State        FindingState
	// Since is when the ledger first saw it as it is, without a gap since; by the times that the ledger was given.
	Since time.Time
	// Observations counts the passes that saw it since, as Sight says.
	Observations int `json:"Sightings"`
	// GraceEnds is when a pending finding can be open at the earliest, if nothing happens; zero when it is open.
	GraceEnds time.Time `json:"Ripe"`
	// Steps would mend it, in order; nil when only a person can, or nobody yet.
	Steps []Step
}

// Owner is a Service that uses a subject.
type Owner struct {
	Key
	UID string
}

// Evidence is one thing that a finding was concluded from.
type Evidence struct {
	// Code is stable and UPPER_SNAKE_CASE.
	Code EvidenceCode
	// Broken tells a link that is not as it should be from one that is.
	Broken bool
	// Finding is one sentence, Next what to do or look at; empty when there is nothing to do.
	Finding, Next string
	// Source is "service", "ipaddress", "servicecidr", "node-ports", "cluster-ips" or "secondary-cluster-ips".
	Source string
	// Service or IPAddress is the object that was looked at, where it is one.
	Service   *Owner
	IPAddress *IPAddressRef
	// Version is a resourceVersion, or a modification revision of etcd; empty where it is not known.
	Version string
}

// IPAddressRef is an IPAddress object, exactly this one.
type IPAddressRef struct{ Name, UID, ResourceVersion string }

// EvidenceCode says what was looked at.
type EvidenceCode string

const (
	// ServiceUse: what a Service uses.
	ServiceUse EvidenceCode = "SERVICE_USE"
	// AddressObject: the IPAddress object, or that there is none.
	AddressObject EvidenceCode = "IP_ADDRESS_OBJECT"
	// ParentService: the Service in whose name the address is allocated, or that there is none.
	ParentService EvidenceCode = "PARENT_SERVICE"
	// StoredBit: the bit of the bitmap.
	StoredBit EvidenceCode = "STORED_BIT"
	// StoredRange: the range that is stored, or the ServiceCIDRs.
	StoredRange EvidenceCode = "STORED_RANGE"
)
