// Package planned has the words of planned writes: what a write does, and in which fields two
// states of an object differ.
package planned

import metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"

// Verb is what a planned write does. The values are labels of metrics and parts of stored plans.
type Verb string

const (
	// Create writes an object that must not exist.
	Create Verb = "create"
	// Update replaces exactly one version of an object.
	Update Verb = "update"
	// Delete deletes exactly one version of an object.
	Delete Verb = "delete"
	// Relabel is an Update of labels alone.
	Relabel Verb = "relabel"
	// SetBit and ClearBit are Updates of one bit of a bitmap, which was as it is not afterwards.
	SetBit   Verb = "set"
	ClearBit Verb = "clear"
	// Report writes nothing: the problem needs an operator, or time.
	Report Verb = "report"
	// None means that no write was tried.
	None Verb = "none"
)

// Proto returns the verb as the API has it: unspecified for one that writes nothing.
func (v Verb) Proto() metav1.Change_Verb {
	switch v {
	case Create:
		return metav1.Change_VERB_CREATE
	case Update, Relabel, SetBit, ClearBit:
		return metav1.Change_VERB_UPDATE
	case Delete:
		return metav1.Change_VERB_DELETE
	case Report, None:
	}
	return metav1.Change_VERB_UNSPECIFIED
}
