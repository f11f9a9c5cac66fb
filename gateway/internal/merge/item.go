package merge

import (
	"google.golang.org/protobuf/proto"

	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// Item is a message that replicas list and watch. Its resource name identifies it.
type Item interface {
	proto.Message
	GetName() string
}

// ownerOf returns the owner that an item names; nil for a kind without owners.
func ownerOf(item Item) *metav1.Owner {
	if owned, ok := item.(interface{ GetOwner() *metav1.Owner }); ok {
		return owned.GetOwner()
	}
	return nil
}
