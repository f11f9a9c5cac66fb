package allocation

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/internal/wording"
)

// Code says what is wrong. The values are those of the API.
type Code uint8

const (
	// NotAllocated: a Service uses an address or port that is not allocated, so another Service may
	// get it.
	NotAllocated Code = iota + 1
	// DuplicateOwner: two Services use the same address or port.
	DuplicateOwner
	// OutOfRange: a Service uses an address or port outside of every range.
	OutOfRange
	// Leaked: the subject is allocated, and no Service uses it.
	Leaked
	// WrongReference: the parent of the allocation is not the Service that uses the address.
	WrongReference
	// WrongLabels: the labels of the allocation are not the allocator's.
	WrongLabels
	// Orphan: the parent of the allocation does not exist, and no Service uses the address.
	Orphan
	// RangeMismatch: the stored range is missing or unexpected.
	RangeMismatch
	// RangeFull: the range has no free address or port.
	RangeFull
	// Unreadable: the stored value cannot be read.
	Unreadable
	// Invalid: a Service carries a value that is not an address or port.
	Invalid
)

func codeNames() []string {
	return []string{
		"not-allocated", "duplicate-owner", "out-of-range", "leaked", "wrong-reference", "wrong-labels",
		"orphan", "range-mismatch", "range-full", "unreadable", "invalid",
	}
}

// Codes returns all codes in their order.
func Codes() []Code {
	var codes []Code
	for i := range codeNames() {
		codes = append(codes, NotAllocated+Code(i))
	}
	return codes
}

// String returns the code as names of findings have it, such as "not-allocated".
func (c Code) String() string { return nameAt(codeNames(), int(c)-1) }

// APIName returns the code as the API writes it, such as "NOT_ALLOCATED".
func (c Code) APIName() string { return strings.ToUpper(strings.ReplaceAll(c.String(), "-", "_")) }

func nameAt(names []string, at int) string {
	if at < 0 || at >= len(names) {
		return "unknown"
	}
	return names[at]
}

// FindingState says whether the grace period of a finding is over.
type FindingState uint8

const (
	// StatePending findings are in their grace period.
	StatePending FindingState = iota + 1
	// StateOpen findings are certain.
	StateOpen
)

// FindingEnd says how a finding ended.
type FindingEnd string

const (
	// NotEnded findings are pending or open.
	NotEnded FindingEnd = ""
	// EndRepaired findings were removed by a repair.
	EndRepaired FindingEnd = "repaired"
	// EndResolved findings disappeared without a repair.
	EndResolved FindingEnd = "gone"
)

// Finding is one thing that is wrong. It is a value: the package never modifies a Finding that it
// returned, and callers must not modify what its slices hold. Its JSON form is stored in etcd.
type Finding struct {
	// Name is "findings/<code>.<store>.<subject>" of the characters [-a-z0-9._:]. It is the same in
	// every process for as long as the same thing is wrong.
	Name  string
	Code  Code
	Store Store
	// Subject is the address or port, or the name of an object without an address. It is empty if
	// the finding is about a store.
	Subject string
	// Message is one sentence with the values that matter. It does not change with time.
	Message string
	// Owners are the Services that use the subject, the rightful one first.
	Owners   []Owner
	Evidence []Evidence
	// Repair is one sentence that says what removes the finding. It is empty if only a person can.
	Repair string
	// Safe reports whether the controller may apply Steps without approval. It is false while the
	// finding is pending.
	Safe bool
	// UnsafeReason says why Safe is false. It is empty if Safe is true.
	UnsafeReason string
	State        FindingState
	// Since is when the index first saw the finding as it is, without a gap since.
	Since time.Time
	// Observations counts the passes that observed the finding since then; see Index.Observe.
	Observations int `json:"Sightings"`
	// GraceEnds is the earliest time at which a pending finding can be open. It is zero for an open
	// finding.
	GraceEnds time.Time `json:"Ripe"`
	// Steps remove the finding, in order. It is nil if only a person can, and while the finding is
	// pending.
	Steps []Step

	// The following fields span restarts and terms. The index leaves them zero; the controller sets
	// them.

	// FirstSeen is when a controller first saw the finding.
	FirstSeen time.Time
	// LastSeen is when the finding was last seen before it was stored.
	LastSeen time.Time
	// Ended is the zero time for as long as the finding is pending or open.
	Ended time.Time  `json:",omitzero"`
	End   FindingEnd `json:",omitempty"`
	// RepairedBy is the ID of the repair that removed the finding.
	RepairedBy string `json:",omitempty"`
	// Ignore is the mark of a finding that is ignored, nil for others. It is stored under its own
	// key.
	Ignore *Ignore `json:"-"`
	// Generation grows whenever a field that the API shows changes. It is not stored.
	Generation uint64 `json:"-"`
}

