package allocation

import "time"

// AutomaticUser is the user of what the controller does without a request.
const AutomaticUser = "trivet:auto"

// Caller is the identity that asked for a change. Its JSON form is stored in etcd.
type Caller struct {
	// User is the name in the caller's credentials, AutomaticUser for the controller itself, and
	// empty if the caller was not authenticated.
	User   string   `json:",omitempty"`
	Groups []string `json:",omitempty"`
	// Gateway is the ID of the gateway replica that handed the call on, empty if none did.
	Gateway string `json:",omitempty"`
}

// IsAutomatic reports whether the caller is the controller itself.
func (c Caller) IsAutomatic() bool { return c.User == AutomaticUser }

// Ignore is the mark of a finding that is neither repaired automatically nor counted as a problem.
// Its JSON form is stored in etcd.
type Ignore struct {
	// Finding is the name of the finding.
	Finding string
	Caller  Caller
	Created time.Time
	// Expires is when the mark ends. It is the zero time if the mark ends with the finding.
	Expires time.Time `json:",omitzero"`
	// Comment says why, in the caller's words.
	Comment string `json:",omitempty"`
}

// Expired reports whether the mark has ended by its time.
func (i Ignore) Expired(now time.Time) bool { return !i.Expires.IsZero() && !now.Before(i.Expires) }
