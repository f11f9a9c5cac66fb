package apiserverscontroller

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"
	"unicode"
)

// Entry is what the key of one sidecar says about its kube-apiserver.
type Entry struct {
	// Address is where pods reach the server. It is the zero Addr if the key does not end in an
	// address.
	Address netip.Addr
	// Secondary is the address of the other family; the zero Addr if there is none.
	Secondary netip.Addr
	// Name is the end of the key: the address as it is written there, and the replica if several
	// share it.
	Name string
	Port int32
	// Ready says whether the server should be an endpoint.
	Ready bool
	// Detail describes the result of the last probe for operators.
	Detail string
	// ProbeTime is when the last probe ended, by the sidecar's clock.
	ProbeTime time.Time
	// Left says that the sidecar has stopped in good order. Such an entry is not ready.
	Left bool
	// ReplicaID is the bootstrapsvc replica beside the server.
	ReplicaID string
	// Leased says whether the key expires with its writer, as the key of a sidecar does. A key
	// without a lease has another writer, or is left by a restore.
	Leased bool
	// TTL is the rest of the key's lease; zero without a lease. Only List sets it.
	TTL time.Duration
	// Unreadable says why key or value could not be read; empty if they could. Such an entry is not
	// ready.
	Unreadable string
}

// entryValue is the JSON in etcd. Fields may be added; their meaning must not change.
type entryValue struct {
	Port      int32      `json:"port"`
	Ready     bool       `json:"ready"`
	Detail    string     `json:"detail,omitempty"`
	ProbeTime time.Time  `json:"probeTime,omitzero"`
	ReplicaID string     `json:"replica"`
	Secondary netip.Addr `json:"secondaryAddress,omitzero"`
	Left      bool       `json:"left,omitempty"`
}

func encodeEntry(e Entry) (string, error) {
	encoded, err := json.Marshal(entryValue{
		Port: e.Port, Ready: e.Ready, Detail: printable(e.Detail), ProbeTime: e.ProbeTime, ReplicaID: e.ReplicaID,
		Secondary: e.Secondary, Left: e.Left,
	})
	return string(encoded), err
}

// decodeEntry decodes one key; name is the key without the prefix.
func decodeEntry(name string, raw []byte) Entry {
	entry := Entry{Name: printable(name)}
	text, _, _ := strings.Cut(name, "/") // the replica follows, if several share the address
	address, err := netip.ParseAddr(text)
	if err != nil {
		return entry.unreadable("the key does not end in an IP address")
	}
	if entry.Address = address.Unmap(); entry.Address.String() != text {
		return entry.unreadable("the address in the key is not in canonical form, want " + entry.Address.String())
	}
	var read entryValue
	if err := json.Unmarshal(raw, &read); err != nil {
		return entry.unreadable("the value is not a JSON object of the known kind")
	}
	entry.Port, entry.Ready, entry.ProbeTime = read.Port, read.Ready, read.ProbeTime
	entry.Detail, entry.ReplicaID = printable(read.Detail), printable(read.ReplicaID)
	entry.Secondary = read.Secondary.Unmap()
	if entry.Left = read.Left; entry.Left {
		entry.Ready = false
	}
	if read.Port < 1 || read.Port > 65535 {
		return entry.unreadable(fmt.Sprintf("the value has port %d, want 1 to 65535", read.Port))
	}
	return entry
}

func (e Entry) unreadable(why string) Entry {
	e.Unreadable, e.Ready = why, false
	return e
}

// textLimit bounds the text of a foreign writer, in bytes.
const textLimit = 512

// printable makes foreign text safe to show: valid UTF-8, one line, no control characters, limited
// in length.
func printable(text string) string {
	if len(text) > textLimit {
		text = text[:textLimit]
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
}