// Repairable reports whether the controller may repair the finding without approval now.
func (f Finding) Repairable() bool { return f.IsOpen() && f.Safe }

// IsOpen reports whether the finding is open and not ignored.
func (f Finding) IsOpen() bool {
	return f.End == NotEnded && f.State == StateOpen && f.Ignore == nil
}

// SpansWatches reports whether watches that are out of step could cause the finding, so that only a
// live read tells.
func (f Finding) SpansWatches() bool {
	switch f.Code {
	case NotAllocated, WrongReference, WrongLabels, OutOfRange:
		return true
	case RangeMismatch:
		return f.Store == IPAddresses
	default:
		return false
	}
}

// Priority is that of the first step, and the lowest for a finding without steps.
func (f Finding) Priority() int {
	if len(f.Steps) == 0 {
		return lowestPriority
	}
	return f.Steps[0].Priority()
}

// Etag identifies what the finding says, except times and counts.
func (f Finding) Etag() string {
	encoded, _ := json.Marshal(struct { // no field can fail to encode
		Name, Message        string
		Owners               []Owner
		Repair, UnsafeReason string
		Safe                 bool
		State                FindingState
		End                  FindingEnd
		RepairedBy           string
		Ignore               *Ignore
	}{f.Name, f.Message, f.Owners, f.Repair, f.UnsafeReason, f.Safe, f.State, f.End, f.RepairedBy, f.Ignore})
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:12])
}

// RepairMode says what a repair of a finding needs.
type RepairMode uint8

const (
	// RepairAutomatic: the controller may repair it without approval.
	RepairAutomatic RepairMode = iota + 1
	// RepairByPlan: a person applies a plan.
	RepairByPlan
	// RepairManual: only a person can repair it.
	RepairManual
)

// RepairMode returns what a repair of the finding needs. A pending finding is never repaired
// without approval, because it may not be so.
func (f Finding) RepairMode() RepairMode {
	switch {
	case f.Safe:
		return RepairAutomatic
	case f.Repair != "":
		return RepairByPlan
	default:
		return RepairManual
	}
}

// Owner is a Service that uses a subject.
type Owner struct {
	Key
	UID string
}

// Evidence is one fact from which a finding was concluded.
type Evidence struct {
	// Code is stable and UPPER_SNAKE_CASE.
	Code EvidenceCode
	// Broken reports that the fact is not as it should be.
	Broken bool
	// Finding is one sentence. Next says what to do, and is empty if there is nothing to do.
	Finding, Next string
	// Source is "service", "ipaddress", "servicecidr", "node-ports", "cluster-ips" or
	// "secondary-cluster-ips".
	Source string
	// Service or IPAddress is the object that was read, if the source is one.
	Service   *Owner
	IPAddress *IPAddressRef
	// Version is a resourceVersion or an etcd modification revision. It is empty if unknown.
	Version string
}

// IPAddressRef is one version of an IPAddress object.
type IPAddressRef struct{ Name, UID, ResourceVersion string }

// EvidenceCode says which kind of fact an Evidence is.
type EvidenceCode string

const (
	// ServiceUse: what a Service uses.
	ServiceUse EvidenceCode = "SERVICE_USE"
	// AddressObject: the IPAddress object, or its absence.
	AddressObject EvidenceCode = "IP_ADDRESS_OBJECT"
	// ParentService: the Service that is the parent of the IPAddress, or its absence.
	ParentService EvidenceCode = "PARENT_SERVICE"
	// StoredBit: the bit of the bitmap.
	StoredBit EvidenceCode = "STORED_BIT"
	// StoredRange: the stored range, or the ServiceCIDRs.
	StoredRange EvidenceCode = "STORED_RANGE"
)

// maxEvidence bounds how many users of one subject are shown as evidence. Finding.Owners has all of
// them.
const maxEvidence = 8

func serviceEvidence(u *user, broken bool, what, next string) Evidence {
	if u.deleting {
		what += "; it is being deleted, and uses what it has until it is gone"
	}
	return Evidence{
		Code: ServiceUse, Broken: broken, Source: "service", Service: &Owner{Key: u.Key, UID: u.UID},
		Finding: "service " + u.String() + " " + what, Next: next,
	}
}

func useEvidence(users []*user, subject string) []Evidence {
	var evidence []Evidence
	for _, u := range users[:min(len(users), maxEvidence)] {
		evidence = append(evidence, serviceEvidence(u, false, "uses "+subject, ""))
	}
	return evidence
}

func objectEvidence(object *IPAddress, broken bool, what, next string) Evidence {
	return Evidence{
		Code: AddressObject, Broken: broken, Source: "ipaddress",
		IPAddress: &IPAddressRef{Name: wording.Clip(object.Name, maxValue), UID: object.UID, ResourceVersion: object.ResourceVersion},
		Version:   object.ResourceVersion, Finding: "of ipaddress " + wording.Clip(object.Name, maxValue) + ": " + what, Next: next,
	}
}

func bitEvidence(s subject, what, next string) Evidence {
	return Evidence{
		Code: StoredBit, Broken: true, Source: s.store.String(), Finding: s.noun() + " " + s.text() + ": " + what, Next: next,
	}
}

func rangeEvidence(store Store, what string) Evidence {
	source := store.String()
	if store == IPAddresses {
		source = "servicecidr"
	}
	return Evidence{Code: StoredRange, Broken: true, Source: source, Finding: what}
}

// subject identifies what is compared: a port or an address in a store, the values of a Service, or
// an object whose name is not an address. With only the store set, it is the store.
type subject struct {
	store   Store
	address netip.Addr
	port    int32
	service Key
	object  string
}

func (s subject) text() string {
	switch {
	case s.address.IsValid():
		return s.address.String()
	case s.port != 0:
		return strconv.Itoa(int(s.port))
	case s.service != Key{}:
		return s.service.String()
	default:
		return wording.Clip(s.object, maxValue)
	}
}

func (s subject) noun() string {
	if s.store == NodePorts {
		return "port"
	}
	return "address"
}

func (s subject) findingName(code Code) string {
	switch {
	case s.service != Key{}:
		return findingName(code, s.store, s.service.Namespace, s.service.Name)
	case s.object != "":
		return findingName(code, s.store, s.object)
	case s.address.IsValid(), s.port != 0:
		return findingName(code, s.store, s.text())
	default:
		return findingName(code, s.store)
	}
}

// findingName returns the resource name of a finding. A hash distinguishes parts with characters
// that a name must not have.
func findingName(code Code, store Store, parts ...string) string {
	cleaned, changed := cleanName(strings.Join(parts, "_"))
	if changed || strings.Count(cleaned, "_") != max(len(parts)-1, 0) || len(cleaned) > maxSubjectLength {
		sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
		cleaned = cleaned[:min(len(cleaned), maxSubjectLength)] + "." + hex.EncodeToString(sum[:6])
	}
	full := "findings/" + code.String() + "." + store.String()
	if cleaned != "" {
		full += "." + cleaned
	}
	return full
}

// maxSubjectLength leaves space for the rest of a name, which may have 256 bytes.
const maxSubjectLength = 180

func cleanName(text string) (string, bool) {
	changed := false
	cleaned := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', strings.ContainsRune("-._:", r):
			return r
		default:
			changed = true
			return '_'
		}
	}, text)
	return cleaned, changed
}
